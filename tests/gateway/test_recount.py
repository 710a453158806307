"""A limit that is set in the middle of a day finds what was used before it was set."""

import asyncio
import contextlib

from gateway.recount import Recount, limited_of
from policies.lane import Lane
from policies.ledger import Tally, Totals
from policies.meters import Moment
from policies.quota import Expected, Quotas, Rejected
from policies.store import StoreError
from policies.tenant import Limits, Tenant

UNIX = 1_790_000_000.0
AT = Moment(5000.0, UNIX)


class ScriptedLedger:
    """Knows of 900 tokens this hour; fails as often as it is told."""

    def __init__(self, faults=0):
        self.charged = 900
        self.faults = faults
        self.asked = asyncio.Event()

    async def tally(self, starts_at, ends_at, every_s):
        """What the last minute was, and the quarters of an hour."""
        return []

    async def hours(self, starts_at, ends_at):
        """What each hour was."""
        self.asked.set()
        if self.faults:
            self.faults -= 1
            raise StoreError("the ledger is away")
        hour = int(UNIX) - int(UNIX) % 3600
        return [Tally("o", "p", hour, Totals(requests=3, charged_tokens=self.charged))]


def tenant(**limits):
    """The project p with these limits."""
    return Tenant("p", "o", "0" * 32, Limits(**limits))


def hold(quotas, team, tokens):
    """What comes of a request that needs so many tokens."""
    reservation = quotas.reserve(team, Lane.BULK, AT)
    rejected = reservation.hold(Expected(tokens, tokens), AT)
    reservation.undo(AT)
    return rejected


@contextlib.asynccontextmanager
async def following(ledger, tenants, again_after_s=()):
    """A recount at work over a list of tenants that the test changes."""
    quotas = Quotas()
    recount = Recount(quotas, ledger, lambda: tenants, lambda: AT, retry_s=0.0, again_after_s=again_after_s)
    task = asyncio.create_task(recount.follow())
    try:
        yield quotas, recount
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def asked(ledger):
    """Wait until the ledger was asked and its answer is in force."""
    async with asyncio.timeout(10):
        await ledger.asked.wait()
    ledger.asked.clear()
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_new_limit_finds_what_was_used_before_it():
    """900 of 1000 are gone when the limit is set."""
    ledger, tenants = ScriptedLedger(), [tenant()]
    async with following(ledger, tenants) as (quotas, recount):
        recount.changed()
        assert not ledger.asked.is_set()
        tenants[0] = tenant(tokens_per_day=1000)
        recount.changed()
        await asked(ledger)
        assert hold(quotas, tenants[0], 100) is None
        assert isinstance(hold(quotas, tenants[0], 101), Rejected)


async def test_what_was_not_yet_in_the_ledger_is_found_a_little_later():
    """A row comes half a second after its request; one that runs when the limit is set, later still."""
    ledger, tenants = ScriptedLedger(), [tenant(tokens_per_day=1000)]
    async with following(ledger, tenants, again_after_s=(0.01, 0.01)) as (quotas, recount):
        recount.changed()
        await asked(ledger)
        assert hold(quotas, tenants[0], 100) is None
        ledger.charged = 990
        await asked(ledger)
        assert isinstance(hold(quotas, tenants[0], 100), Rejected)
        await asked(ledger)


async def test_other_changes_ask_nothing():
    """A raised limit, a lifted one and a new key are no new counts."""
    ledger, tenants = ScriptedLedger(), [tenant(tokens_per_day=1000, tpm=5)]
    async with following(ledger, tenants) as (_, recount):
        recount.changed()
        await asked(ledger)
        for change in (tenant(tokens_per_day=2000, tpm=7), tenant(tokens_per_day=2000), tenant(rpm=5)):
            tenants[0] = change
            recount.changed()
            await asyncio.sleep(0)
            assert not ledger.asked.is_set()


async def test_a_ledger_that_is_away_is_asked_again():
    """Until it answers; the limit holds meanwhile for what this process counts."""
    ledger, tenants = ScriptedLedger(faults=1), [tenant(tokens_per_day=1000)]
    async with following(ledger, tenants) as (quotas, recount):
        recount.changed()
        await asked(ledger)
        async with asyncio.timeout(10):
            while ledger.faults or quotas.statistics()["history"] == 0:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert isinstance(hold(quotas, tenants[0], 101), Rejected)


def test_a_calendar_of_another_zone_is_another_limit():
    """Its day began at another time."""
    assert limited_of([tenant(tpm=1, time_zone="UTC")]) != limited_of([tenant(tpm=1, time_zone="Asia/Tokyo")])
    assert limited_of([tenant(rpm=1)]) == frozenset()
