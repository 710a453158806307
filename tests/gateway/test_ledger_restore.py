"""What a gateway that starts is told was used: by window, in each tenant's time zone, so that no limit begins anew."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ledger_restore import used_so_far
from policies.calendar_windows import day_window, month_window
from policies.lane import Lane
from policies.ledger import DAY_S, HOUR_S, LedgerRow, Retention
from policies.meters import Counted, Moment
from policies.quota import Quotas, Rejected
from policies.reservation import Expected
from policies.sqlite_ledger import SqliteLedger
from policies.tenant import Limits, Tenant

NOW = datetime(2026, 11, 17, 9, 20, 30, tzinfo=UTC).timestamp()
ZONES = ["UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Chatham", "Asia/Tokyo", "America/Los_Angeles"]


def row(number, at, **fields):
    """A request of proj_a that began then."""
    whole = {"organization": "org_a", "project": "proj_a", "attempts": 1, "outcome": "finished", **fields}
    return LedgerRow(
        request_id=f"req_{number}",
        started_at=at,
        ended_at=at,
        key="key_a",
        model="small-a",
        lane="interactive",
        surface="/v1/completions",
        status=200,
        **whole,
    )


def tenant(zone="UTC", **limits):
    """The project proj_a with these limits."""
    return Tenant("proj_a", "org_a", "salt", Limits(time_zone=zone, **limits))


@pytest.fixture
async def ledger(tmp_path):
    async with await SqliteLedger.open(tmp_path / "ledger.sqlite3") as opened:
        yield opened


async def restored(ledger, *tenants):
    """Quotas of a process that starts now."""
    quotas = Quotas()
    quotas.restore(await used_so_far(ledger, tenants, NOW), Moment(5000.0, NOW))
    return quotas


async def test_a_restart_does_not_empty_the_minute(ledger):
    """Two of three requests came in the last minute; one was refused and leaves no trace."""
    await ledger.add([row(1, NOW - 50), row(2, NOW - 1), row(3, NOW - 90)])
    await ledger.add([row(4, NOW - 2, outcome="refused", attempts=0)])
    limited = tenant(rpm=3)
    quotas = await restored(ledger, limited)
    assert not isinstance(quotas.reserve(limited, Lane.INTERACTIVE, Moment(5000.0, NOW)), Rejected)
    refused = quotas.reserve(limited, Lane.INTERACTIVE, Moment(5000.0, NOW))
    assert isinstance(refused, Rejected)


async def test_a_restart_does_not_empty_the_organisations_day(ledger):
    """All its projects count."""
    await ledger.add(
        [row(1, NOW - HOUR_S, charged_tokens=60), row(2, NOW - HOUR_S, project="proj_b", charged_tokens=30)]
    )
    limited = Tenant("proj_a", "org_a", "salt", Limits(), Limits(tokens_per_day=100))
    quotas = await restored(ledger, limited)
    reservation = quotas.reserve(limited, Lane.INTERACTIVE, Moment(5000.0, NOW))
    assert isinstance(reservation.hold(Expected(11, 11), Moment(5000.0, NOW)), Rejected)
    reservation.undo(Moment(5000.0, NOW))


async def test_an_organisation_counts_cached_tokens_by_its_own_discount(ledger):
    """As before the restart: its project charges cached tokens in full, it does not."""
    await ledger.add([row(1, NOW - 5, prompt_tokens=90, cached_tokens=80, completion_tokens=5, charged_tokens=95)])
    above = Limits(tokens_per_day=100, tpm=100, cached_token_discount=0.75)
    limited = Tenant("proj_a", "org_a", "salt", Limits(tokens_per_day=100, tpm=100), above)
    quotas = await restored(ledger, limited)
    used = {(one.scope.value, one.name): one.used for one in quotas.standings(limited, Moment(5000.0, NOW))}
    assert used == {
        ("organization", "tpm"): 35,
        ("organization", "tokens_per_day"): 35,
        ("project", "tpm"): 95,
        ("project", "tokens_per_day"): 95,
    }


async def test_a_recovered_request_counts_as_what_it_had_reserved(ledger):
    """Killing the gateway is no way to spend more than a budget."""
    recovered = row(1, NOW - 5, recovered=True, outcome="recovered", charged_tokens=80, cost_nanousd=900)
    await ledger.add([recovered])
    found = await used_so_far(ledger, [tenant()], NOW)
    assert {(counted, amount) for _, _, counted, _, amount in found} == {
        (Counted.REQUESTS, 1),
        (Counted.TOKENS, 80),
        (Counted.DAY_TOKENS, 80),
        (Counted.MONTH_MONEY, 900),
    }


async def test_rows_that_are_no_longer_kept_count_for_the_later_day(ledger):
    """When it is not known on which side of midnight something was used, nobody gets it a second time."""
    border = day_window(NOW, "Asia/Kathmandu").starts_at
    await ledger.add([row(1, border - 60, charged_tokens=7)])
    while await ledger.purge(NOW + 40 * DAY_S, Retention(30, 400)):
        pass
    found = await used_so_far(ledger, [tenant("Asia/Kathmandu")], NOW)
    assert (Counted.DAY_TOKENS, 7) in {(counted, amount) for _, _, counted, _, amount in found}


@settings(max_examples=25, deadline=None)
@given(
    ages=st.lists(st.integers(0, 40 * DAY_S), max_size=15),
    zones=st.lists(st.sampled_from(ZONES), min_size=1, max_size=3),
)
async def test_every_window_holds_what_was_used_in_it(tmp_path_factory, ages, zones):
    """For every tenant's own day and month, whatever its time zone."""
    async with await SqliteLedger.open(tmp_path_factory.mktemp("restore") / "l.sqlite3") as ledger:
        rows = [row(n, NOW - age, charged_tokens=1 + n, cost_nanousd=100 + n) for n, age in enumerate(ages)]
        await ledger.add(rows)
        found = await used_so_far(ledger, [tenant(zone) for zone in zones], NOW)
    for zone in zones:
        for counted, window, amount in (
            (Counted.DAY_TOKENS, day_window(NOW, zone), "charged_tokens"),
            (Counted.MONTH_MONEY, month_window(NOW, zone), "cost_nanousd"),
        ):
            told = sum(used for _, _, what, at, used in found if what is counted and window.starts_at <= at)
            assert told == sum(getattr(one, amount) for one in rows if one.started_at >= window.starts_at)
