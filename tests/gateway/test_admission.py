"""Waiting for a seat: order, bounds, refusals, and that whoever leaves, however, leaves nothing behind."""

import asyncio
import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engines.contract import Fault
from gateway import admission
from gateway.admission import Dispatch, NoTurn
from gateway.errors import Refused
from gateway.model_queue import Waiting as Waiting_
from gateway.outcome import Outcome
from gateway.settings import LanesSection
from policies.entry import Entry
from policies.lane import Lane
from routing.decision import NoReplica, RouteDecision
from routing.pool import PoolSettings
from routing.replica import ReplicaState
from tests.routing.fleet import Fleet
from tests.scripted_engine import PATIENCE_S, within_patience

LONG_S = 1000.0


class Waiting:
    """A dispatch over a small fleet, and requests that take turns in it. `order`: names in the order of their turns."""

    def __init__(self, replicas=1, seats=1, pool_settings=None, **lanes):
        self.fleet = Fleet(replicas, pool_settings, seats=seats)
        self.dispatch = Dispatch(self.fleet.router, LanesSection.model_validate(lanes), lambda: self.fleet.now)
        self.order = []
        self.tasks = {}

    def enter(self, name, lane=Lane.INTERACTIVE, max_wait_s=LONG_S, excluded=()):
        """Start a request that keeps its turn until cancelled or released."""
        query = self.fleet.query(name, lane=lane, excluded=excluded)
        has_turn, done = asyncio.Event(), asyncio.Event()
        task = asyncio.ensure_future(self._take_turn(name, query, max_wait_s, has_turn, done))
        self.tasks[name] = task
        task.query, task.has_turn, task.done_with_it = query, has_turn, done
        return task

    async def _take_turn(self, name, query, max_wait_s, has_turn, done):
        async with self.dispatch.turn(entry_of(query, self.fleet.now + max_wait_s)) as turn:
            self.order.append(name)
            has_turn.set()
            await done.wait()
            return turn

    async def release(self, name):
        """The request ends."""
        self.tasks[name].done_with_it.set()
        await self.tasks[name]

    @property
    def held(self):
        """(leases, requests waiting)."""
        return self.fleet.pool.statistics().num_leases, self.dispatch.num_waiting

    async def empty(self):
        """Cancel everybody; nothing may be held then."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert self.held == (0, 0)
        assert self.dispatch.depths() == []


def entry_of(query, deadline=float("inf"), tenant="project"):
    """The request as the queue sees it."""
    return Entry(tenant, query.lane, Waiting_(query), deadline=deadline)


async def settle():
    """Let everything that is due happen."""
    for _ in range(8):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def waiting(**options):
    """A dispatch that must be empty in the end."""
    one = Waiting(**options)
    try:
        yield one
    finally:
        await one.empty()


async def refusal_of(task):
    """The problem that a request was refused with."""
    with pytest.raises(Refused) as caught:
        await within_patience(task)
    return caught.value.problem


async def test_a_free_seat_is_given_at_once():
    """Without a queue, a future or a timer."""
    async with waiting() as one:
        turn = one.dispatch.enter_nowait(one.fleet.query("a"), one.fleet.now)
        assert (turn.decision.chosen, turn.queued_s) == ("r1", 0.0)
        assert one.held == (1, 0)
        turn.lease.end()


async def test_a_lane_is_served_first_come_first_served():
    """And the wait is told."""
    async with waiting() as one:
        for name in "abcd":
            one.enter(name)
            await settle()
        assert one.held == (1, 3)
        for name in "abcd":
            one.fleet.now += 1.5
            await one.release(name)
            await settle()
        assert one.order == list("abcd")
        assert one.tasks["c"].result().queued_s == 3.0


async def test_lanes_are_served_strictly_in_order():
    """However long a lower one has waited."""
    async with waiting() as one:
        one.enter("first")
        for name, lane in [("b1", Lane.BULK), ("s1", Lane.STANDARD), ("b2", Lane.BULK), ("i1", Lane.INTERACTIVE)]:
            one.enter(name, lane)
        await settle()
        for name in ("first", "i1", "s1", "b1", "b2"):
            await one.release(name)
            await settle()
        assert one.order == ["first", "i1", "s1", "b1", "b2"]


async def test_a_newcomer_does_not_overtake_its_lane():
    """A seat that no event announced belongs to whoever waits longest."""
    async with waiting(replicas=2) as one:
        assert one.fleet.pool.move("r2", ReplicaState.DRAINING)
        for name in "ab":
            one.enter(name)
        await settle()
        assert one.fleet.pool.move("r2", ReplicaState.READY)  # nobody wakes the dispatch
        one.enter("c")
        await settle()
        assert "c" not in one.order
        one.dispatch.wake()
        await settle()
        assert one.order == ["a", "b"]


async def test_a_newcomer_of_a_lower_lane_takes_only_what_higher_lanes_leave():
    """Bulk must not slip in through a seat that a person waits for."""
    async with waiting(replicas=2) as one:
        assert one.fleet.pool.move("r2", ReplicaState.DRAINING)
        for name in "ab":
            one.enter(name)
        await settle()
        assert one.fleet.pool.move("r2", ReplicaState.READY)
        one.enter("bulk", Lane.BULK)
        await settle()
        assert one.order == ["a", "b"]
        await one.release("a")
        await settle()
        assert one.order == ["a", "b", "bulk"]


async def test_who_comes_while_a_turn_is_on_its_way_does_not_wait_for_a_free_seat():
    """The only one waiting has its turn already, though its task has not run."""
    async with waiting(seats=2) as one:
        for name in "ab":
            one.enter(name)
        one.enter("c")
        await settle()
        turns = [one.tasks[name] for name in "ab"]
        for turn in turns:
            turn.cancel()
        await asyncio.wait(turns)
        late = one.fleet.query("late")
        turn = one.dispatch.enter_nowait(late, one.fleet.now)
        assert turn is not None
        turn.lease.end()


async def test_reserved_seats_are_not_given_to_lower_lanes():
    """P13: bulk never occupies the reserve, also while it waits."""
    async with waiting(seats=3, pool_settings=PoolSettings({Lane.INTERACTIVE: 1})) as one:
        for number in range(5):
            one.enter(f"bulk{number}", Lane.BULK)
        await settle()
        assert one.held == (2, 3)
        one.enter("person")
        await settle()
        assert one.order[-1] == "person"
        assert one.held == (3, 3)


async def test_a_full_lane_refuses_and_leaves_nothing():
    """The queue's bound, reached; other lanes have room."""
    async with waiting(interactive={"queue": 2}) as one:
        for name in "abc":
            one.enter(name)
        await settle()
        problem = await refusal_of(one.enter("d"))
        assert (problem.status, problem.code, problem.outcome) == (429, "queue_full", Outcome.REFUSED)
        assert problem.retry_after_s >= 1
        assert one.held == (1, 2)
        one.enter("e", Lane.BULK)
        await settle()
        assert one.held == (1, 3)


