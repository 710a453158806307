"""The contract of every ledger, run on each: a row is kept once and counted once, whatever is repeated."""

import itertools
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.ledger import DAY_S, HOUR_S, HOURS_KEPT_DAYS, Group, LedgerRow, Retention, Totals, Wanted
from policies.redis_ledger import RedisLedger
from policies.sqlite_ledger import SqliteLedger
from policies.store import StoreError
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures
from tests.slow_ledger import SlowLedger

KEEP = Retention(rows_days=3650, rollups_days=3650)
NOON = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp())
_PREFIXES = (f"ledger{number}" for number in itertools.count())
_IDS = (f"req_{number:06}" for number in itertools.count())


def row(request_id=None, started_at=NOON, **fields):
    """A finished request of one project."""
    whole = {
        "ended_at": started_at + 1.5,
        "organization": "org_a",
        "project": "proj_a",
        "key": "key_a",
        "model": "small-a",
        "lane": "interactive",
        "surface": "/v1/chat/completions",
        "outcome": "finished",
        "status": 200,
        **fields,
    }
    return LedgerRow(request_id=request_id or next(_IDS), started_at=started_at, **whole)


def whole(**filters):
    """All time."""
    return Wanted(NOON - 400 * DAY_S, NOON + 400 * DAY_S, **filters)


@pytest.fixture(params=["sqlite", "redis"])
def reopen(request, tmp_path):
    """A function that opens the same ledger once more, as another process would."""
    if request.param == "sqlite":
        return lambda: SqliteLedger.open(tmp_path / "ledger.sqlite3")
    server = request.getfixturevalue("shared_redis")
    prefix = next(_PREFIXES)
    return lambda: RedisLedger.open(server.url, KEEP, prefix=prefix)


@asynccontextmanager
async def opened(reopen):
    async with await reopen() as one:
        yield one


@pytest.fixture
async def ledger(reopen):
    async with opened(reopen) as one:
        yield one


@pytest.fixture
def fresh(request, tmp_path_factory, reopen):
    """A function that opens an empty ledger of the same kind."""
    if "sqlite" in request.node.callspec.id:
        return lambda: SqliteLedger.open(tmp_path_factory.mktemp("ledger") / "ledger.sqlite3")
    server = request.getfixturevalue("shared_redis")
    return lambda: RedisLedger.open(server.url, KEEP, prefix=next(_PREFIXES))


async def test_a_row_is_there_again_as_it_was_written(ledger):
    """Whoever disputes a bill is shown what was observed."""
    plain = row()
    full = row(
        reason="rpm",
        limit="rpm",
        attempts=3,
        replica="r1",
        queue_s=0.25,
        ttft_s=0.5,
        predicted_hit_tokens=0,
        reserved_tokens=100,
        prompt_tokens=7,
        cached_tokens=3,
        completion_tokens=2,
        charged_tokens=9,
        cost_nanousd=2**53 + 1,
        is_estimated=True,
        recovered=True,
    )
    assert await ledger.add([plain, full]) == 2
    assert await ledger.row(plain.request_id) == plain
    assert await ledger.row(full.request_id) == full
    assert await ledger.row("req_other") is None


async def test_what_is_added_twice_is_counted_once(ledger, reopen):
    """A replay that was killed in the middle is repeated."""
    rows = [row(charged_tokens=5), row(charged_tokens=7)]
    assert await ledger.add(rows[:1]) == 1
    assert await ledger.add(rows) == 1
    async with opened(reopen) as other:
        assert await other.add(rows) == 0
        assert await other.add([row(rows[0].request_id, charged_tokens=500)]) == 0
    (usage,) = (await ledger.usage(whole(), Group.PROJECT)).rows
    assert (usage.totals.requests, usage.totals.charged_tokens) == (2, 12)


async def test_the_same_row_twice_in_one_batch_counts_once(ledger):
    """Two files hold the same intent when a gateway dies while it goes on in a new one."""
    one = row(charged_tokens=5)
    assert await ledger.add([one, one]) == 1
    (usage,) = (await ledger.usage(whole(), Group.PROJECT)).rows
    assert usage.totals == Totals(requests=1, charged_tokens=5)


