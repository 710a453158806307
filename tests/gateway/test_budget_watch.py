"""Budget alerts: told once per window over all gateways, signed, tried again within a bound, never waited for."""

import asyncio
import base64
import hashlib
import hmac
import json

import httpx
import pytest
import structlog

from gateway import budget_watch as module
from gateway.admin_settings import AlertsSection
from gateway.budget_watch import PAUSES_S, BudgetWatch
from gateway.settings import ConfigError, load
from gateway.webhook import Webhook, signature, webhook_of
from policies.budget_alerts import Budgets
from policies.meters import Moment
from policies.sole_meters import SoleMeters
from policies.sqlite_store import SqliteStore
from policies.store import StoreError
from policies.tenant import Limits, Tenant

NOW = 1_700_000_000.0
SECRET = b"0123456789abcdef"
URL = "https://hooks.example/warmlane"
TENANT = Tenant("proj_1", "org_1", "00", Limits(tokens_per_day=1000), Limits(usd_per_month=2.0))


class Receiver:
    """Takes messages; `statuses`: what it answers next, an exception is raised; afterwards 204."""

    def __init__(self):
        self.messages = []
        self.statuses = []
        self.gate = None

    async def handle(self, request):
        if self.gate is not None:
            await self.gate.wait()
        self.messages.append(request)
        status = self.statuses.pop(0) if self.statuses else 204
        if isinstance(status, Exception):
            raise status
        return httpx.Response(status, headers={"location": "http://169.254.169.254/"})

    def webhook(self):
        return Webhook(URL, SECRET, clock=lambda: NOW, transport=httpx.MockTransport(self.handle))

    @property
    def told(self):
        return [
            (json.loads(one.content)["data"]["limit_name"], json.loads(one.content)["data"]["threshold_percent"])
            for one in self.messages
        ]


@pytest.fixture
def receiver():
    return Receiver()


@pytest.fixture
async def store(tmp_path):
    async with await SqliteStore.open(tmp_path / "store.sqlite3", lambda: NOW) as opened:
        yield opened


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "PAUSES_S", (0,) * len(PAUSES_S))


def moment(unix=NOW):
    return Moment(unix - NOW, unix)


class Gateway:
    """One gateway's meters and its watch."""

    def __init__(self, store, receiver):
        self.meters = SoleMeters()
        self.counted = []
        self.watch = BudgetWatch(
            self.meters, lambda: [TENANT], store, receiver and receiver.webhook(), self.counted.append
        )

    def use(self, of, amount, at=NOW):
        """Count so much of the calendar budget of a project or organisation."""
        meter = next(one for one in Budgets().meters([TENANT], at) if one.of == of)
        self.meters.take(meter, amount, moment(at))

    async def look(self, at=NOW):
        found = await self.watch.look(moment(at))
        await self.watch.until_told()
        return found


@pytest.fixture
async def gateway(store, receiver):
    one = Gateway(store, receiver)
    yield one
    await one.watch.close()


async def test_each_threshold_is_told_once_a_window(gateway, receiver):
    """However often it is looked at; the next day begins anew."""
    gateway.use("project:proj_1", 499)
    assert await gateway.look() == 0
    gateway.use("project:proj_1", 1)
    assert await gateway.look() == 1
    assert await gateway.look() == 0
    gateway.use("project:proj_1", 500)
    await gateway.look()
    await gateway.look()
    assert receiver.told == [("tokens_per_day", 50), ("tokens_per_day", 80), ("tokens_per_day", 100)]
    assert gateway.counted == [50, 80, 100]
    tomorrow = NOW + 86400
    gateway.use("project:proj_1", 600, tomorrow)
    await gateway.look(tomorrow)
    assert receiver.told[3:] == [("tokens_per_day", 50)]


async def test_a_message_is_signed_and_says_what_was_used(gateway, receiver):
    """A receiver checks the signature over id, time and body, and knows a repetition by its id."""
    gateway.use("organization:org_1", 1_000_000_000)
    await gateway.look()
    (message,) = receiver.messages
    assert (str(message.url), message.method) == (URL, "POST")
    body = json.loads(message.content)
    assert body["type"] == "budget.threshold_reached"
    assert body["timestamp"] == "2023-11-14T22:13:20Z"
    assert body["data"] == {
        "organization_id": "org_1", "limit_name": "usd_per_month", "threshold_percent": 50, "limit": 2.0, "used": 1.0,
        "window_starts_at": 1698796800, "window_ends_at": 1701388800,
    }  # fmt: skip
    signed = f"{message.headers['webhook-id']}.{message.headers['webhook-timestamp']}.".encode() + message.content
    expected = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
    assert message.headers["webhook-signature"] == f"v1,{expected}"
    assert message.headers["webhook-timestamp"] == str(int(NOW))


