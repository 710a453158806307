"""Waiting for a seat: order, bounds, refusals, and that whoever leaves, however, leaves nothing behind."""

import asyncio
import contextlib
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engines.contract import Fault, ReplicaError
from gateway import admission
from gateway import turn as queues
from gateway.admission import Dispatch
from gateway.errors import Refused
from gateway.lane_settings import LanesSection
from gateway.outcome import Outcome
from gateway.turned_away import NoTurn
from policies.caps import CapLimits
from policies.entry import Entry
from policies.fair_settings import FairSettings
from policies.lane import Lane
from policies.lease_table import LeaseTable
from policies.leases import SoleHoldings
from policies.local_holdings import LocalHoldings
from routing.decision import NoReplica, RouteDecision
from routing.pool_settings import PoolSettings
from routing.replica import ReplicaState
from tests.routing.fleet import Fleet, spec
from tests.scripted_engine import PATIENCE_S, within_patience

LONG_S = 1000.0


class Waiting:
    """A dispatch over a small fleet, and requests that take turns in it. `order`: names in the order of their turns."""

    def __init__(self, replicas=1, seats=1, pool_settings=None, holdings=None, **lanes):
        self.fleet = Fleet(replicas, pool_settings, seats=seats)
        settings = LanesSection.model_validate(lanes)
        self.dispatch = Dispatch(self.fleet.router, settings, lambda: self.fleet.now, holdings=holdings)
        self.order = []
        self.tasks = {}

    def enter(self, name, lane=Lane.INTERACTIVE, max_wait_s=LONG_S, excluded=(), **of_tenant):
        """Start a request that keeps its turn until cancelled or released."""
        entry = self.entry(name, lane, max_wait_s, excluded, **of_tenant)
        has_turn, done = asyncio.Event(), asyncio.Event()
        task = asyncio.ensure_future(self._take_turn(name, entry, has_turn, done))
        self.tasks[name] = task
        task.entry, task.has_turn, task.done_with_it = entry, has_turn, done
        return task

    def entry(self, name, lane=Lane.INTERACTIVE, max_wait_s=LONG_S, excluded=(), **of_tenant):
        """The request as the queue sees it."""
        return entry_of(self.fleet.query(name, lane=lane, excluded=excluded), self.fleet.now + max_wait_s, **of_tenant)

    async def _take_turn(self, name, entry, has_turn, done):
        async with self.dispatch.turn(entry) as turn:
            self.order.append(name)
            has_turn.set()
            await done.wait()
            return turn

    async def release(self, name):
        """The request ends."""
        self.tasks[name].done_with_it.set()
        await self.tasks[name]

    async def pass_time(self, seconds):
        """The clock moves, and the timer that looks at it fires."""
        self.fleet.now += seconds
        self.dispatch.recheck()
        await settle()

    @property
    def held(self):
        """(leases, requests waiting); what else a turn holds agrees with the leases."""
        leases = self.fleet.pool.statistics().num_leases
        waiting = self.dispatch.num_waiting
        expected = {"waiting": waiting, "turns": leases, "holds": leases, "in_flight": leases}
        assert self.dispatch.statistics() == expected
        return leases, waiting

    async def empty(self):
        """Cancel everybody; nothing may be held then."""
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert self.held == (0, 0)
        assert self.dispatch.depths() == []


def entry_of(query, deadline=float("inf"), *, tenant="alder", batch_cap=None, weight=1.0):
    """The request as the queue sees it."""
    return Entry(
        tenant, query.lane, queues.Waiting(query, CapLimits(per_replica=batch_cap)), weight=weight, deadline=deadline
    )


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
    """Without waiting for the loop to come round."""
    async with waiting() as one:
        turn = one.dispatch.enter(one.entry("a")).result()
        assert (turn.decision.chosen, turn.queued_s) == ("r1", 0.0)
        assert one.held == (1, 0)
        one.dispatch.end(turn)


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
        turns = [one.dispatch.enter(one.entry(name)).result() for name in "ab"]
        one.enter("c")
        await settle()
        for turn in turns:
            one.dispatch.end(turn)
        assert one.held == (1, 0), "granted to c, whose task has not run; the other seat is free"
        assert one.order == []
        late = one.dispatch.enter(one.entry("late"))
        assert late.done()
        one.dispatch.end(late.result())


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


