"""Probes move a replica only by several results in a row, and never against an operator."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.health import BUSY_AT_MOST_S, FAILURES_TO_LOSE, SUCCESSES_TO_RETURN, Probe, ProbeHistory
from routing.replica import MOVES, ReplicaState

BAD = (Probe.FAILED, Probe.NOT_READY)


def run(probes, state):
    """The states after each probe."""
    history, states = ProbeHistory(), []
    for probe in probes:
        state = history.observe(probe, state, 0.0, None) or state
        states.append(state)
    return states


def changes(states, first):
    """How often the state changed."""
    return sum(before is not after for before, after in zip([first, *states], states, strict=False))


@pytest.mark.parametrize("state", [ReplicaState.READY, ReplicaState.LOST])
@pytest.mark.parametrize("bad", BAD)
def test_alternating_results_change_the_state_at_most_once(state, bad):
    """P31: ten minutes of flapping."""
    states = run([Probe.READY, bad] * 300, state)
    assert changes(states, state) <= 1


@pytest.mark.parametrize("state", list(ReplicaState))
def test_every_sequence_of_five_follows_the_rule(state):
    """Walked completely."""
    for probes in product(Probe, repeat=5):
        follows_the_rule(probes, state)


def follows_the_rule(probes, state):
    """The rule, told the long way: what stands in a row at the end decides."""
    now, seen = state, []
    for probe, got in zip(probes, run(probes, state), strict=True):
        seen.append(probe)
        said = [one for one in seen if one is not Probe.BUSY]
        expected = now
        if probe is Probe.READY and now in {ReplicaState.JOINING, ReplicaState.LOST}:
            needed = SUCCESSES_TO_RETURN if now is ReplicaState.LOST else 1
            is_back = len(said) >= needed and all(one is Probe.READY for one in said[-needed:])
            expected = ReplicaState.READY if is_back else now
        elif probe in BAD and now is ReplicaState.READY:
            is_lost = len(said) >= FAILURES_TO_LOSE and all(one in BAD for one in said[-FAILURES_TO_LOSE:])
            expected = ReplicaState.LOST if is_lost else now
        assert got is expected
        assert got is now or got in MOVES[now]
        now = got


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(Probe), max_size=60))
def test_a_draining_replica_stays_so_whatever_its_probes_say(probes):
    """An operator's wish."""
    assert set(run(probes, ReplicaState.DRAINING)) <= {ReplicaState.DRAINING}


def test_busy_alone_changes_nothing():
    """P30: too busy to answer is not dead, and does not count between two failures either."""
    assert set(run([Probe.BUSY] * 1000, ReplicaState.READY)) == {ReplicaState.READY}
    assert (
        run([Probe.FAILED, Probe.BUSY, Probe.FAILED, Probe.BUSY, Probe.FAILED], ReplicaState.READY)[-1]
        is ReplicaState.LOST
    )


def test_one_lost_probe_changes_nothing():
    """Among good ones."""
    assert set(
        run([Probe.READY, Probe.FAILED, Probe.READY, Probe.FAILED, Probe.FAILED, Probe.READY], ReplicaState.READY)
    ) == {ReplicaState.READY}


def test_busy_for_long_without_a_byte_is_a_failure_and_a_byte_starts_the_wait_anew():
    """D17: a stopped process accepts connections for ever."""
    history = ProbeHistory()
    seen = [history.observe(Probe.BUSY, ReplicaState.READY, 10.0 * step, None) for step in range(6)]
    assert seen == [None, None, None, None, None, ReplicaState.LOST]
    assert BUSY_AT_MOST_S == 30.0
    history = ProbeHistory()
    for step in range(100):
        assert history.observe(Probe.BUSY, ReplicaState.READY, 10.0 * step, 10.0 * step - 5) is None
