"""Busy is not broken: the breaker over every short history, and its clock."""

from itertools import product

import pytest

from engines.contract import Fault
from routing.breaker import (
    DEFAULT_ASIDE_S,
    MAX_ASIDE_S,
    MAX_FAULTS,
    MAX_OPEN_S,
    OPEN_S,
    PROBE_TIMEOUT_S,
    VERDICTS,
    Breaker,
    Circuit,
    Verdict,
)

EVENTS = {
    "ok": Verdict.FINE,
    "500": VERDICTS[Fault.STATUS],
    "429": VERDICTS[Fault.BACKPRESSURE],
    "timeout": VERDICTS[Fault.TIMEOUT],
    "cancel": Verdict.NEUTRAL,
}
LATER = 1000.0


def fail(breaker: Breaker, now: float, times: int = MAX_FAULTS) -> None:
    """Some faults in a row."""
    for _ in range(times):
        breaker.report(Verdict.FAULT, now, probe=breaker.begin(now))


def attempt(breaker: Breaker, event: str, now: float) -> bool:
    """One attempt if the breaker lets it through; whether it did."""
    if not breaker.can_try(now):
        return False
    breaker.report(EVENTS[event], now, probe=breaker.begin(now), retry_after_s=3.0 if event == "429" else None)
    return True


@pytest.mark.parametrize("gap_s", [0.0, 0.5, 2.5, 5.0])
@pytest.mark.parametrize("num_faults_before", [0, 1, MAX_FAULTS])
def test_p28_no_history_of_four_leaves_a_state_without_exit(gap_s, num_faults_before):
    """P28: whatever happened, waiting lets an attempt through, and one good answer closes the circuit."""
    for history in product(EVENTS, repeat=4):
        breaker, now = Breaker(), 0.0
        fail(breaker, now, num_faults_before)
        for event in history:
            now += gap_s
            attempt(breaker, event, now)
            wait_s = breaker.retry_after_s(now)
            assert (wait_s == 0.0) == breaker.can_try(now), history
            assert breaker.can_try(now + wait_s), history
        now += LATER
        assert attempt(breaker, "ok", now), history
        assert breaker.circuit(now) is Circuit.CLOSED, history


def test_p28_backpressure_and_departures_never_open_the_circuit():
    """P28: a busy replica is left alone for a while, not declared broken."""
    for history in product(["ok", "429", "cancel"], repeat=4):
        breaker, now = Breaker(), 0.0
        for event in history:
            now += 4.0
            assert attempt(breaker, event, now), history
        assert breaker.circuit(now) is Circuit.CLOSED, history


def test_p28_backpressure_leaves_the_count_of_faults_alone():
    """P28: neither a fault nor a recovery: faults before and after it still add up."""
    breaker = Breaker()
    fail(breaker, 0.0, MAX_FAULTS - 1)
    breaker.report(Verdict.BACKPRESSURE, 0.0, retry_after_s=1.0)
    assert breaker.circuit(1.0) is Circuit.CLOSED
    fail(breaker, 1.0, 1)
    assert breaker.circuit(1.0) is Circuit.OPEN


def test_p28_the_latest_of_two_waits_holds():
    """P28: 10 s then 1 s, or 1 s then 10 s: aside for 10."""
    for waits in [(1.0, 10.0), (10.0, 1.0)]:
        breaker = Breaker()
        for wait_s in waits:
            breaker.report(Verdict.BACKPRESSURE, 0.0, retry_after_s=wait_s)
        assert not breaker.can_try(9.9)
        assert breaker.is_aside(9.9)
        assert breaker.retry_after_s(4.0) == 6.0
        assert breaker.can_try(10.0)


@pytest.mark.parametrize(("asked", "kept"), [(None, DEFAULT_ASIDE_S), (-5.0, 0.0), (1e9, MAX_ASIDE_S)])
def test_waits_are_clamped(asked, kept):
    """No replica can set itself aside for ever, and none without a number is hammered."""
    breaker = Breaker()
    breaker.report(Verdict.BACKPRESSURE, 0.0, retry_after_s=asked)
    assert breaker.retry_after_s(0.0) == kept