async def test_a_flood_fills_no_other_tenants_place():
    """A's ten thousand fill the lane: its next is refused as its own; B is queued and soon served, A's newest gives way."""
    async with waiting(interactive={"queue": 10_000}) as one:
        tickets = [one.dispatch.enter(one.entry(f"a{number}", tenant="a")) for number in range(10_001)]
        assert one.held == (1, 10_000)
        with pytest.raises(Refused, match=r"^this project's own share .* is full: 10000 of its requests are waiting$"):
            one.dispatch.enter(one.entry("a", tenant="a"))
        assert one.held == (1, 10_000)
        entry = one.entry("b", tenant="b")
        b = one.dispatch.enter(entry)
        assert one.held == (1, 10_000)
        assert one.dispatch.place_of(entry)[0] == 1
        problem = tickets[-1].exception().problem
        assert (problem.status, problem.code, problem.outcome) == (429, "queue_full", Outcome.REFUSED)
        assert problem.retry_after_s >= 1
        assert "this project's own share" in problem.message
        assert "9999 of its requests are waiting" in problem.message
        while not b.done():  # a flow's first is passed for others' hits a few times at most
            served = [ticket for ticket in tickets[:-1] if ticket.done()]
            assert len(served) <= 1 + FairSettings().skips
            served[-1].result().cost = 1.0
            one.dispatch.end(served[-1].result())
        one.dispatch.close()
        assert {ticket.exception().problem.code for ticket in tickets[len(served) : -1]} == {"stopping"}
        one.dispatch.end(b.result())


async def test_places_are_divided_among_those_who_want_them():
    """Two floods by weight; who comes later with one request is never refused."""
    async with waiting(interactive={"queue": 31}) as one:
        one.enter("first")
        for number in range(50):
            one.enter(f"a{number}", tenant="a", weight=2.0)
            one.enter(f"b{number}", tenant="b", weight=1.0)
            await settle()
        for tenant in "cd":
            one.enter(tenant, tenant=tenant)
        await settle()
        live = [name for name, task in one.tasks.items() if not task.done()]
        assert Counter(name[0] for name in live) == {"f": 1, "a": 19, "b": 10, "c": 1, "d": 1}
        for task in one.tasks.values():
            if task.done():
                assert task.exception().problem.code == "queue_full"
        assert one.held == (1, 31)


async def test_who_finds_a_seat_pushes_nobody_out():
    """The flood waits at its cap and fills the lane; another tenant is served at once, and takes no place."""
    async with waiting(seats=2, interactive={"queue": 3}) as one:
        for number in range(4):
            one.enter(f"a{number}", tenant="a", batch_cap=1)
        await settle()
        assert one.held == (1, 3)
        one.enter("b", tenant="b")
        await settle()
        assert one.order == ["a0", "b"]
        assert one.held == (2, 3)


async def test_who_is_shed_pushes_nobody_out():
    """A newcomer that may not wait must not cost anybody else its place."""
    lanes = {lane.value: {"max_wait_s": 10.0, "reserved_seats": 0, "queue": 2} for lane in Lane}
    async with waiting(**lanes) as one:
        one.enter("holds")
        one.enter("waits")
        for number in range(2):
            one.enter(f"bulk{number}", Lane.BULK, tenant="a")
        await settle()
        await one.pass_time(6)
        assert (await refusal_of(one.enter("other", Lane.BULK, tenant="b"))).code == "shed"
        assert (await refusal_of(one.enter("own", Lane.BULK, tenant="a"))).code == "queue_full"
        assert one.held == (1, 3)


