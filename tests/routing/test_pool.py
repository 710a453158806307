"""The pool: legal moves, seats and counters that only leases change, removal, rediscovery."""

from itertools import product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engines.contract import Fault
from policies.lane import Lane
from routing.breaker import Circuit
from routing.decision import RouteDecision
from routing.lease import Lease
from routing.pool import ReplicaPool
from routing.pool_settings import PoolSettings
from routing.replica import MOVES, ROW_TOKENS, ReplicaState
from tests.routing.fleet import Fleet, key_of, spec


def in_state(state: ReplicaState) -> ReplicaPool:
    """A pool whose only replica stands in `state`."""
    pool = ReplicaPool()
    pool.upsert(spec("r1"), 0.0)
    assert pool.move("r1", state)
    return pool


@pytest.mark.parametrize(("start", "goal"), list(product(ReplicaState, ReplicaState)))
def test_the_table_of_moves_is_walked_completely(start, goal):
    """Legal moves happen, illegal ones change nothing, staying is no move."""
    pool = in_state(start)
    is_legal = goal is start or goal in MOVES[start]
    assert pool.can_move("r1", goal) == is_legal
    assert pool.move("r1", goal) == is_legal
    assert pool.get("r1").state is (goal if is_legal else start)


def test_a_failing_probe_does_not_undo_a_drain():
    """Draining is the operator's wish, and health has no say in it."""
    pool = in_state(ReplicaState.DRAINING)
    assert not pool.move("r1", ReplicaState.LOST)
    assert pool.get("r1").state is ReplicaState.DRAINING


def test_every_state_can_be_left():
    """No replica is stuck for ever."""
    assert set(MOVES) == set(ReplicaState)
    assert all(MOVES.values())


def test_unknown_names_move_nowhere():
    """The replica may have been removed meanwhile: no error, no effect."""
    pool = ReplicaPool()
    assert not pool.move("r9", ReplicaState.READY)
    assert not pool.remove("r9")
    assert pool.get("r9") is None


def test_p25_rediscovery_keeps_load_breaker_and_affinity():
    """P25: counters change only when requests begin and end, whatever housekeeping runs."""
    fleet = Fleet(1, seats=32)
    leases = [fleet.dispatch("system", f"question {number}", read=False) for number in range(20)]
    fleet.router.observe_failure(leases[0], Fault.STATUS, fleet.now)
    replica = fleet.pool.get("r1")
    before = (repr(replica), repr(replica.breaker), replica.work_tokens)
    for _ in range(5):
        assert fleet.pool.upsert(spec("r1", seats=32), fleet.now) is replica
        fleet.pool.move("r1", ReplicaState.READY)
        fleet.pool.statistics()
        fleet.route("system", "dry run")
        repr(fleet.pool)
    assert (repr(replica), repr(replica.breaker), replica.work_tokens) == before
    assert replica.num_in_flight == 20
    for lease in leases:
        lease.end()
    assert (replica.num_in_flight, replica.work_tokens, replica.outstanding_tokens) == (0, 0, 0)


@pytest.mark.parametrize("change", [{"generation": 2}, {"url": "http://elsewhere"}, {"model": "n"}])
def test_a_restarted_worker_forgets_its_shadow_and_breaker_and_joins_again(change):
    """A new process holds nothing, and what was known of the old one is no news of it."""
    fleet = Fleet(1)
    lease = fleet.dispatch("system" * 100, "hello")
    for _ in range(3):
        fleet.router.observe_failure(lease, Fault.RESET, fleet.now)
    replica = fleet.pool.upsert(spec("r1", **change), fleet.now)
    assert replica.shadow.hit_bytes(key_of("system" * 100, "hello")) == 0
    assert replica.breaker.circuit(fleet.now) is Circuit.CLOSED
    assert replica.state is ReplicaState.JOINING
    assert replica.num_in_flight == 1
    lease.end()
    assert replica.num_in_flight == 0


def test_attempts_on_the_old_process_teach_nothing_about_the_new():
    """Streams broken by a restart must not open the new worker's breaker or spoil its learned times."""
    fleet = Fleet(1)
    leases = [fleet.dispatch("hello", f"{number}") for number in range(5)]
    decision = fleet.route("hello", "0")
    replica = fleet.pool.upsert(spec("r1", generation=1), fleet.now)
    fresh = (repr(replica.breaker), repr(replica.ttft), replica.confidence.value)
    for lease in leases[:4]:
        fleet.router.observe_failure(lease, Fault.RESET, fleet.now)
    fleet.router.settled(decision, leases[4], now=fleet.now, prompt_tokens=1000, cached_tokens=0, ttft_s=50.0)
    for lease in leases:
        lease.end()
    assert (repr(replica.breaker), repr(replica.ttft), replica.confidence.value) == fresh


def test_a_draining_replica_that_restarts_is_still_draining():
    """The wish outlives the process."""
    pool = in_state(ReplicaState.DRAINING)
    assert pool.upsert(spec("r1", generation=7), 1.0).state is ReplicaState.DRAINING


