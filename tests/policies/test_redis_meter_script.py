"""The script in Redis and the rule in Python are one: the same reports at the same times get the same grants."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.meter_reports import AHEAD_S, WINDOW_S, MeterAsk, MeterReport, keep_s
from policies.meter_table import SPARE_PARTS, MeterTable
from policies.meters import Counted, Meter
from policies.redis_meter_script import COUNT
from policies.redis_meters import arguments_of, grants_of
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures

LEASE_MS = 4000
START_MS = 4_000_000_000_000  # beyond the server's own clock, so that nothing expires by it
METERS = (
    Meter("project:p", Counted.REQUESTS, 20),
    Meter("project:p", Counted.TOKENS, 1000),
    Meter("project:p", Counted.DAY_TOKENS, 300, START_MS // 1000 - 100, START_MS // 1000 + 100),
    Meter("project:p", Counted.MONTH_MONEY, 10**15, START_MS // 1000 - 100, START_MS // 1000 + 86400),
)
_PREFIXES = (f"meters{number}" for number in itertools.count())


class RedisTable:
    """The script, at a time of our choosing."""

    def __init__(self, client) -> None:
        self._client = client
        self._prefix = next(_PREFIXES)
        self._sha = client.script_load(COUNT)

    def key(self, meter: Meter) -> str:
        return f"{self._prefix}:{{p}}:{meter.key}"

    def renew(self, report: MeterReport, now_ms: int):
        keys = [self.key(ask.meter) for ask in report.asks]
        for key in keys:
            if 0 < self._client.pexpiretime(key) <= now_ms:  # as the server does by its own clock
                self._client.delete(key)
        values = [f"{self._prefix}:called", report.gateway, report.number, LEASE_MS, now_ms]
        values += [WINDOW_S, AHEAD_S, SPARE_PARTS]
        for ask in report.asks:
            values += arguments_of(ask)
        return grants_of(report, self._client.evalsha(self._sha, len(keys), *keys, *values))

    def forget(self) -> None:
        self._client.delete(*map(self.key, METERS))


@pytest.fixture
def client(shared_redis):  # noqa: F811
    with shared_redis.client() as one:
        yield one


amounts = st.one_of(st.integers(0, 12), st.integers(0, 400))
ages = st.sampled_from([-70, -61, -60, -59, -58, -30, -2, -1, 0, 0, 1, 2, 5])
uses = st.lists(st.tuples(ages, st.integers(-5, 30)), max_size=4, unique_by=lambda use: use[0])
asks = st.lists(
    st.tuples(
        st.sampled_from([*METERS, METERS[3]]),
        amounts,
        amounts,
        st.one_of(st.just(0), amounts),
        uses,
        st.sampled_from(["told", "told", "told", "all", "other"]),
    ),
    unique_by=lambda ask: ask[0].key,
    min_size=1,
)
steps = st.one_of(
    st.tuples(st.just("renew"), st.sampled_from("ab"), asks, st.sampled_from([0, 0, 0, 0, 1, 5])),
    st.tuples(st.just("renew"), st.sampled_from("ab"), asks, st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, 300, 1000, 1000, 2000, 3999, 4000, 4000, 9000, 58_000, -3000])),
    st.tuples(st.sampled_from(["forget", "wait"]), st.just(125_000)),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=30))
def test_both_grant_the_same(client, script):
    """Property tests speak for Redis only as long as this holds."""
    table, other = MeterTable(LEASE_MS / 1000), RedisTable(client)
    now_ms, number, told = START_MS, 0, {}
    for kind, *arguments in script:
        if kind == "wait":
            now_ms += arguments[0]
        elif kind == "forget":
            table.forget()
            other.forget()
        else:
            gateway, asked, is_late = arguments
            number += 1
            report = MeterReport(
                gateway,
                max(1, number - is_late),
                0.0,
                tuple(
                    MeterAsk(
                        meter,
                        spare,
                        wanted,
                        need,
                        {"told": told.get((gateway, meter.key), 0), "all": 0, "other": 1}[base],
                        tuple(
                            (now_ms // 1000 + age if meter.is_sliding else 0, amount)
                            for age, amount in used[: None if meter.is_sliding else 1]
                        ),
                    )
                    for meter, spare, wanted, need, used, base in asked
                ),
            )
            answer = table.renew(report, now_ms)
            assert other.renew(report, now_ms) == answer
            for ask, grant in zip(report.asks, answer.grants, strict=True):
                told[gateway, ask.meter.key] = grant.batch


def test_what_is_counted_leaves_redis_with_its_window(client):
    """Tenants come and go; their counters must not stay."""
    other = RedisTable(client)
    for meter in METERS:
        number = METERS.index(meter) + 1
        other.renew(MeterReport("a", number, 0.0, (MeterAsk(meter, 0, 5, 1, 0, ((START_MS // 1000, 3),)),)), START_MS)
        ends_ms = max(meter.ends_at * 1000, START_MS) + keep_s(meter) * 1000
        assert client.pexpiretime(other.key(meter)) == ends_ms


def test_money_beyond_what_lua_counts_exactly_is_added_exactly(client):
    """A billion dollars in nanodollars is above 2**53; a nanodollar more is still seen."""
    other = RedisTable(client)
    meter = Meter("project:p", Counted.MONTH_MONEY, 4 * 10**18, 1, START_MS)
    for number in (1, 2, 3):
        used = ((0, 10**18 + 1),)
        other.renew(MeterReport("a", number, 0.0, (MeterAsk(meter, 0, 0, 0, number - 1, used),)), START_MS)
    assert int(client.hget(other.key(meter), "0")) == 3 * 10**18 + 3


def test_what_the_dead_held_returns_in_a_lease_though_the_clock_was_set_back(client):
    """By an hour; else their tokens would be refused to the living for as long."""
    table, other = MeterTable(LEASE_MS / 1000), RedisTable(client)
    at_ms, meter = START_MS, METERS[0]

    def renew(gateway, number, need):
        report = MeterReport(gateway, number, 0.0, (MeterAsk(meter, 0, need, need, number - 1, ()),))
        answer = table.renew(report, at_ms)
        assert other.renew(report, at_ms) == answer
        return answer.grants[0]

    assert renew("dead", 1, meter.limit).granted == meter.limit
    at_ms -= 3_600_000
    assert renew("b", 1, meter.limit).granted == 0
    at_ms += LEASE_MS
    assert renew("b", 2, meter.limit).granted == meter.limit


def test_a_clock_that_was_set_back_locks_nobody_out(client):
    """A promoted server whose clock is behind: seconds far ahead are counted as now, and leave a minute later."""
    table, other = MeterTable(LEASE_MS / 1000), RedisTable(client)
    second = START_MS // 1000
    for number, now_ms in enumerate((START_MS, START_MS - 600_000, START_MS - 600_000 + 62_000), 1):
        used = ((second, 7),) if number == 1 else ()
        report = MeterReport("a", number, 0.0, (MeterAsk(METERS[0], 0, 5, 1, number - 1, used),))
        answer = table.renew(report, now_ms)
        assert other.renew(report, now_ms) == answer
        assert answer.grants[0].used == (7 if number < 3 else 0)