async def test_a_lane_without_a_queue_serves_or_refuses():
    """`queue = 0`."""
    async with waiting(interactive={"queue": 0}) as one:
        one.enter("a")
        await settle()
        assert (await refusal_of(one.enter("b"))).code == "queue_full"


async def test_who_waits_too_long_is_refused():
    """Evicted from the queue, with 503."""
    async with waiting() as one:
        one.enter("a")
        await settle()
        problem = await refusal_of(one.enter("b", max_wait_s=0.01))
        assert (problem.status, problem.code, problem.outcome) == (503, "queue_timeout", Outcome.SHED)
        assert one.held == (1, 0)


async def test_a_turn_that_comes_in_the_moment_of_the_timeout_is_given_back():
    """And goes to the next one at once."""
    async with waiting() as one:
        one.enter("a")
        await settle()
        late = one.enter("late", max_wait_s=0.01)
        one.enter("next")
        await settle()
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.011
        while loop.time() < end:  # the loop must not run meanwhile: the timeout and the grant fall into its next turn
            pass
        one.tasks["a"].cancel()
        assert (await refusal_of(late)).code == "queue_timeout"
        await settle()
        assert one.order == ["a", "next"]
        assert one.held == (1, 0)


async def test_no_replica_is_told_at_once():
    """There is nothing to wait for."""
    async with waiting(replicas=0) as one:
        problem = await refusal_of(one.enter("a"))
        assert (problem.status, problem.code, problem.retry_after_s) == (503, "no_replica_unknown_model", 1)


