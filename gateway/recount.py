"""A limit that is set in the middle of a day counts what was used of the day before it was set.

Where nothing is limited nothing is counted; what was used is in the ledger, and is asked for when a new limit appears.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

import structlog

from gateway.ledger_restore import used_so_far
from policies.ledger import Ledger
from policies.meters import Moment
from policies.quota import Quotas
from policies.store import StoreError
from policies.tenant import Limits, Tenant

log = structlog.get_logger()

RETRY_S = 1.0  # chosen: a ledger that was busy is free again by then
# Chosen: a row is in the ledger half a second after its request, and what runs when a limit is set ends later.
AGAIN_AFTER_S = (1.0, 10.0, 100.0)

Limited = tuple[str, str, str]  # whose limit, which, by the calendar of which time zone


class Recount:
    """Follows the limits that are set. `changed` says that they may be others now; `follow` does the rest."""

    def __init__(
        self,
        quotas: Quotas,
        ledger: Ledger,
        tenants: Callable[[], Iterable[Tenant]],
        moment: Callable[[], Moment],
        *,
        retry_s: float = RETRY_S,
        again_after_s: Sequence[float] = AGAIN_AFTER_S,
    ) -> None:
        """`tenants`: those of now, at each call."""
        self._retry_s = retry_s
        self._again_after_s = again_after_s
        self._quotas = quotas
        self._ledger = ledger
        self._tenants = tenants
        self._moment = moment
        self._known: frozenset[Limited] = frozenset()
        self._is_due = asyncio.Event()

    def changed(self) -> None:
        """The tenants may have other limits than before."""
        limited = limited_of(self._tenants())
        if not limited <= self._known:
            self._is_due.set()
        self._known = limited

    async def follow(self) -> None:
        """Count again whenever a limit is set that was not, until cancelled. A ledger that is away is asked again.

        And some times more after that, for what ran when it was set: what is counted twice counts once.
        """
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            for pause_s in (0.0, *self._again_after_s):
                if pause_s and await self._is_due_within(pause_s):
                    break
                try:
                    await self.recount()
                except StoreError as error:
                    log.warning("limits.not_recounted", error=str(error))
                    await asyncio.sleep(self._retry_s)
                    self._is_due.set()
                    break

    async def _is_due_within(self, pause_s: float) -> bool:
        """Whether a limit was set before the pause was over."""
        try:
            async with asyncio.timeout(pause_s):
                return await self._is_due.wait()
        except TimeoutError:
            return False

    async def recount(self) -> None:
        """Everything that was used in the windows of now counts. Raises `StoreError`."""
        moment = self._moment()
        self._quotas.restore(await used_so_far(self._ledger, self._tenants(), moment.unix), moment)


def limited_of(tenants: Iterable[Tenant]) -> frozenset[Limited]:
    """Every limit of tokens and money that is set, by level."""
    found: set[Limited] = set()
    for tenant in tenants:
        for of, limits in (
            (tenant.project_id, tenant.limits),
            (tenant.organization_id, tenant.organization_limits),
        ):
            found.update((of, name, limits.time_zone) for name in _set_in(limits))
    return frozenset(found)


def _set_in(limits: Limits) -> list[str]:
    named = {"tpm": limits.tpm, "tokens_per_day": limits.tokens_per_day, "usd_per_month": limits.usd_per_month}
    return [name for name, limit in named.items() if limit is not None]