@pytest.mark.parametrize("is_cancelled_first", [True, False])
async def test_pushed_out_in_the_turn_of_the_loop_in_which_its_client_leaves(is_cancelled_first):
    """In either order it ends once, cancelled, and its place is the other tenant's."""
    async with waiting(interactive={"queue": 2}) as one:
        for name in ("holds", "waits", "newest"):
            one.enter(name, tenant="a")
        await settle()
        newest = one.tasks["newest"]
        if is_cancelled_first:
            newest.cancel()
        entry = one.entry("b", tenant="b")
        granted = one.dispatch.enter(entry)
        newest.cancel()
        assert one.held == (1, 2)
        await settle()
        assert newest.cancelled()
        assert one.held == (1, 2)
        await one.release("holds")
        await settle()
        assert granted.done() != one.tasks["waits"].has_turn.is_set()
        one.dispatch.leave(entry, granted)


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
        late = one.enter("b", max_wait_s=5)
        await settle()
        await one.pass_time(4.9)
        assert one.held == (1, 1)
        await one.pass_time(0.1)
        problem = await refusal_of(late)
        assert (problem.status, problem.code, problem.outcome) == (503, "queue_timeout", Outcome.SHED)
        assert one.held == (1, 0)


async def test_a_seat_that_comes_in_the_moment_of_the_timeout_goes_to_the_next():
    """Nobody is given a turn that it may not use any more."""
    async with waiting() as one:
        one.enter("a")
        await settle()
        late = one.enter("late", max_wait_s=5)
        one.enter("next")
        await settle()
        one.fleet.now += 5  # no timer has fired yet: the timeout and the grant fall into one turn of the loop
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
        async with one.dispatch.turn(one.entry("a")):
            for name in "bc":
                one.enter(name)
            await settle()
        assert one.held == (1, 1), "granted, but its task has not run yet"
        assert one.order == []
        one.tasks["b"].cancel()
        await settle()
        assert one.tasks["b"].cancelled()
        assert one.order == ["c"]
        assert one.held == (1, 0)


async def test_closing_in_the_turn_of_the_loop_in_which_it_was_granted():
    """Who was granted a turn has it."""
    async with waiting() as one:
        async with one.dispatch.turn(one.entry("a")):
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
            async with one.dispatch.turn(one.entry("a")):
                raise RuntimeError("a bug")
        assert one.held == (0, 0)


async def test_leaving_twice_is_harmless():
    """A lease is ended once."""
    async with waiting() as one:
        holder = one.dispatch.turn(one.entry("a"))
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
        assert one.dispatch.place_of(one.tasks["a"].entry) is None
        assert [one.dispatch.place_of(one.tasks[name].entry)[0] for name in "bc"] == [1, 2]
        await one.release("a")
        await settle()
        assert one.dispatch.place_of(one.tasks["b"].entry) is None
        assert one.dispatch.place_of(one.tasks["c"].entry)[0] == 1


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
                assert one.dispatch.place_of(one.tasks["29"].entry)[1] == pytest.approx(28 * 2.0)
        assert one.dispatch.place_of(one.tasks["29"].entry)[1] == pytest.approx(2.0, rel=0.05)


async def test_a_tenant_at_its_cap_waits_and_the_others_pass():
    """A full `batch_cap` is no refusal, and no seat stands idle for it."""
    async with waiting(seats=3) as one:
        for number in range(3):
            one.enter(f"a{number}", tenant="a", batch_cap=1)
        one.enter("b", tenant="b")
        await settle()
        assert one.order == ["a0", "b"]
        await one.release("a0")
        await settle()
        assert one.order == ["a0", "b", "a1"]
        assert one.held == (2, 1)


async def test_a_cap_of_nothing_is_refused_at_once():
    """Waiting would be in vain; so it is for those who wait when the cap becomes 0."""
    async with waiting() as one:
        problem = await refusal_of(one.enter("none", batch_cap=0))
        assert (problem.status, problem.code, problem.retry_after_s) == (429, "batch_cap", None)
        for name in "abc":
            one.enter(name, tenant=name)
        await settle()
        one.dispatch.recap(lambda tenant, _lane: CapLimits(per_replica=0) if tenant == "b" else None)
        assert (await refusal_of(one.tasks["b"])).code == "batch_cap"
        assert one.held == (1, 1)


