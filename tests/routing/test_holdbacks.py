"""Ejection and slow start in a pool: who gets requests, and that nobody is ever stranded."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engines.contract import Fault
from policies.lane import Lane
from routing.decision import Full, RouteDecision
from routing.filters import Rejection
from routing.outliers import Because, OutlierSettings
from routing.pool_settings import PoolSettings
from routing.query import RouteQuery
from routing.replica import ReplicaState
from routing.slow_start import Came, SlowStartSettings, Start
from tests.routing.fleet import Fleet, key_of, spec


def query(text, **fields):
    """A request for the fleet's model."""
    return RouteQuery("m", key_of(text), Lane.INTERACTIVE, "p", **fields)


def worked(fleet, name, attempts=30, fault=None):
    """Attempts at this replica that ended well, or in a fault."""
    others = frozenset(one.name for one in fleet.pool if one.name != name)
    for number in range(attempts):
        fleet.now += 0.05
        decision = fleet.router.route(query(f"{name} {number}", excluded=others), fleet.now)
        assert isinstance(decision, RouteDecision)
        with fleet.pool.lease(decision, fleet.now) as lease:
            if fault is not None and number % 3:
                fleet.router.observe_failure(lease, fault, fleet.now)
                fleet.pool.get(name).breaker.is_open = False  # what is asked here is not the breaker's
            else:
                fleet.router.settled(decision, lease, now=fleet.now)


def ejected_fleet(num=3):
    """A fleet of which r1 was ejected just now."""
    fleet = Fleet(num)
    for number in range(2, num + 1):
        worked(fleet, f"r{number}")
    worked(fleet, "r1", fault=Fault.STATUS)
    return fleet


def test_an_outlier_gets_nothing_until_its_time_is_over_and_then_little():
    """The receipt of every decision says why; afterwards it starts slowly with nothing on its count."""
    fleet = ejected_fleet()
    decision = fleet.router.route(query("x"), fleet.now)
    assert dict(decision.filtered) == {"r1": Rejection.EJECTED}
    assert fleet.pool.holdbacks.told(fleet.pool.get("r1"), fleet.now) == {
        "kind": "ejected", "because": "failures", "share": 0.0, "left_s": pytest.approx(15.0, abs=1.0),
    }  # fmt: skip
    fleet.now += 15.0
    assert not fleet.router.route(query("x"), fleet.now).filtered
    assert fleet.pool.holdbacks.told(fleet.pool.get("r1"), fleet.now)["because"] == "ejected"
    assert fleet.pool.get("r1").breaker.tally.num_faults == 0
    fleet.now += 15.0
    assert fleet.pool.holdbacks.share("r1", fleet.now) == 1.0
    assert not fleet.pool.holdbacks


@pytest.mark.parametrize("fault", [Fault.BACKPRESSURE, Fault.CLIENT, Fault.STALE, Fault.UNSERVED])
def test_busy_replicas_and_clients_errors_eject_nobody(fault):
    """P28: they say nothing of the engine."""
    fleet = Fleet(3)
    for name in ("r2", "r3"):
        worked(fleet, name)
    for number in range(60):
        decision = fleet.router.route(query(f"{number}", excluded={"r2", "r3"}), fleet.now)
        with fleet.pool.lease(decision, fleet.now) as lease:
            fleet.router.observe_failure(lease, fault, fleet.now, retry_after_s=0.0)
    assert not fleet.pool.holdbacks


def test_of_a_pair_nobody_is_ejected_and_of_three_one():
    """The rest would have to carry all."""
    assert not ejected_fleet(2).pool.holdbacks
    fleet = ejected_fleet(3)
    fleet.now += 2.0
    worked(fleet, "r2", fault=Fault.STATUS)
    assert [one.name for one in fleet.pool if fleet.pool.holdbacks.is_ejected(one.name)] == ["r1"]


def test_lost_replicas_count_in_what_may_be_out():
    """A pool that has lost a part of itself does not leave out another."""
    fleet = Fleet(4)
    for name in ("r2", "r3"):
        worked(fleet, name)
    fleet.pool.move("r4", ReplicaState.LOST)
    worked(fleet, "r1", fault=Fault.STATUS)
    assert not fleet.pool.holdbacks