def test_a_changed_number_of_seats_holds_at_once():
    """An operator's smaller number is not exceeded by new requests; open ones stay."""
    fleet = Fleet(1, seats=4)
    leases = [fleet.dispatch(f"{number}") for number in range(3)]
    fleet.pool.upsert(spec("r1", seats=2), fleet.now)
    assert not fleet.pool.get("r1").has_seat(Lane.INTERACTIVE)
    assert [lease.end() for lease in leases] == [True] * 3


def test_p23_a_removed_replica_is_gone_at_once_and_its_leases_end_harmlessly():
    """P23: also when a new replica takes the name, the old leases never touch it."""
    fleet = Fleet(2)
    old = fleet.hold("r2", 3)
    gone = fleet.pool.get("r2")
    assert fleet.pool.remove("r2")
    assert len(gone.shadow) == 0
    assert all(fleet.route("hello", f"{number}").chosen == "r1" for number in range(50))
    fleet.add("r2")
    assert [lease.end() for lease in old] == [True] * 3
    assert fleet.pool.get("r2").num_in_flight == 0
    assert fleet.pool.statistics().num_leases == 0


def test_p23_churn_of_short_lived_workers_leaves_nothing_behind():
    """P23: 500 workers come and go; the index is as large as before."""
    fleet = Fleet(2)
    for number in range(50):
        fleet.dispatch("session", f"{number}").end()
    before = sum(replica.shadow_nodes for replica in fleet.pool.statistics().replicas)
    for number in range(500):
        fleet.add(f"w{number}")
        fleet.pool.get(f"w{number}").shadow.insert(key_of("session", f"w{number}"), fleet.now)
        fleet.pool.remove(f"w{number}")
    assert sum(replica.shadow_nodes for replica in fleet.pool.statistics().replicas) == before
    assert len(fleet.pool) == 2
    assert [replica.name for replica in fleet.pool.of_model("m")] == ["r1", "r2"]


def test_a_decision_that_went_stale_gives_no_lease():
    """Between deciding and leasing the replica may drain, fill, break or go: route again."""
    fleet = Fleet(1, seats=1)
    decision = fleet.route("hello")
    assert isinstance(decision, RouteDecision)
    lease = fleet.pool.lease(decision, fleet.now)
    assert fleet.pool.lease(decision, fleet.now) is None
    for _ in range(3):
        fleet.router.observe_failure(lease, Fault.CONNECT, fleet.now)
    lease.end()
    assert fleet.pool.lease(decision, fleet.now) is None
    fleet.now += 10.0
    fleet.pool.move("r1", ReplicaState.DRAINING)
    assert fleet.pool.lease(decision, fleet.now) is None
    fleet.pool.remove("r1")
    assert fleet.pool.lease(decision, fleet.now) is None


def test_the_last_seats_are_reserved_for_higher_lanes():
    """Bulk and standard can never take the seats kept for people."""
    fleet = Fleet(1, PoolSettings(reserved_seats={Lane.INTERACTIVE: 2, Lane.STANDARD: 1}), seats=4)
    assert fleet.pool.get("r1").seat_limits == (4, 2, 1)
    replica = fleet.pool.get("r1")
    fleet.dispatch("a", lane=Lane.BULK)
    assert [replica.has_seat(lane) for lane in Lane] == [True, True, False]
    fleet.dispatch("b", lane=Lane.STANDARD)
    assert [replica.has_seat(lane) for lane in Lane] == [True, False, False]
    fleet.dispatch("c")
    fleet.dispatch("d")
    assert [replica.has_seat(lane) for lane in Lane] == [False, False, False]


def test_reserving_everything_leaves_each_lane_one_seat():
    """A one-seat replica still serves bulk when it is idle."""
    fleet = Fleet(1, PoolSettings(reserved_seats={Lane.INTERACTIVE: 9}), seats=1)
    assert fleet.pool.get("r1").seat_limits == (1, 1, 1)
    assert ReplicaPool().upsert(spec("r0", seats=0), 0.0).seat_limits == (0, 0, 0)


def test_models_are_listed_while_they_have_a_replica():
    """The gateway answers 404 for a model nobody serves."""
    pool = ReplicaPool()
    pool.upsert(spec("r1"), 0.0)
    pool.upsert(spec("r2", model="n"), 0.0)
    assert (pool.models(), len(pool), [r.name for r in pool]) == (("m", "n"), 2, ["r1", "r2"])
    pool.remove("r2")
    assert pool.models() == ("m",)


def test_repr_and_statistics_tell_the_truth():
    """What tests and operators read."""
    fleet = Fleet(1, kv_tokens=1000)
    lease = fleet.dispatch("x" * 400, lane=Lane.BULK, read=False)
    assert repr(fleet.pool) == (
        "<ReplicaPool 1 leases, [<Replica r1 ready model=m generation=0 in_flight=0+0+1/16 outstanding_tokens=100 "
        "borders=2>]>"
    )
    assert repr(lease) == "<Lease r1 bulk reading uncached_tokens=100>"
    (row,) = fleet.pool.statistics().replicas
    assert (row.name, row.state, row.in_flight[Lane.BULK], row.shadow_bytes) == ("r1", ReplicaState.READY, 1, 400)
    assert fleet.pool.get("r1").shadow.capacity_bytes == 4000
    assert fleet.pool.expire(before=fleet.now + 1) == 2
    lease.end()
    assert fleet.pool.statistics().num_leases == 0