async def test_a_cap_that_is_raised_or_lifted_acts_on_those_who_wait():
    """And one that is lowered holds for the next turn; whoever has a turn keeps it."""
    async with waiting(seats=4) as one:
        for number in range(4):
            one.enter(f"a{number}", batch_cap=1)
        await settle()
        assert one.held == (1, 3)
        one.dispatch.recap(lambda _tenant, _lane: CapLimits(per_replica=3))
        await settle()
        assert one.held == (3, 1)
        one.dispatch.recap(lambda _tenant, _lane: CapLimits(per_replica=1))
        await one.release("a0")
        await one.release("a1")
        await settle()
        assert one.held == (1, 1)
        one.dispatch.recap(lambda _tenant, _lane: CapLimits())
        await settle()
        assert one.held == (2, 0)


async def test_a_tenants_flood_does_not_hold_up_another():
    """The other tenant's first request is next, whatever waits before it."""
    async with waiting() as one:
        for number in range(20):
            one.enter(f"flood{number}", tenant="flood")
        await settle()
        one.enter("other", tenant="other")
        await settle()
        await one.release("flood0")
        await settle()
        assert one.order == ["flood0", "other"]


async def test_a_bulk_request_that_waited_long_is_lifted():
    """Once: the next lifted one waits until it has ended."""
    async with waiting(bulk={"lift_after_s": 10, "weight": 0.01}, standard={"weight": 100}) as one:
        one.enter("first")
        for number in range(2):
            one.enter(f"bulk{number}", Lane.BULK, tenant="b")
        await settle()
        await one.pass_time(11)
        for number in range(3):
            one.enter(f"standard{number}", Lane.STANDARD, tenant="s")
        await settle()
        for name in ("first", "bulk0", "bulk1", "standard0"):
            await one.release(name)
            await settle()
        assert one.order == ["first", "bulk0", "bulk1", "standard0", "standard1"]


async def test_lanes_divide_the_seats_by_their_weights():
    """Three standard to one bulk, by default."""
    async with waiting(seats=4) as one:
        for number in range(8):
            one.enter(f"bulk{number}", Lane.BULK)
            one.enter(f"standard{number}", Lane.STANDARD)
        await settle()
        for number in range(4):
            await one.release(one.order[number])
            await settle()
        held = one.order[4:8]
        assert sum(name.startswith("standard") for name in held) == 3


async def test_a_lane_is_shed_before_the_one_above_it():
    """Bulk at half of the longest wait, standard at 0.8, interactive not before all of it."""
    lanes = {lane.value: {"max_wait_s": 10.0, "reserved_seats": 0} for lane in Lane}
    async with waiting(**lanes) as one:
        one.enter("holds")
        one.enter("waits")
        await settle()
        await one.pass_time(6)
        problem = await refusal_of(one.enter("bulk", Lane.BULK))
        assert (problem.status, problem.code, problem.outcome) == (503, "shed", Outcome.SHED)
        assert problem.retry_after_s >= 1
        one.enter("standard", Lane.STANDARD)
        await settle()
        await one.pass_time(3)
        assert (await refusal_of(one.enter("standard2", Lane.STANDARD))).code == "shed"
        one.enter("person")
        await settle()
        assert one.held == (1, 3)


async def test_bulk_is_shed_by_its_own_wait_though_seats_are_kept_from_it():
    """Reserved seats that stand idle are no relief for whom they are not."""
    lanes = {lane.value: {"max_wait_s": 10.0} for lane in Lane}
    async with waiting(seats=2, pool_settings=PoolSettings({Lane.INTERACTIVE: 1}), **lanes) as one:
        for number in range(2):
            one.enter(f"bulk{number}", Lane.BULK)
        await settle()
        assert one.held == (1, 1)
        await one.pass_time(6)
        assert (await refusal_of(one.enter("late", Lane.BULK))).code == "shed"
        one.enter("person")
        await settle()
        assert one.order[-1] == "person"


async def test_a_deadline_that_cannot_be_met_is_refused_at_once():
    """Once the drain rate is known; with the client's own deadline it is a 504, and it says when to come back."""
    async with waiting() as one:
        for number in range(30):
            one.enter(str(number))
        await settle()
        for number in range(10):
            one.fleet.now += 2.0
            await one.release(str(number))
            await settle()
        entry = one.entry("hasty", max_wait_s=5.0)
        entry.request.has_deadline = True
        with pytest.raises(Refused) as caught:
            one.dispatch.enter(entry)
        problem = caught.value.problem
        assert (problem.status, problem.code, problem.outcome) == (504, "deadline", Outcome.TIMED_OUT)
        assert problem.retry_after_s >= 2.0
        assert (await refusal_of(one.enter("patient", max_wait_s=5.0))).status == 503