def test_an_ejected_replica_is_better_than_none():
    """Where the others are lost, or were tried, it is asked."""
    fleet = ejected_fleet()
    for name in ("r2", "r3"):
        fleet.pool.move(name, ReplicaState.LOST)
    assert fleet.router.route(query("x"), fleet.now).chosen == "r1"
    fleet = ejected_fleet()
    assert fleet.router.route(query("x", excluded={"r2", "r3"}), fleet.now).chosen == "r1"


def test_who_starts_slowly_is_waited_for_only_where_others_serve():
    """Of full replicas and one at its bound a seat is waited for; of that one alone it is taken."""
    fleet = Fleet(2, seats=16)
    for name in ("r1", "r2"):
        worked(fleet, name, attempts=1)
    fleet.pool.move("r2", ReplicaState.LOST, fleet.now)
    fleet.pool.move("r2", ReplicaState.READY, fleet.now)
    leases = [fleet.pool.lease(fleet.router.route(query(f"{n}"), fleet.now), fleet.now) for n in range(17)]
    assert Counter(lease.replica.name for lease in leases) == {"r1": 16, "r2": 1}
    full = fleet.router.route(query("x"), fleet.now)
    assert isinstance(full, Full)
    assert dict(full.filtered) == {"r1": Rejection.NO_SEAT, "r2": Rejection.STARTING}
    assert full.num_replicas == 2
    fleet.now += 7.5
    assert fleet.router.route(query("x"), fleet.now).chosen == "r2"
    fleet.now -= 7.5
    fleet.pool.move("r1", ReplicaState.LOST)
    assert fleet.router.route(query("x"), fleet.now).chosen == "r2"


def test_the_gateways_own_start_is_nobodys_slow_start():
    """Before anybody has worked, all caches are as cold."""
    fleet = Fleet(2)
    for name in ("r3", "r4"):
        fleet.pool.upsert(spec(name), fleet.now)
        fleet.pool.move(name, ReplicaState.READY, fleet.now)
    assert not fleet.pool.holdbacks
    worked(fleet, "r1", attempts=1)
    fleet.pool.upsert(spec("r5"), fleet.now)
    fleet.pool.move("r5", ReplicaState.READY, fleet.now)
    assert fleet.pool.holdbacks.told(fleet.pool.get("r5"), fleet.now)["because"] == "joined"


@pytest.mark.parametrize("came", ["restarted", "resumed", "removed"])
def test_another_process_starts_slowly_and_an_operators_pause_is_none(came):
    """Who was drained and resumed still has its cache; who is gone is forgotten."""
    fleet = ejected_fleet()
    if came == "restarted":
        fleet.pool.upsert(spec("r1", generation=2), fleet.now)
        fleet.pool.move("r1", ReplicaState.READY, fleet.now)
        assert fleet.pool.holdbacks.told(fleet.pool.get("r1"), fleet.now)["because"] == "joined"
    elif came == "removed":
        fleet.pool.remove("r1")
        assert not fleet.pool.holdbacks
    else:
        fleet.pool.move("r2", ReplicaState.DRAINING, fleet.now)
        fleet.pool.move("r2", ReplicaState.READY, fleet.now)
        assert fleet.pool.holdbacks.told(fleet.pool.get("r2"), fleet.now) is None


def test_a_breaker_that_closes_begins_a_slow_start():
    """One good probe does not prove that it can take everything."""
    fleet = Fleet(2)
    for name in ("r1", "r2"):
        worked(fleet, name, attempts=1)
    for number in range(3):
        decision = fleet.router.route(query(f"{number}", excluded={"r2"}), fleet.now)
        with fleet.pool.lease(decision, fleet.now) as lease:
            fleet.router.observe_failure(lease, Fault.RESET, fleet.now)
    assert fleet.pool.get("r1").breaker.is_open
    fleet.now += 2.0
    worked(fleet, "r1", attempts=1)
    assert fleet.pool.holdbacks.told(fleet.pool.get("r1"), fleet.now)["because"] == "failed"