def test_a_lease_is_ended_once_by_leaving_its_block_whatever_happened():
    """Finished, failed, abandoned and ended twice: the seat comes back exactly once."""
    fleet = Fleet(1)
    replica = fleet.pool.get("r1")
    with pytest.raises(RuntimeError, match="broke"), fleet.dispatch("x" * 400, read=False) as lease:
        assert (replica.outstanding_tokens, replica.work_tokens) == (100, 100 + ROW_TOKENS)
        raise RuntimeError("broke")
    assert lease.is_over
    assert not lease.end()
    lease.prefilled()
    assert (replica.num_in_flight, replica.outstanding_tokens, replica.work_tokens) == (0, 0, 0)


def test_a_read_prompt_is_no_longer_outstanding():
    """While it decodes, a request holds its seat but no longer delays other prompts by its own."""
    fleet = Fleet(1)
    replica = fleet.pool.get("r1")
    with fleet.dispatch("x" * 400, read=False) as lease:
        lease.prefilled()
        lease.prefilled()
        assert (replica.outstanding_tokens, replica.work_tokens, replica.num_in_flight) == (0, ROW_TOKENS, 1)


def test_a_lease_abandoned_as_a_probe_gives_the_place_back():
    """A client that leaves while it was the probe must not leave the replica locked out."""
    fleet = Fleet(1)
    with fleet.dispatch("hello") as lease:
        for _ in range(3):
            fleet.router.observe_failure(lease, Fault.STATUS, fleet.now)
    fleet.now += 2.0
    with fleet.dispatch("hello") as probe:
        assert probe.probe == 1
        assert not fleet.pool.get("r1").breaker.can_try(fleet.now)
    assert fleet.pool.get("r1").breaker.can_try(fleet.now)


class PoolMachine(RuleBasedStateMachine):
    """Requests, faults, discovery, moves and removals in any order; the counters are recounted after each."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(3, PoolSettings(reserved_seats={Lane.INTERACTIVE: 1}), seats=3)
        self.open: list[Lease] = []

    @rule(text=st.sampled_from(["a" * 300, "b" * 3000, "c"]), lane=st.sampled_from(list(Lane)), more=st.integers(0, 3))
    def dispatch(self, text, lane, more):
        """Route and lease, if there is room."""
        decision = self.fleet.route(text, f"{more}", lane=lane)
        if isinstance(decision, RouteDecision):
            lease = self.fleet.pool.lease(decision, self.fleet.now)
            assert lease is not None, "what was just decided can be had"
            self.open.append(lease)

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 50), again=st.booleans())
    def end(self, index, again):
        """End one, perhaps twice."""
        lease = self.open.pop(index % len(self.open))
        assert lease.end()
        assert not (again and lease.end())

    @precondition(lambda self: self.open)
    @rule(index=st.integers(0, 50), fault=st.sampled_from([None, *Fault]))
    def learn(self, index, fault):
        """First token, or a fault."""
        lease = self.open[index % len(self.open)]
        if fault is None:
            lease.prefilled()
        else:
            self.fleet.router.observe_failure(lease, fault, self.fleet.now)

    @rule(name=st.sampled_from(["r1", "r2", "r3"]), generation=st.integers(0, 2), seats=st.integers(0, 4))
    def upsert(self, name, generation, seats):
        """Discovery, with or without a change."""
        self.fleet.pool.upsert(spec(name, generation=generation, seats=seats), self.fleet.now)

    @rule(name=st.sampled_from(["r1", "r2", "r3"]), state=st.sampled_from(list(ReplicaState)))
    def move(self, name, state):
        """Health or an operator."""
        self.fleet.pool.move(name, state)

    @rule(name=st.sampled_from(["r1", "r2", "r3"]))
    def remove(self, name):
        """Gone."""
        self.fleet.pool.remove(name)

    @rule(seconds=st.floats(0.1, 20.0))
    def wait(self, seconds):
        """Time passes."""
        self.fleet.now += seconds

    @invariant()
    def counters_equal_open_leases(self):
        """The truth is the list of open leases, on live and removed replicas alike."""
        assert self.fleet.pool.statistics().num_leases == len(self.open)
        for replica in {*self.fleet.pool, *(lease.replica for lease in self.open)}:
            leases = [lease for lease in self.open if lease.replica is replica]
            reading = sum(lease.uncached_tokens for lease in leases if not lease.is_prefilled)
            assert replica.num_in_flight == sum(replica.in_flight) == len(leases)
            assert replica.outstanding_tokens == reading
            assert replica.work_tokens == reading + ROW_TOKENS * len(leases)

    def teardown(self):
        """Quiescence."""
        for lease in self.open:
            lease.end()
        self.open = []
        self.counters_equal_open_leases()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