async def test_losing_the_last_replica_refuses_those_who_wait():
    """Nobody waits for what will not come."""
    async with waiting() as one:
        for name in "abc":
            one.enter(name)
        await settle()
        one.fleet.pool.move("r1", ReplicaState.LOST)
        one.dispatch.wake()
        for name in "bc":
            problem = await refusal_of(one.tasks[name])
            assert (problem.code, problem.retry_after_s) == ("no_replica_none_ready", 5)
        assert one.held == (1, 0)


async def test_a_breakers_wait_is_passed_on():
    """P19 (d): every replica asked for a wait of 12 s."""
    async with waiting() as one:
        lease = one.fleet.dispatch("x")
        one.fleet.router.observe_failure(lease, Fault.BACKPRESSURE, one.fleet.now, retry_after_s=12)
        lease.end()
        problem = await refusal_of(one.enter("a"))
        assert (problem.code, problem.retry_after_s) == ("no_replica_busy", 12)


def test_no_turn_keeps_the_reason():
    """For the record's `reason`."""
    fleet = Fleet(0)
    absence = fleet.route("a")
    assert isinstance(absence, NoReplica)
    assert NoTurn(absence).problem.outcome is Outcome.SHED


async def test_cancelled_before_it_began():
    """Its task never ran."""
    async with waiting() as one:
        one.enter("a").cancel()
        await settle()
        assert one.held == (0, 0)


async def test_cancelled_while_it_waits():
    """Those behind it move up."""
    async with waiting() as one:
        for name in "abc":
            one.enter(name)
        await settle()
        one.tasks["b"].cancel()
        await settle()
        assert one.held == (1, 1)
        await one.release("a")
        await settle()
        assert one.order == ["a", "c"]


async def test_cancelled_in_the_turn_of_the_loop_in_which_it_was_granted():
    """The seat is given back and goes to the next one without waiting for another event."""
    async with waiting() as one:
        async with one.dispatch.turn(one.fleet.query("a"), LONG_S):
            for name in "bc":
                one.enter(name)
            await settle()
        assert one.held == (1, 2), "granted, but its task has not run yet"
        one.tasks["b"].cancel()
        await settle()
        assert one.tasks["b"].cancelled()
        assert one.order == ["c"]
        assert one.held == (1, 0)


async def test_closing_in_the_turn_of_the_loop_in_which_it_was_granted():
    """Who was granted a turn has it."""
    async with waiting() as one:
        async with one.dispatch.turn(one.fleet.query("a"), LONG_S):
            one.enter("b")
            await settle()
        one.dispatch.close()
        await settle()
        assert one.order == ["b"]


async def test_cancelled_while_it_holds_its_turn():
    """The next one has it at once."""
    async with waiting() as one:
        for name in "ab":
            one.enter(name)
        await settle()
        one.tasks["a"].cancel()
        await settle()
        assert one.order == ["a", "b"]


async def test_a_failure_inside_the_turn_gives_it_back():
    """Whatever happened."""
    async with waiting() as one:
        with pytest.raises(RuntimeError):
            async with one.dispatch.turn(one.fleet.query("a"), LONG_S):
                raise RuntimeError("a bug")
        assert one.held == (0, 0)