async def test_units_of_a_lease_are_given_back_with_the_turn():
    """Finished, failed and abandoned; a seat that the lease refuses is nobody's until it is asked again."""
    holdings = SoleHoldings()
    async with waiting(seats=2, holdings=holdings) as one:
        assert holdings.try_take("seat:r1:interactive", 2, 0.0)  # another gateway's, in the eyes of this one
        for name in "abc":
            one.enter(name, batch_cap=2)
        await settle()
        assert one.held == (1, 2)
        assert holdings.statistics()["units_in_use"] == 1 + 2
        one.tasks["a"].cancel()
        await settle()
        assert one.held == (1, 1)
        holdings.give_back("seat:r1:interactive")
        one.dispatch.wake()
        await settle()
        assert one.held == (2, 0)
    assert holdings.statistics()["units_in_use"] == 0


async def test_a_leased_cap_that_others_use_for_long_is_still_wanted():
    """A gateway that got no unit of a tenant's cap goes on asking, however long the others keep theirs."""
    table, mine, others = LeaseTable(), LocalHoldings("mine"), LocalHoldings("others")

    def renew(holdings, now):
        report = holdings.report(next(holdings.due()), now)
        return holdings.apply(report, table.renew(report, now))

    batch = "batch:alder:interactive:r1"
    async with waiting(seats=2, holdings=mine) as one:
        for _ in range(20):  # until the table grants, and the others have all of the cap
            one.fleet.now += 1.0
            others.try_take(batch, 1, one.fleet.now)
            renew(others, one.fleet.now)
            renew(mine, one.fleet.now)
        assert others.statistics()["units_in_use"] == 1
        one.enter("patient", batch_cap=1)
        await settle()
        for _ in range(40):
            await one.pass_time(admission.RECHECK_S)
            if renew(mine, one.fleet.now):
                one.dispatch.wake_caps()
            renew(others, one.fleet.now)
        assert one.held == (0, 1)
        others.give_back(batch)
        for _ in range(20):
            await one.pass_time(admission.RECHECK_S)
            renew(others, one.fleet.now)
            if renew(mine, one.fleet.now):
                one.dispatch.wake_caps()
                await settle()
        assert one.held == (1, 0)


async def test_what_a_lease_refused_to_a_cap_is_no_matter_to_who_has_none():
    """A tenant's caps are lifted while the refusal is remembered: the next request needs no unit of the lease."""
    holdings = Shared()
    async with waiting(seats=4, holdings=holdings) as one:
        holdings.refused = {"batch"}
        one.enter("capped", batch_cap=2)
        await settle()
        one.tasks["capped"].cancel()
        await settle()
        one.enter("free")
        await settle()
        assert one.held == (1, 0)


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


class Shared(SoleHoldings):
    """Leases that may refuse any unit, as they do when other gateways have them."""

    def __init__(self):
        super().__init__()
        self.refused = set()

    def try_take(self, resource, limit, now, waiting=1):
        """Whether a unit was taken."""
        if any(part in resource for part in self.refused):
            return False
        return super().try_take(resource, limit, now, waiting)


def _batch_of(turn):
    return turn.entry.tenant, turn.entry.lane, turn.decision.chosen


TENANTS = {"a": 1.0, "b": 2.0, "c": 0.5}


