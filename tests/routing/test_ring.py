"""Rendezvous hashing with bounded load: agreement, spread, small movement, bounds."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.replica import ROW_TOKENS
from routing.ring import LOAD_FACTOR, heaviest, place, weight, work_bounds, works_of
from tests.routing.fleet import Fleet, key_of


def all_works(replicas):
    """All of their work."""
    return works_of(replicas, feels_bulk=True)


def homes(fleet: Fleet, num: int = 800) -> list[str]:
    """The home of each of many sessions."""
    replicas = fleet.pool.of_model("m")
    keys = [key_of("system", f"session {number}") for number in range(num)]
    return [replicas[place(key, replicas, [0] * len(replicas))[0]].name for key in keys]


def test_gateways_that_share_nothing_agree():
    """Homes follow from the prompt and the names alone, not from the order of discovery."""
    one, other = Fleet(0), Fleet(0)
    for name in ["a", "b", "c"]:
        one.add(name)
    for name in ["c", "a", "b"]:
        other.add(name)
    assert homes(one) == homes(other)


def test_sessions_spread_evenly():
    """Each of 8 replicas is home to about an eighth of 800 sessions."""
    counts = Counter(homes(Fleet(8)))
    assert len(counts) == 8
    assert all(70 <= count <= 130 for count in counts.values())


def test_a_replica_that_goes_moves_only_its_own_sessions():
    """The others keep their caches."""
    fleet = Fleet(8)
    before = homes(fleet)
    fleet.pool.remove("r3")
    after = homes(fleet)
    assert all(new == old for old, new in zip(before, after, strict=True) if old != "r3")
    assert "r3" not in after


def test_all_turns_of_a_conversation_have_one_home():
    """Later messages do not move it, and sessions that share a system prompt have homes of their own."""
    long = "system" * 1000
    first, later = key_of(long, "hello"), key_of(long, "hello", "answer", "more")
    assert first.home == later.home != key_of(long, "hi").home
    assert key_of("only").home == key_of("only").hashes[-1]


def test_a_home_with_more_than_its_share_is_passed_over():
    """Bounded load: the prompt goes to the next in its own order, always the same."""
    fleet = Fleet(4)
    replicas, key = fleet.pool.of_model("m"), key_of("system", "hello")
    order = sorted(range(4), key=lambda index: -weight(key.home, replicas[index]))
    fleet.hold(replicas[order[0]].name, 5)
    assert place(key, replicas, all_works(replicas)) == (order[1], order[0])
    assert heaviest(key, replicas) == order[0]


def test_bounds_are_of_the_mean_of_the_others():
    """A hot replica does not raise its own bar; alone, there is no bar."""
    fleet = Fleet(3)
    fleet.hold("r1", 4)
    fleet.hold("r2", 2)
    rows = [4, 2, 0]
    expected = [LOAD_FACTOR * (6 - row) / 2 * ROW_TOKENS + ROW_TOKENS for row in rows]
    assert work_bounds(all_works(fleet.pool.of_model("m"))) == expected
    assert work_bounds(all_works(Fleet(1).pool.of_model("m"))) == [float("inf")]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_there_is_always_a_place_within_its_bound(works, session):
    """Whatever the loads, the least loaded replica is never over its bound."""
    fleet = Fleet(len(works))
    replicas = fleet.pool.of_model("m")
    for replica, work in zip(replicas, works, strict=True):
        replica.work_tokens = work
    bounds = work_bounds(all_works(replicas))
    chosen, _ = place(key_of("s", f"{session}"), replicas, all_works(replicas))
    assert replicas[chosen].work_tokens <= bounds[chosen]