async def test_adding_nothing_changes_nothing(ledger):
    """Most passes find nothing new."""
    assert await ledger.add([]) == 0
    assert (await ledger.rows(whole())).rows == ()
    assert (await ledger.usage(whole(), Group.DAY)).rows == ()


async def test_refusals_are_counted_as_requests_and_as_refused(ledger):
    """`refused` is a part of `requests`."""
    await ledger.add([row(), row(outcome="refused", status=429, reason="tpm"), row(outcome="shed", status=503)])
    (usage,) = (await ledger.usage(whole(), Group.PROJECT)).rows
    assert (usage.totals.requests, usage.totals.refused) == (3, 1)


async def test_rows_come_in_pages_in_order_of_time(ledger):
    """An export reads page after page and misses none, also of requests that began in the same instant."""
    rows = [row(started_at=NOON + second // 3 + 0.1) for second in range(10)] + [row(started_at=NOON + DAY_S)]
    await ledger.add(rows[::-1])
    found, after = [], None
    while True:
        page = await ledger.rows(whole(), limit=3, after=after)
        found += page.rows
        after = page.next_after
        if after is None:
            break
        assert len(page.rows) == 3
    assert found == sorted(rows, key=lambda one: (one.started_at, one.request_id))


async def test_rows_are_found_by_time_and_by_whose_they_are(ledger):
    """The end of a period is not in it."""
    early, mine, late = row(started_at=NOON - 1), row(project="proj_b", key="key_b"), row(started_at=NOON + 60)
    await ledger.add([early, mine, late])
    assert (await ledger.rows(Wanted(NOON, NOON + 60))).rows == (mine,)
    assert (await ledger.rows(whole(project="proj_b"))).rows == (mine,)
    assert (await ledger.rows(whole(project="proj_b", key="key_a"))).rows == ()
    assert (await ledger.rows(Wanted(NOON, NOON))).rows == ()


async def test_groups_come_in_pages(ledger):
    """A large installation has more keys than an answer has rows."""
    await ledger.add([row(key=f"key_{number}") for number in range(5)])
    first = await ledger.usage(whole(), Group.KEY, limit=2)
    second = await ledger.usage(whole(), Group.KEY, limit=2, after=first.next_after)
    third = await ledger.usage(whole(), Group.KEY, limit=2, after=second.next_after)
    found = [one.group for page in (first, second, third) for one in page.rows]
    assert found == [f"key_{number}" for number in range(5)]
    assert third.next_after is None


async def test_days_come_in_pages(ledger):
    """A day is of UTC."""
    await ledger.add([row(started_at=NOON + day * DAY_S) for day in range(3)])
    first = await ledger.usage(whole(), Group.DAY, limit=2)
    second = await ledger.usage(whole(), Group.DAY, limit=2, after=first.next_after)
    assert [one.group for one in (*first.rows, *second.rows)] == ["2026-11-30", "2026-12-01", "2026-12-02"]


@pytest.mark.parametrize("after", ["", "nonsense", "x~y", "nan~y", "1e400~y", "-5~y"])
async def test_a_page_that_never_ended_there_is_refused(ledger, after):
    """What a caller makes up is an error of his, not an empty page."""
    await ledger.add([row()])
    with pytest.raises(ValueError, match=r".*"):
        await ledger.rows(whole(), after=after)
    with pytest.raises(ValueError, match=r".*"):
        await ledger.usage(whole(), Group.DAY, after=after)


async def test_a_tally_sums_rows_by_project_and_stretch(ledger):
    """A gateway that starts asks what the last minute held."""
    sent = {"attempts": 1}
    await ledger.add(
        [
            row(started_at=NOON + 0.2, charged_tokens=3, **sent),
            row(started_at=NOON + 0.9, charged_tokens=4, **sent),
            row(started_at=NOON + 1.0, project="proj_b", cost_nanousd=9, **sent),
            row(started_at=NOON + 2, **sent),
            row(outcome="refused", status=429),
            row(outcome="shed", status=503),
        ]
    )
    found = await ledger.tally(NOON, NOON + 2, 1)
    assert [(one.project, one.starts_at, one.totals.requests, one.totals.charged_tokens) for one in found] == [
        ("proj_a", NOON, 2, 7),
        ("proj_b", NOON + 1, 1, 0),
    ]
    (hour, other) = await ledger.tally(NOON, NOON + 60, HOUR_S)
    assert (hour.starts_at, hour.totals.requests, other.totals.cost_nanousd) == (NOON, 3, 9)


async def test_who_left_the_queue_keeps_its_place_in_the_minute(ledger):
    """Leaving early is no way around a rate."""
    await ledger.add([row(outcome="client_gone", status=499), row(outcome="client_error", status=400)])
    (found,) = await ledger.tally(NOON, NOON + 1, 1)
    assert found.totals.requests == 1


async def test_hours_are_summed_by_project(ledger):
    """A gateway that starts asks what the running month held."""
    await ledger.add(
        [row(started_at=NOON + hour * HOUR_S / 2, key=f"key_{hour}", charged_tokens=hour) for hour in range(4)]
        + [row(project="proj_b", charged_tokens=100)]
    )
    found = await ledger.hours(NOON, NOON + 2 * HOUR_S)
    assert [(one.project, one.starts_at - NOON, one.totals.charged_tokens) for one in found] == [
        ("proj_a", 0, 0 + 1),
        ("proj_a", HOUR_S, 2 + 3),
        ("proj_b", 0, 100),
    ]
    assert await ledger.hours(NOON + HOUR_S * 2, NOON + HOUR_S * 3) == []


async def test_totals_outlive_their_rows(ledger):
    """Rows are many; what a year cost must be known when they are gone."""
    old, new = row(started_at=NOON - 40 * DAY_S, charged_tokens=5), row(charged_tokens=7)
    await ledger.add([old, new])
    keep = Retention(rows_days=30, rollups_days=400)
    while await ledger.purge(NOON, keep):
        pass
    kept = (await ledger.rows(whole())).rows
    assert [one.request_id for one in kept] == [new.request_id]
    assert sum(one.totals.charged_tokens for one in (await ledger.usage(whole(), Group.DAY)).rows) == 12


async def test_a_closed_ledger_says_so(reopen):
    """Closing twice is harmless."""
    ledger = await reopen()
    await ledger.close()
    await ledger.close()
    with pytest.raises(StoreError, match="closed"):
        await ledger.add([row()])


_NAMES = st.sampled_from(["", "a", "b", "é~]", '"x"'])
_COUNTS = st.none() | st.integers(0, 10**6)
_ROWS = st.lists(
    st.builds(
        row,
        request_id=st.integers(0, 12).map(lambda number: f"req_{number}"),
        started_at=st.integers(-3 * DAY_S, 3 * DAY_S).map(lambda offset: NOON + offset / 2),
        organization=_NAMES,
        project=_NAMES,
        key=_NAMES,
        model=_NAMES,
        lane=st.sampled_from(["interactive", "bulk"]),
        outcome=st.sampled_from(["finished", "refused", "client_gone"]),
        prompt_tokens=_COUNTS,
        cached_tokens=_COUNTS,
        completion_tokens=_COUNTS,
        charged_tokens=st.integers(0, 10**6),
        cost_nanousd=st.none() | st.integers(0, 10**12),
    ),
    max_size=12,
)
_WANTED = st.builds(
    lambda start, length, **filters: Wanted(NOON + start, NOON + start + length, **filters),
    start=st.integers(-3 * DAY_S, 3 * DAY_S),
    length=st.integers(0, 5 * DAY_S),
    organization=st.none() | _NAMES,
    project=st.none() | _NAMES,
    model=st.none() | _NAMES,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(_ROWS, max_size=4), wanted=_WANTED, group_by=st.sampled_from(Group))
async def test_usage_is_what_summing_every_row_gives(fresh, batches, wanted, group_by):
    """Totals by hour and day answer for any period as the rows themselves would."""
    slow = SlowLedger()
    async with await fresh() as ledger:
        first_times = {}
        for batch in batches:
            rows = [first_times.setdefault(one.request_id, one) for one in batch]
            assert await ledger.add(rows) == slow.add(rows)
        found = await ledger.usage(wanted, group_by)
        assert {one.group: one.totals for one in found.rows} == slow.usage(wanted, group_by)
        assert list((await ledger.rows(wanted)).rows) == slow.rows(wanted)


def test_hours_are_kept_no_longer_than_days():
    """A short retention of totals holds for both."""
    assert Retention(30, 400).hours_days == HOURS_KEPT_DAYS
    assert Retention(1, 7).hours_days == 7