class DispatchMachine(RuleBasedStateMachine):
    """Requests come, wait, are served, fail, end and leave in any order, also within one turn of the loop.

    Bulk is pinned to r2. Caps, replicas and leases change under those who wait.
    """

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.holdings = Shared()
        self.one = Waiting(
            replicas=2,
            seats=3,
            pool_settings=PoolSettings({Lane.INTERACTIVE: 1}),
            holdings=self.holdings,
            standard={"queue": 3},
            bulk={"lift_after_s": 50},
        )
        self.one.fleet.pool.upsert(spec("r2", seats=3, labels={"pool": "bulk"}), self.one.fleet.now)
        self.caps = {"a": 1, "b": 2, "c": None}
        self.highest_cap = dict(self.caps)
        self.turns = {}  # by name, of those whose task knows of it
        self.count = 0

    def run_once(self):
        """One turn of the loop."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def run_dry(self):
        """As many turns as it takes until nothing more happens by itself."""
        for _ in range(12):
            self.run_once()

    async def _live(self, name, entry, done):
        async with self.one.dispatch.turn(entry) as turn:
            self.turns[name] = turn
            self._cap_holds(turn)
            try:
                if await done.wait() and name % 3 == 0:
                    raise ReplicaError(Fault.RESET, "it broke")
            finally:
                del self.turns[name]

    def _cap_holds(self, turn):
        """The turn is within its tenant's cap, unless the cap was lowered since; that ends nothing."""
        cap = turn.entry.request.caps.per_replica
        names = [_batch_of(other) for other in self.turns.values() if not other.is_over]
        highest = self.highest_cap[turn.entry.tenant]
        assert cap is None or highest is None or names.count(_batch_of(turn)) <= highest

    def _start(self, tenant, lane, excluded):
        self.count += 1
        labels = {("pool", "bulk")} if lane is Lane.BULK else frozenset()
        query = replace(self.one.fleet.query(f"text {self.count}", lane=lane, excluded=excluded), labels=labels)
        deadline = self.one.fleet.now + 200
        entry = entry_of(query, deadline, tenant=tenant, batch_cap=self.caps[tenant], weight=TENANTS[tenant])
        done = asyncio.Event()
        task = self.loop.create_task(self._live(self.count, entry, done))
        task.done_with_it, task.entry = done, entry
        self.one.tasks[self.count] = task

    @rule(
        tenant=st.sampled_from(sorted(TENANTS)),
        lane=st.sampled_from(Lane),
        excluded=st.sampled_from([(), (), ("r1",), ("r2",), ("r1", "r2")]),
        num=st.integers(1, 4),
    )
    def come(self, tenant, lane, excluded, num):
        """Requests arrive, some of them for another try."""
        for _ in range(num):
            self._start(tenant, lane, excluded)

    @property
    def live(self):
        """Names of the requests that have not ended."""
        return [name for name, task in self.one.tasks.items() if not task.done()]

    @property
    def granted(self):
        """Names of those that were given a turn and do not know it yet."""
        tickets = {name: self.one.tasks[name].entry.request.ticket for name in self.live if name not in self.turns}
        return [name for name, ticket in tickets.items() if ticket is not None and ticket.done()]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def ends(self, data):
        """A request that may or may not have its turn yet will end, or fail, as soon as it has."""
        self.one.tasks[data.draw(st.sampled_from(self.live))].done_with_it.set()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leaves(self, data):
        """A client leaves, wherever its request is."""
        self.one.tasks[data.draw(st.sampled_from(self.live))].cancel()

    @precondition(lambda self: self.granted)
    @rule()
    def leaves_in_the_moment_of_the_grant(self):
        """It will never know that it had a turn."""
        self.one.tasks[self.granted[0]].cancel()

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def ends_beside_one_that_leaves(self, data):
        """A seat comes free in the very turn of the loop in which somebody who waits for it leaves."""
        self.one.tasks[data.draw(st.sampled_from(self.live))].cancel()
        self.one.dispatch.end(self.turns[data.draw(st.sampled_from(sorted(self.turns)))])

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), cost=st.floats(0, 1e6))
    def ends_early(self, data, cost):
        """A turn is ended by hand, and again by its holder."""
        turn = self.turns[data.draw(st.sampled_from(sorted(self.turns)))]
        turn.cost = cost
        self.one.dispatch.end(turn)

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), fault=st.sampled_from([Fault.BACKPRESSURE, Fault.CONNECT]))
    def fails(self, data, fault):
        """A replica asks for a wait or does not answer: the breaker sets it aside."""
        turn = self.turns[data.draw(st.sampled_from(sorted(self.turns)))]
        self.one.fleet.router.observe_failure(turn.lease, fault, self.one.fleet.now, retry_after_s=20)

    @rule(name=st.sampled_from(["r1", "r2"]), state=st.sampled_from(ReplicaState))
    def moves(self, name, state):
        """A replica changes its state."""
        self.one.fleet.pool.move(name, state)
        self.loop.call_soon(self.one.dispatch.wake)

    @rule(is_back=st.booleans())
    def restarts(self, is_back):
        """A replica is removed, and mostly comes back, while its leases are open."""
        self.one.fleet.pool.remove("r1")
        if is_back:
            self.one.fleet.add("r1", seats=3)
        self.loop.call_soon(self.one.dispatch.wake)

    @rule(tenant=st.sampled_from(sorted(TENANTS)), cap=st.sampled_from([None, 0, 1, 2]))
    def caps_change(self, tenant, cap):
        """An administrator changes a tenant's cap."""
        self.caps[tenant] = cap
        highest = self.highest_cap[tenant]
        self.highest_cap[tenant] = None if None in {cap, highest} else max(cap, highest)
        self.one.dispatch.recap(lambda one, _lane: CapLimits(per_replica=cap) if one == tenant else None)

    @rule(refused=st.sets(st.sampled_from(["seat:r1", "seat:r2:standard", "batch:a", "batch:b:bulk"]), max_size=2))
    def leases_change(self, refused):
        """Other gateways take units, or give them back."""
        self.holdings.refused = refused
        self.one.dispatch.wake_caps()

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds):
        """The clock moves; the timer has not fired yet."""
        self.one.fleet.now += seconds

    @rule()
    def one_turn(self):
        """The loop runs once: some have been told, others not yet."""
        self.run_once()

    @rule()
    def many_turns(self):
        """The loop runs until all is quiet; then everything adds up and no seat is left idle for nothing."""
        self.run_dry()
        self.one.dispatch.wake_caps()
        self.run_dry()
        waiting_now = [self.one.tasks[name].entry for name in self.live if name not in self.turns]
        dispatch = self.one.dispatch
        assert dispatch.statistics()["turns"] == len([turn for turn in self.turns.values() if not turn.is_over])
        assert dispatch.num_waiting == sum(depth for _, _, depth in dispatch.depths()) == len(waiting_now)
        pool = self.one.fleet.pool
        has_ghosts = any(turn.lease.replica is not pool.get(turn.decision.chosen) for turn in self.turns.values())
        for entry in waiting_now:
            assert dispatch.place_of(entry) is not None
            if not (
                self.holdings.refused or has_ghosts
            ):  # a removed replica's units count under its name till they end
                self._has_no_room(entry)

    def _has_no_room(self, entry):
        cap = entry.request.caps.per_replica
        held = Counter(
            turn.decision.chosen
            for turn in self.turns.values()
            if (turn.entry.tenant, turn.entry.lane) == (entry.tenant, entry.lane) and not turn.is_over
        )
        barred = {name for name in ("r1", "r2") if cap is not None and held[name] >= cap}
        decision = self.one.fleet.router.route(replace(entry.request.query, barred=barred), self.one.fleet.now)
        assert not isinstance(decision, RouteDecision), "a seat is idle while somebody waits for it"

    @precondition(lambda self: self.count > 5)
    @rule()
    def closes(self):
        """The gateway stops."""
        self.one.dispatch.close()

    @invariant()
    def everything_adds_up(self):
        """What turns hold and what is counted agree, also between two turns of the loop; seats are not given twice."""
        leases, _ = self.one.held
        for replica in self.one.fleet.pool:
            assert sum(replica.in_flight) == replica.num_in_flight <= replica.spec.seats
            assert replica.outstanding_tokens >= 0
        assert leases <= self.holdings.statistics()["units_in_use"] <= leases * (len(Lane) + 1)
        assert self.one.dispatch.num_waiting <= len(self.one.tasks)

    def teardown(self):
        """In the end nobody holds anything."""
        try:
            self.loop.run_until_complete(self.one.empty())
            assert self.holdings.statistics()["units_in_use"] == 0
        finally:
            self.loop.close()


DispatchMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestDispatchMachine = DispatchMachine.TestCase