async def test_leaving_twice_is_harmless():
    """A lease is ended once."""
    async with waiting() as one:
        holder = one.dispatch.turn(one.fleet.query("a"), LONG_S)
        turn = await holder.__aenter__()
        turn.lease.end()
        await holder.__aexit__(None, None, None)
        await holder.__aexit__(None, None, None)
        assert one.held == (0, 0)


async def test_closing_refuses_those_who_wait_and_those_who_come():
    """Whoever has a turn keeps it."""
    async with waiting() as one:
        for name, lane in [("a", Lane.INTERACTIVE), ("b", Lane.INTERACTIVE), ("c", Lane.BULK)]:
            one.enter(name, lane)
        await settle()
        one.dispatch.close()
        one.dispatch.close()
        for task in (one.tasks["b"], one.tasks["c"], one.enter("d")):
            problem = await refusal_of(task)
            assert (problem.status, problem.code, problem.outcome) == (503, "stopping", Outcome.STOPPED)
        assert one.held == (1, 0)
        await one.release("a")


async def test_what_no_event_announces_is_found_by_looking_again(monkeypatch):
    """A seat that became free without a word, such as by the end of a breaker's time."""
    monkeypatch.setattr(admission, "RECHECK_S", 0.001)
    async with waiting(replicas=2) as one:
        one.fleet.pool.move("r2", ReplicaState.DRAINING)
        for name in "ab":
            one.enter(name)
        await settle()
        one.fleet.pool.move("r2", ReplicaState.READY)

        async with asyncio.timeout(PATIENCE_S):
            await one.tasks["b"].has_turn.wait()


async def test_a_retry_waits_for_another_replica_than_the_one_that_failed():
    """Excluded replicas are no seats for it; the lane behind it is not held up for ever."""
    async with waiting(replicas=2) as one:
        one.enter("a", excluded=["r2"])
        one.enter("b", excluded=["r1"])
        await settle()
        one.enter("retry", excluded=["r1"])
        await settle()
        await one.release("a")
        await settle()
        assert "retry" not in one.order
        await one.release("b")
        await settle()
        assert one.tasks["retry"].done() is False
        assert one.order == ["a", "b", "retry"]


async def test_a_place_counts_from_one_and_ends_with_the_turn():
    """What a waiting stream is told."""
    async with waiting() as one:
        for name in "abc":
            one.enter(name)
            await settle()
        assert one.dispatch.place_of(one.tasks["a"].query) is None
        assert [one.dispatch.place_of(one.tasks[name].query)[0] for name in "bc"] == [1, 2]
        await one.release("a")
        await settle()
        assert one.dispatch.place_of(one.tasks["b"].query) is None
        assert one.dispatch.place_of(one.tasks["c"].query)[0] == 1


async def test_the_estimate_learns_from_the_gaps_between_turns():
    """Not from the quiet hours before anybody waited."""
    async with waiting() as one:
        one.fleet.now = 50_000.0
        for number in range(30):
            one.enter(str(number))
        await settle()
        for number in range(28):
            one.fleet.now += 2.0
            await one.release(str(number))
            await settle()
            if number == 0:
                assert one.dispatch.place_of(one.tasks["29"].query)[1] < 28 * 2.0
        assert one.dispatch.place_of(one.tasks["29"].query)[1] == pytest.approx(2.0, rel=0.05)


async def test_depths_name_every_queue_in_use():
    """For the admin plane and the metrics."""
    async with waiting() as one:
        for name, lane in [("a", Lane.BULK), ("b", Lane.BULK), ("c", Lane.BULK), ("d", Lane.STANDARD)]:
            one.enter(name, lane)
        await settle()
        assert sorted((model, lane.value, depth) for model, lane, depth in one.dispatch.depths()) == [
            ("m", "bulk", 2),
            ("m", "standard", 1),
        ]