def test_the_signature_is_that_of_the_convention():
    """The example of the Standard Webhooks documents."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_four_gateways_tell_it_once(store, receiver):
    """Each of them sees the budget used up; the store says whose it is to tell."""
    gateways = [Gateway(store, receiver) for _ in range(4)]
    for one in gateways:
        one.use("project:proj_1", 1000)
    await asyncio.gather(*(one.look() for one in gateways))
    assert sorted(threshold for _, threshold in receiver.told) == [50, 80, 100]
    assert sum(len(one.counted) for one in gateways) == 3
    for one in gateways:
        await one.watch.close()


async def test_after_a_restart_nothing_is_told_again(store, receiver):
    """What was told is in the store."""
    for _ in range(2):
        one = Gateway(store, receiver)
        one.use("project:proj_1", 500)
        await one.look()
        await one.watch.close()
    assert len(receiver.messages) == 1


async def test_a_receiver_that_fails_is_asked_again_under_the_same_id(gateway, receiver):
    """It knows by the id what it has already."""
    receiver.statuses = [500, httpx.ConnectError("away"), 302, 429]
    gateway.use("project:proj_1", 500)
    await gateway.look()
    assert len(receiver.messages) == 5
    assert len({one.headers["webhook-id"] for one in receiver.messages}) == 1
    assert {str(one.url) for one in receiver.messages} == {URL}  # no redirect is followed


@pytest.mark.parametrize(("statuses", "tries"), [([500] * 99, 5), ([410] * 99, 1)])
async def test_tries_are_bounded_and_the_end_is_logged(gateway, receiver, statuses, tries):
    """A receiver that stays away, or wants no more, costs no more than this."""
    receiver.statuses = list(statuses)
    gateway.use("project:proj_1", 500)
    with structlog.testing.capture_logs() as logs:
        await gateway.look()
        await gateway.look()
    assert len(receiver.messages) == tries
    assert [one["event"] for one in logs] == ["budget.reached", "alerts.not_delivered"]


async def test_a_slow_receiver_holds_up_no_look(gateway, receiver):
    """Looking begins to tell and goes on; there is a bound on how many are being told at once."""
    receiver.gate = asyncio.Event()
    gateway.use("project:proj_1", 500)
    assert await gateway.watch.look(moment()) == 1
    gateway.use("organization:org_1", 1_000_000_000)
    assert await gateway.watch.look(moment()) == 1
    receiver.gate.set()
    await gateway.watch.until_told()
    assert len(receiver.messages) == 2


async def test_no_more_are_told_at_once_than_the_bound_and_none_is_forgotten(gateway, receiver, monkeypatch):
    """What finds no room is not claimed, so the next look has it."""
    monkeypatch.setattr(module, "MAX_SENDING", 2)
    receiver.gate = asyncio.Event()
    gateway.use("project:proj_1", 1000)
    assert await gateway.watch.look(moment()) == 2
    assert await gateway.watch.look(moment()) == 0
    receiver.gate.set()
    await gateway.watch.until_told()
    assert await gateway.look() == 1
    assert sorted(threshold for _, threshold in receiver.told) == [50, 80, 100]


async def test_an_alert_whose_gateway_died_is_told_by_another(tmp_path, receiver):
    """The claim ends by itself after a few minutes."""
    now = [NOW]
    async with await SqliteStore.open(tmp_path / "s.sqlite3", lambda: now[0]) as store:
        receiver.gate = asyncio.Event()
        dead, other = Gateway(store, receiver), Gateway(store, receiver)
        for one in (dead, other):
            one.use("project:proj_1", 500)
        await dead.watch.look(moment())
        await dead.watch.close()
        receiver.gate.set()
        assert await other.look() == 0
        now[0] += module.HOLD_S
        assert await other.look(now[0]) == 1
        await other.watch.close()
    assert len(receiver.messages) == 1


async def test_without_a_receiver_the_metric_counts_all_the_same(store):
    """A webhook is optional."""
    one = Gateway(store, None)
    one.use("project:proj_1", 500)
    await one.look()
    await one.look()
    assert one.counted == [50]
    await one.watch.close()


async def test_it_follows_over_an_outage_of_the_store(receiver, monkeypatch):
    """Logged once; what could not be claimed is told when the store is back."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0)
    told = asyncio.Event()

    class Flaky:
        num_asked = 0

        async def claim_alert(self, *_):
            self.num_asked += 1
            if self.num_asked < 4:
                raise StoreError("gone")
            return True

        async def settle_alert(self, *_):
            told.set()

    one = Gateway(Flaky(), receiver)
    one.use("project:proj_1", 500)
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(one.watch.follow(moment))
        await told.wait()
        task.cancel()
        await asyncio.wait({task})
    assert [entry["event"] for entry in logs] == ["alerts.not_looked", "budget.reached"]
    assert len(receiver.messages) == 1


@pytest.mark.parametrize("secret", ["", "short", "whsec_!!!", "whsec_c2hvcnQ="])
def test_a_missing_or_weak_secret_is_refused(monkeypatch, secret):
    """An alert that nobody can check is none; the value itself is in no message."""
    monkeypatch.setenv("HOOK_SECRET", secret)
    with pytest.raises(ConfigError, match="HOOK_SECRET") as refused:
        webhook_of(AlertsSection(webhook_url=URL, webhook_secret_env="HOOK_SECRET"))
    assert not secret or secret not in str(refused.value)


async def test_a_secret_may_be_text_or_of_the_conventions_form(monkeypatch):
    """Without a URL nothing is needed."""
    assert webhook_of(AlertsSection()) is None
    for secret in ("0123456789abcdef", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"):
        monkeypatch.setenv("HOOK_SECRET", secret)
        webhook = webhook_of(AlertsSection(webhook_url=URL, webhook_secret_env="HOOK_SECRET"))
        await webhook.close()


@pytest.mark.parametrize("text", ['webhook_url = "http://example.com/x"\nwebhook_secret_env = "X"', f'webhook_url = "{URL}"', 'webhook_url = "ftp://x"'])  # fmt: skip
def test_unsafe_settings_are_refused(tmp_path, text):
    """Plain HTTP over a network, or nothing to sign with."""
    path = tmp_path / "w.toml"
    path.write_text(f"[alerts]\n{text}\n")
    with pytest.raises(ConfigError, match="alerts"):
        load(path)
