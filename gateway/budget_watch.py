"""Looks every few seconds whether a budget has reached a threshold, and tells so once: in a metric and by webhook.

Never on the path of a request. Once per window over all gateways: who wants to tell takes the alert from the store for
a few minutes, and says there when it was taken by the receiver; after a crash in between another gateway tells it
again, under the same id. A receiver that stays away is asked a bounded number of times.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec
import structlog

from gateway.webhook import Webhook, WebhookFailed
from policies.budget_alerts import BudgetAlert, Budgets, reached
from policies.meters import NANODOLLARS, Counted, Meters, Moment
from policies.store import Store, StoreError
from policies.tenant import Tenant

LOOK_EVERY_S = 5.0
PAUSES_S = (1.0, 5.0, 30.0, 60.0)  # between the five tries
HOLD_S = 300.0  # longer than all tries together take
KEEP_S = 86400.0  # after the window's end: no gateway's clock is a day behind
YIELD_EVERY = 200  # budgets looked at without a pause: below a millisecond
MAX_SENDING = 100  # more wait for a later look

log = structlog.get_logger()


class BudgetWatch:
    """The budgets of the tenants that can call now. `meters`: who counts. `on_alert`: told each threshold once."""

    def __init__(
        self,
        meters: Meters,
        tenants: Callable[[], Iterable[Tenant]],
        store: Store,
        webhook: Webhook | None,
        on_alert: Callable[[int], None],
    ) -> None:
        self._meters = meters
        self._tenants = tenants
        self._store = store
        self._webhook = webhook
        self._on_alert = on_alert
        self._settled: dict[str, float] = {}  # alert id -> Unix second until which nobody need ask about it
        self._sending: set[asyncio.Task[None]] = set()
        self._is_failing = False
        self._budgets = Budgets()

    async def look(self, moment: Moment) -> int:
        """Take and begin to tell what is new; how many. Raises `StoreError`, then the rest is for the next look."""
        self._settled = {one: until for one, until in self._settled.items() if until > moment.unix}
        num_new = 0
        for number, meter in enumerate(self._budgets.meters(self._tenants(), moment.unix)):
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)  # there are streams to serve
            for alert in reached(meter, self._meters.used(meter, moment)):
                if alert.id in self._settled or len(self._sending) >= MAX_SENDING:
                    continue
                is_mine = await self._store.claim_alert(alert.id, moment.unix + HOLD_S)
                self._settled[alert.id] = moment.unix + HOLD_S
                if is_mine:
                    num_new += 1
                    self._begin(alert, moment.unix)
        return num_new

    async def follow(self, moment: Callable[[], Moment]) -> None:
        """Look for ever, until cancelled; what is being told then is left to others. An outage is logged once."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                try:
                    await self.look(moment())
                except StoreError as error:
                    if not self._is_failing:
                        log.warning("alerts.not_looked", error=str(error))
                    self._is_failing = True
                else:
                    self._is_failing = False
        finally:
            await self.close()

    async def until_told(self) -> None:
        """Wait until nothing is being told."""
        while self._sending:
            await asyncio.wait(set(self._sending))

    async def close(self) -> None:
        """Give up what is being told. Harmless the second time."""
        for task in self._sending:
            task.cancel()
        await self.until_told()
        if self._webhook is not None:
            await self._webhook.close()

    def _begin(self, alert: BudgetAlert, unix: float) -> None:
        task = asyncio.create_task(self._tell(alert, unix))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _tell(self, alert: BudgetAlert, unix: float) -> None:
        """To the receiver, then to the store that it need not be told again; who gives up says so in the log."""
        reason = await self._sent(alert.id, message(alert, unix)) if self._webhook is not None else None
        self._on_alert(alert.threshold)
        until = alert.meter.ends_at + KEEP_S
        self._settled[alert.id] = until
        log.info("budget.reached", subject=alert.meter.of, limit=alert.meter.counted.value, threshold=alert.threshold)
        if reason is not None:
            log.error("alerts.not_delivered", alert=alert.id, reason=reason)
        with contextlib.suppress(StoreError):  # it ends by itself in a few minutes: told twice is better than never
            await self._store.settle_alert(alert.id, until)

    async def _sent(self, alert_id: str, body: bytes) -> str | None:
        """None once it was taken; else why not, after the last try."""
        assert self._webhook is not None, "there is a receiver"
        for pause_s in (*PAUSES_S, None):
            try:
                await self._webhook.send(alert_id, body)
            except WebhookFailed as failed:
                if pause_s is None or failed.is_final:
                    return str(failed)
                await asyncio.sleep(pause_s)
            else:
                return None
        return None


def message(alert: BudgetAlert, unix: float) -> bytes:
    """The body: type, time and data, as the convention has it. Money in USD, tokens as they are charged."""
    unit = NANODOLLARS if alert.meter.counted is Counted.MONTH_MONEY else 1
    data = {
        "project_id" if alert.is_of_project else "organization_id": alert.subject_id,
        "limit_name": alert.meter.counted.value,
        "threshold_percent": alert.threshold,
        "limit": alert.meter.limit / unit if unit > 1 else alert.meter.limit,
        "used": alert.used / unit if unit > 1 else alert.used,
        "window_starts_at": alert.meter.starts_at,
        "window_ends_at": alert.meter.ends_at,
    }
    at = datetime.fromtimestamp(int(unix), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return msgspec.json.encode({"type": "budget.threshold_reached", "timestamp": at, "data": data})