class DispatchMachine(RuleBasedStateMachine):
    """Requests come, wait, are served, end and leave in any order, also within one turn of the loop."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.one = Waiting(
            replicas=2, seats=2, pool_settings=PoolSettings({Lane.INTERACTIVE: 1}), standard={"queue": 3}
        )
        self.holding = set()
        self.count = 0

    def run_once(self):
        """One turn of the loop."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def run_dry(self):
        """As many turns as it takes until nothing more happens by itself."""
        for _ in range(12):
            self.run_once()

    async def _live(self, name, query, done):
        async with self.one.dispatch.turn(query, LONG_S):
            self.holding.add(name)
            try:
                await done.wait()
            finally:
                self.holding.discard(name)

    @rule(lane=st.sampled_from(Lane), excluded=st.sampled_from([(), (), ("r1",)]))
    def comes(self, lane, excluded):
        """A request arrives."""
        self.count += 1
        query = self.one.fleet.query(f"text {self.count}", lane=lane, excluded=excluded)
        done = asyncio.Event()
        task = self.loop.create_task(self._live(self.count, query, done))
        task.done_with_it, task.query = done, query
        self.one.tasks[self.count] = task

    @precondition(lambda self: self.one.tasks)
    @rule(data=st.data())
    def ends(self, data):
        """A request that may or may not have its turn yet will end as soon as it has."""
        self.one.tasks[data.draw(st.sampled_from(sorted(self.one.tasks)))].done_with_it.set()

    @precondition(lambda self: self.one.tasks)
    @rule(data=st.data())
    def leaves(self, data):
        """A client leaves, wherever its request is."""
        self.one.tasks[data.draw(st.sampled_from(sorted(self.one.tasks)))].cancel()

    @rule(name=st.sampled_from(["r1", "r2"]), state=st.sampled_from(ReplicaState))
    def moves(self, name, state):
        """A replica changes its state."""
        self.one.fleet.pool.move(name, state)
        self.loop.call_soon(self.one.dispatch.wake)

    @rule()
    def restarts(self):
        """A replica is removed and comes back while its leases are open."""
        self.one.fleet.pool.remove("r1")
        self.one.fleet.add("r1", seats=2)
        self.loop.call_soon(self.one.dispatch.wake)

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds):
        """The clock moves."""
        self.one.fleet.now += seconds

    @rule()
    def one_turn(self):
        """The loop runs once: some have been told, others not yet."""
        self.run_once()

    @rule()
    def many_turns(self):
        """The loop runs until all is quiet; then everything adds up and no seat is left idle for nothing."""
        self.run_dry()
        dispatch, fleet = self.one.dispatch, self.one.fleet
        live = [name for name, task in self.one.tasks.items() if not task.done()]
        waiting_now = [name for name in live if name not in self.holding]
        assert fleet.pool.statistics().num_leases == len(self.holding)
        assert dispatch.num_waiting == len(waiting_now)
        assert sum(depth for _, _, depth in dispatch.depths()) == len(waiting_now)
        dispatch.wake()
        self.run_dry()
        for name in waiting_now:
            place = dispatch.place_of(self.one.tasks[name].query)
            if place is not None and place[0] == 1:
                decision = fleet.router.route(self.one.tasks[name].query, fleet.now)
                assert not isinstance(decision, RouteDecision), "a seat is idle while somebody waits for it"

    @precondition(lambda self: self.count > 3)
    @rule()
    def closes(self):
        """The gateway stops."""
        self.one.dispatch.close()

    @invariant()
    def never_more_than_there_is(self):
        """Seats are not given twice, not even between two turns of the loop."""
        for replica in self.one.fleet.pool:
            assert sum(replica.in_flight) == replica.num_in_flight <= replica.spec.seats
            assert replica.outstanding_tokens >= 0
        assert self.one.dispatch.num_waiting <= len(self.one.tasks)

    def teardown(self):
        """In the end nobody holds anything."""
        try:
            self.loop.run_until_complete(self.one.empty())
        finally:
            self.loop.close()


DispatchMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestDispatchMachine = DispatchMachine.TestCase