def test_answers_far_later_than_predicted_eject_once_the_prediction_is_learned():
    """Before that nobody can say what late is."""
    fleet = Fleet(3)
    for name in ("r1", "r2", "r3"):
        fleet.pool.get(name).ttft.unlearned = 0
        worked(fleet, name, attempts=30)
    held = fleet.pool.lease(fleet.router.route(query("x", excluded={"r2", "r3"}), fleet.now), fleet.now)
    for _ in range(30):
        fleet.now += 0.1
        fleet.pool.note_late(held, fleet.now)
    held.end()
    assert fleet.pool.holdbacks.told(fleet.pool.get("r1"), fleet.now)["because"] == "late"
    assert fleet.pool.holdbacks.num_ejected == {("m", Because.LATE): 1}
    fleet.pool.holdbacks.configure(OutlierSettings(max_share=0.0), SlowStartSettings(0.0))
    assert not fleet.pool.holdbacks


def test_settings_of_nothing_hold_nobody_back():
    """Both can be switched off."""
    fleet = Fleet(3, PoolSettings(outliers=OutlierSettings(max_share=0.0), slow_start=SlowStartSettings(0.0)))
    for name in ("r2", "r3"):
        worked(fleet, name)
    worked(fleet, "r1", fault=Fault.STATUS)
    fleet.pool.move("r2", ReplicaState.LOST, fleet.now)
    fleet.pool.move("r2", ReplicaState.READY, fleet.now)
    assert not fleet.pool.holdbacks
    assert Start(Came.JOINED, 0.0).share(SlowStartSettings(0.0), 0.0) == 1.0


class HeldPool(RuleBasedStateMachine):
    """Any sequence of failures, answers, moves and waits over four replicas."""

    def __init__(self):
        super().__init__()
        self.fleet = Fleet(4, seats=4)

    @rule(name=st.sampled_from(["r1", "r2", "r3", "r4"]), number=st.integers(1, 25), fails=st.booleans())
    def attempts(self, name, number, fails):
        """Some attempts there end well, or badly."""
        others = frozenset(one.name for one in self.fleet.pool if one.name != name)
        for each in range(number):
            decision = self.fleet.router.route(query(f"{each}", excluded=others), self.fleet.now)
            if not isinstance(decision, RouteDecision):
                return
            with self.fleet.pool.lease(decision, self.fleet.now) as lease:
                if fails and each % 3:
                    self.fleet.router.observe_failure(lease, Fault.RESET, self.fleet.now)
                else:
                    self.fleet.router.settled(decision, lease, now=self.fleet.now)

    @rule(name=st.sampled_from(["r1", "r2"]), state=st.sampled_from(ReplicaState))
    def moves(self, name, state):
        """Health or an operator moves one."""
        self.fleet.pool.move(name, state, self.fleet.now)

    @rule(name=st.sampled_from(["r1", "r3"]), generation=st.integers(0, 3))
    def restarts(self, name, generation):
        """Perhaps another process."""
        self.fleet.pool.upsert(spec(name, seats=4, generation=generation), self.fleet.now)

    @rule(seconds=st.floats(0.1, 40.0))
    def waits(self, seconds):
        """Time passes."""
        self.fleet.now += seconds

    @invariant()
    def no_more_are_ejected_than_may_be_and_nobody_is_stranded(self):
        """One of four at most; and an idle replica that could serve without any of this is found."""
        pool, now = self.fleet.pool, self.fleet.now
        pool.holdbacks.refresh(now)
        assert sum(pool.holdbacks.is_ejected(one.name) for one in pool) <= 1
        could = [one for one in pool if one.state is ReplicaState.READY and one.breaker.can_try(now)]
        assert isinstance(self.fleet.router.route(query("any"), now), RouteDecision) == bool(could)
        for one in pool:
            assert 0.0 <= pool.holdbacks.share(one.name, now) <= 1.0

    @invariant()
    def all_end(self):
        """Whatever is held back now is not for ever."""
        for one in self.fleet.pool:
            told = self.fleet.pool.holdbacks.told(one, self.fleet.now)
            assert told is None or told["left_s"] <= 300.0


HeldPool.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestHeldPool = HeldPool.TestCase