def test_one_probe_at_a_time_and_its_answer_decides():
    """Half open means one request finds out, not all of them."""
    breaker = Breaker()
    fail(breaker, 0.0)
    assert breaker.circuit(1.0) is Circuit.OPEN
    assert not breaker.can_try(1.0)
    probe = breaker.begin(OPEN_S)
    assert breaker.circuit(OPEN_S) is Circuit.HALF_OPEN
    assert not breaker.can_try(OPEN_S)
    breaker.report(Verdict.FINE, OPEN_S + 1, probe=probe)
    assert breaker.can_try(OPEN_S + 1)
    assert breaker.circuit(OPEN_S + 1) is Circuit.CLOSED


@pytest.mark.parametrize("verdict", [Verdict.BACKPRESSURE, Verdict.NEUTRAL])
def test_p28_a_probe_that_says_nothing_gives_its_place_back(verdict):
    """P28: a 429 or a departing client while half open must not block the next probe."""
    breaker = Breaker()
    fail(breaker, 0.0)
    breaker.report(verdict, OPEN_S, probe=breaker.begin(OPEN_S), retry_after_s=1.0)
    assert breaker.circuit(OPEN_S + 1) is Circuit.HALF_OPEN
    assert breaker.can_try(OPEN_S + 1)


def test_a_probe_without_a_verdict_times_out_and_still_counts_when_it_comes():
    """A long stream neither blocks the next probe nor loses its say."""
    breaker = Breaker()
    fail(breaker, 0.0)
    first = breaker.begin(OPEN_S)
    later = OPEN_S + PROBE_TIMEOUT_S
    assert breaker.can_try(later)
    breaker.begin(later)
    breaker.report(Verdict.FINE, later, probe=first)
    assert breaker.circuit(later) is Circuit.CLOSED


def test_failed_probes_double_the_wait_up_to_a_maximum():
    """A replica that stays broken is asked less often, but never given up."""
    breaker, now, waits = Breaker(), 0.0, []
    fail(breaker, now)
    for _ in range(6):
        waits.append(breaker.retry_after_s(now))
        now += waits[-1]
        fail(breaker, now, 1)
    assert waits == [OPEN_S, 4.0, 8.0, 16.0, MAX_OPEN_S, MAX_OPEN_S]
    now += breaker.retry_after_s(now)
    breaker.report(Verdict.FINE, now, probe=breaker.begin(now))
    fail(breaker, now)
    assert breaker.retry_after_s(now) == OPEN_S


@pytest.mark.parametrize("verdict", [Verdict.FINE, Verdict.FAULT])
def test_attempts_from_before_the_trouble_do_not_move_an_open_circuit(verdict):
    """A slow old answer is no news about now."""
    breaker = Breaker()
    fail(breaker, 0.0)
    before = breaker.retry_after_s(0.5)
    breaker.report(verdict, 0.5)
    assert breaker.retry_after_s(0.5) == before


def test_a_probe_from_before_a_reopening_is_too_old():
    """Two overlapping probes: once one has failed, the other is old news."""
    breaker = Breaker()
    fail(breaker, 0.0)
    old = breaker.begin(OPEN_S)
    now = OPEN_S + PROBE_TIMEOUT_S
    breaker.report(Verdict.FAULT, now, probe=breaker.begin(now))
    breaker.report(Verdict.FINE, now, probe=old)
    assert breaker.circuit(now) is Circuit.OPEN


def test_a_late_fault_of_a_probe_counts_once_the_circuit_is_closed_as_an_ordinary_one():
    """A stream that breaks after another probe has closed the circuit is one fault in a row, not a verdict."""
    breaker = Breaker()
    fail(breaker, 0.0)
    slow = breaker.begin(OPEN_S)
    now = OPEN_S + PROBE_TIMEOUT_S
    breaker.report(Verdict.FINE, now, probe=breaker.begin(now))
    breaker.report(Verdict.FAULT, now, probe=slow)
    assert breaker.circuit(now) is Circuit.CLOSED


def test_every_fault_has_a_verdict_and_the_clients_is_neutral():
    """A new kind of fault must be judged here, and a client's error is never held against a replica."""
    assert set(VERDICTS) == set(Fault)
    assert VERDICTS[Fault.CLIENT] is Verdict.NEUTRAL


def test_repr_tells_the_state():
    """What an operator reads in a dump."""
    breaker = Breaker()
    assert repr(breaker) == "<Breaker closed, 0 faults, aside until 0.0, probe 0>"
    fail(breaker, 0.0)
    assert "open until 2.0" in repr(breaker)
