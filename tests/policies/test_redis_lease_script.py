"""The script in Redis and the rule in Python are one: the same reports at the same times get the same grants."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.lease_table import QUANTA_PER_LEASE, RESERVE_PARTS, LeaseTable
from policies.leases import Ask, Report
from policies.redis_lease_script import RENEW
from policies.redis_leases import grants_of
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures

LEASE_MS = 4000
RESOURCES = ("seat:r", "cap:p:bulk", "batch:{p}:bulk:r")
_PREFIXES = (f"script{number}" for number in itertools.count())


class RedisTable:
    """The script, at a time of our choosing."""

    def __init__(self, client) -> None:
        self._client = client
        self._prefix = next(_PREFIXES)
        self._run = "first"

    def renew(self, report: Report, now_ms: int):
        root = f"{self._prefix}:{{leases}}:"
        keys = [root + "gateways", root + "state", *(f"{root}of:{ask.resource}" for ask in report.asks)]
        values = [root + "contended", report.gateway, report.seq, LEASE_MS, RESERVE_PARTS, QUANTA_PER_LEASE]
        values += [now_ms, self._run]
        for ask in report.asks:
            values += [ask.resource, ask.held, ask.in_use, ask.wanted, ask.limit, int(ask.is_urgent)]
        return grants_of(report, self._client.eval(RENEW, len(keys), *keys, *values))

    def bury(self, gateway: str) -> None:
        self._client.hdel(f"{self._prefix}:{{leases}}:gateways", gateway)

    def forget(self) -> None:
        self._client.flushall()


@pytest.fixture
def client(shared_redis):  # noqa: F811
    with shared_redis.client() as one:
        yield one


counts = st.integers(0, 9)
asks = st.lists(
    st.tuples(st.sampled_from(RESOURCES), counts, counts, counts, st.integers(0, 40), st.booleans()),
    unique_by=lambda ask: ask[0],
)
steps = st.one_of(
    st.tuples(st.just("renew"), st.sampled_from("abcd"), asks, st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([1, 249, 250, 1000, 3999, 4000, 4001, -1, -5000, -90_000_000])),
    st.tuples(st.just("bury"), st.sampled_from("abcd")),
    st.tuples(st.just("forget")),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=40))
def test_both_grant_the_same(client, script):
    """Simulation and property tests speak for Redis only as long as this holds."""
    table, other = LeaseTable(LEASE_MS / 1000), RedisTable(client)
    now_ms, seq = 10_000_000_000, 0
    for kind, *arguments in [("renew", "a", [], False), ("wait", LEASE_MS - 1), *script]:
        if kind == "wait":
            now_ms += arguments[0]
        elif kind == "bury":
            table.bury(arguments[0])
            other.bury(arguments[0])
        elif kind == "forget":
            table.forget()
            other.forget()
        else:
            gateway, asked, is_late = arguments
            seq += 1
            told = tuple(
                Ask(name, max(held, in_use), in_use, wanted, limit, is_urgent)
                for name, held, in_use, wanted, limit, is_urgent in asked
            )
            report = Report(gateway, 0, max(1, seq - 5) if is_late else seq, 0.0, told)
            assert other.renew(report, now_ms) == table.renew(report, now_ms / 1000)


def test_a_changed_server_run_recovers_first(client):
    """A restarted or promoted server may remember less than was granted, so it grants nothing for a lease."""
    other = RedisTable(client)
    ask = (Ask("seat:r", 0, 0, 3, 3),)
    assert other.renew(Report("a", 0, 1, 0.0, ask), 1000).is_recovering
    assert other.renew(Report("a", 0, 2, 0.0, ask), 1000 + LEASE_MS - 1).is_recovering
    assert other.renew(Report("a", 0, 3, 0.0, ask), 1000 + LEASE_MS).allowed == (3,)
    other._run = "second"
    held = (Ask("seat:r", 3, 2, 3, 3),)
    assert other.renew(Report("a", 0, 4, 0.0, held), 6000).allowed == (3,)
    newcomer = other.renew(Report("b", 0, 1, 0.0, ask), 6001)
    assert newcomer.is_recovering
    assert newcomer.allowed == (0,)


def test_a_clock_that_is_set_back_neither_breaks_nor_stops_the_leases(client):
    """Of a server: by a day. What the dead held returns a lease later, and nobody waits for the clock to catch up."""
    table, other = LeaseTable(LEASE_MS / 1000), RedisTable(client)
    ask, at_ms, seq = (Ask("seat:r", 0, 0, 3, 3),), 10_000_000_000, 0

    def renew(gateway, asks):
        nonlocal seq
        seq += 1
        report = Report(gateway, 0, seq, 0.0, asks)
        found = other.renew(report, at_ms)
        assert found == table.renew(report, at_ms / 1000)
        return found

    renew("dead", ask)
    at_ms += LEASE_MS - 1
    renew("b", ())
    renew("dead", ask)
    at_ms += 1
    assert renew("dead", ask).allowed == (3,)
    at_ms -= 86_400_000
    assert renew("b", ask).allowed == (0,)
    for _ in range(4):
        at_ms += LEASE_MS // 4
        found = renew("b", ask)
    assert (found.allowed, found.num_gateways) == ((3,), 1)


def test_what_nobody_holds_leaves_nothing_in_redis(client):
    """Resources come and go; their keys must not stay."""
    other = RedisTable(client)
    other.renew(Report("a", 0, 1, 0.0, (Ask("seat:r", 1, 1, 1, 3),)), 1000)
    other.renew(Report("a", 0, 2, 0.0, (Ask("seat:r", 0, 0, 0, 3),)), 1001)
    kept = client.keys(f"{other._prefix}:*")
    assert sorted(key.rpartition(b":")[2] for key in kept) == [b"gateways", b"state"]
    other.renew(Report("a", 0, 3, 0.0, (Ask("seat:r", 1, 1, 1, 3),)), 1002)
    assert 0 < client.pttl(f"{other._prefix}:{{leases}}:of:seat:r") <= 2 * LEASE_MS
