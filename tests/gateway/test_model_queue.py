"""One model's waiting requests over a real router and pool: order, caps, leases, labels, refusals and what is charged."""

from collections import Counter
from dataclasses import replace

import pytest

from engines.contract import Fault
from gateway.model_queue import MarketRules, ModelQueue
from gateway.turn import NO_CAPS, Absent, Turn, Waiting
from policies.caps import CapLimits, Caps
from policies.entry import FOREVER, Entry
from policies.fair_queue import FairQueue
from policies.fair_settings import FairSettings, LaneRule
from policies.lane import Lane
from policies.lane_queue import Overflow
from policies.leases import SoleHoldings
from policies.saturation import Saturation, SaturationSettings, Shed, TooLate
from routing.decision import Absence
from routing.pool_settings import PoolSettings
from routing.replica import ReplicaState
from tests.routing.fleet import Fleet, spec

MAX_WAIT_S = 100.0


class ScriptedHoldings(SoleHoldings):
    """Leases that refuse every resource whose name has one of `refused` in it. `asked`: what was asked for, in order."""

    def __init__(self, *refused):
        super().__init__()
        self.refused = set(refused)
        self.asked = []

    @property
    def units(self):
        """Units in use."""
        return self.statistics()["units_in_use"]

    def try_take(self, resource, limit, now, waiting=1):
        """Whether a unit was taken."""
        self.asked.append(resource)
        return not any(part in resource for part in self.refused) and super().try_take(resource, limit, now, waiting)


class Market:
    """A queue over a small fleet, driven by hand. `turns`: the open ones, in the order they were given."""

    def __init__(self, replicas=1, seats=1, reserved=None, holdings=None, kv_used=0.0, **fair):
        self.fleet = Fleet(replicas, PoolSettings(reserved or {}), seats=seats)
        self.holdings = holdings
        queue = FairQueue(FairSettings(**fair))
        self.caps = Caps(holdings, queue.wake_flow)
        self.market = ModelQueue(
            "m",
            self.fleet.router,
            self.caps,
            queue=queue,
            saturation=Saturation(SaturationSettings(max_wait_s=dict.fromkeys(Lane, MAX_WAIT_S))),
            rules=MarketRules(kv_used_ratio=lambda _name: kv_used, holdings=holdings),
        )
        self.turns = []

    @property
    def now(self):
        """The fleet's clock."""
        return self.fleet.now

    def entry(self, tenant="a", text="text", lane=Lane.INTERACTIVE, *, cap=None, labels=(), excluded=(), **fields):
        """A request that may wait."""
        query = replace(self.fleet.query(text, lane=lane, excluded=excluded, salt=tenant), labels=frozenset(labels))
        caps = NO_CAPS if cap is None else CapLimits(per_replica=cap)
        return Entry(tenant, lane, Waiting(query, caps), **fields)

    def enter(self, *args, **fields):
        """Queue a request; the entry."""
        entry = self.entry(*args, **fields)
        self.market.enter(entry, self.now)
        return entry

    def serve(self):
        """Give every turn that can be given: (tenant, replica) of each, and the absent ones."""
        found = list(self.market.turns(self.now))
        turns = [one for one in found if isinstance(one, Turn)]
        self.turns += turns
        return [(turn.entry.tenant, turn.decision.chosen) for turn in turns]

    def end(self, turn=None, cost=0.0):
        """A turn is over, the oldest if none is named."""
        turn = turn or self.turns[0]
        self.turns.remove(turn)
        turn.cost = cost
        self.market.end(turn, self.now)

    def is_quiet(self):
        """Whether nothing is held; everything that counts turns agrees."""
        open_turns = len(self.turns)
        assert self.market.num_turns == self.caps.num_holds == open_turns
        assert self.fleet.pool.statistics().num_leases == open_turns
        assert sum(map(self.market.queue.in_flight, Lane)) == open_turns
        return not open_turns and not len(self.market) and not (self.holdings and self.holdings.units)


def test_turns_are_given_in_fair_order():
    """A tenant that queued five before another's first gets one turn, then they go by turns."""
    one = Market(quantum_tokens=0.0)
    for number in range(5):
        one.enter("a", f"a{number}")
    one.enter("b", "b0")
    one.enter("b", "b1")
    order = []
    while len(one.market) or one.turns:
        order += [tenant for tenant, _ in one.serve()]
        one.end(cost=100.0)
    assert "".join(order) == "ababaaa"
    assert one.is_quiet()


def test_weights_divide_the_service():
    """2:1 in turns of equal cost, while both wait."""
    one = Market(quantum_tokens=0.0)
    for number in range(40):
        one.enter("a", f"a{number}", weight=2.0)
        one.enter("b", f"b{number}", weight=1.0)
    order = []
    for _ in range(30):
        order += [tenant for tenant, _ in one.serve()]
        one.end(cost=100.0)
    assert Counter(order) == {"a": 20, "b": 10}


def test_what_was_cached_is_not_charged():
    """The tenant whose prompts hit gets more requests through for the same charge: three of 100 for one of 300."""
    one = Market(quantum_tokens=0.0)
    for number in range(40):
        one.enter("hits", f"h{number}")
        one.enter("misses", f"m{number}")
    order = []
    for _ in range(40):
        order += [tenant for tenant, _ in one.serve()]
        one.end(cost=100.0 if order[-1] == "hits" else 300.0)
    assert Counter(order)["hits"] == pytest.approx(30, abs=1)


def test_a_turn_that_did_no_work_is_not_charged():
    """It never reached a replica; its tenant is next again."""
    one = Market(quantum_tokens=0.0)
    for tenant in "aabb":
        one.enter(tenant)
    assert one.serve() == [("a", "r1")]
    one.end(cost=0.0)
    first = one.serve()
    one.end(cost=1000.0)
    second = one.serve()
    assert {first[0][0], second[0][0]} == {"a", "b"}


def test_a_turn_is_ended_once():
    """Ending it again changes nothing."""
    one = Market()
    one.enter()
    one.serve()
    turn = one.turns[0]
    one.end(turn, cost=5.0)
    assert turn.is_over
    one.market.end(turn, one.now)
    assert one.is_quiet()
    assert repr(turn) == "<Turn a on r1 over>"


def test_who_can_be_served_by_nobody_is_absent():
    """It leaves the queue at once, while the others wait for seats."""
    one = Market(replicas=2, seats=1)
    tried = one.enter("a", excluded=("r1", "r2"))
    for _ in range(3):
        one.enter("b")
    found = list(one.market.turns(one.now))
    absent = [each for each in found if isinstance(each, Absent)]
    assert [(each.entry, each.reason.reason) for each in absent] == [(tried, Absence.TRIED)]
    assert not tried.is_waiting
    assert (len(found), len(one.market)) == (3, 1)


def test_all_are_absent_when_the_last_replica_is_lost():
    """Nobody waits for what will not come, but may come back."""
    one = Market()
    for tenant in "aab":
        one.enter(tenant)
    one.serve()
    one.fleet.pool.move("r1", ReplicaState.LOST)
    one.market.wake()
    found = list(one.market.turns(one.now))
    assert [(each.reason.reason, each.reason.retry_after_s) for each in found] == [(Absence.NONE_READY, 5.0)] * 2
    one.end()
    assert one.is_quiet()


def test_a_breakers_wait_sends_them_elsewhere_and_ends():
    """P19: a replica that asked for a wait gets nobody until it is over, and nobody need announce that."""
    one = Market(replicas=2, seats=1)
    one.enter("a", "one")
    (_, busy), *_ = one.serve()
    other = {"r1": "r2", "r2": "r1"}[busy]
    one.fleet.router.observe_failure(one.turns[0].lease, Fault.BACKPRESSURE, one.now, retry_after_s=5)
    one.end()
    for _ in range(2):
        one.enter("a", "one")
    assert one.serve() == [("a", other)]
    one.fleet.now += 6
    one.market.wake()
    assert one.serve() == [("a", busy)]


def test_a_full_batch_lets_the_tenant_go_to_another_replica_and_then_wait():
    """The cap is a replica's; another tenant takes the seats that are left."""
    one = Market(replicas=2, seats=3)
    for number in range(6):
        one.enter("a", f"a{number}", cap=1)
    assert sorted(one.serve()) == [("a", "r1"), ("a", "r2")]
    for number in range(4):
        one.enter("b", f"b{number}")
    assert Counter(one.serve()) == {("b", "r1"): 2, ("b", "r2"): 2}
    gone = one.turns[0].decision.chosen
    one.end()
    assert one.serve() == [("a", gone)]


def test_an_excluded_replica_does_not_hold_up_the_rest_of_the_flow():
    """The retry's only other replica is barred by the cap, the newcomer behind it may go where the retry may not."""
    one = Market(replicas=2, seats=4)
    one.enter("a", cap=1, excluded=("r1",))
    assert one.serve() == [("a", "r2")]
    one.enter("a", cap=1, excluded=("r1",))
    one.enter("a", cap=1)
    assert one.serve() == [("a", "r1")]
    assert len(one.market) == 1


def test_caps_that_change_act_on_who_waits():
    """They are read when a seat is looked for, not when the request came."""
    one = Market(seats=4)
    entries = [one.enter("a", cap=1) for _ in range(3)]
    assert len(one.serve()) == 1
    for entry in entries:
        entry.request.caps = CapLimits(per_replica=2)
    one.market.wake()
    assert len(one.serve()) == 1
    entries[2].request.caps = NO_CAPS
    one.market.wake()
    assert len(one.serve()) == 1


def test_a_pick_that_nothing_was_learned_from_is_not_made_again_and_again(monkeypatch):
    """Whatever stands in its way, the process serves others meanwhile; the request waits and is asked again later."""
    one = Market()
    entry = one.enter()
    with monkeypatch.context() as blocked:
        blocked.setattr(one.caps, "take", lambda *_: None)
        assert one.serve() == []
        assert entry.is_waiting
    one.market.wake()
    assert len(one.serve()) == 1


def test_a_pick_whose_seat_is_gone_is_put_back():
    """Somebody else took it between the choice and the lease: the entry keeps its place, uncharged, and holds nothing."""
    one = Market()
    entry = one.enter("a")
    one.enter("a")
    lease = one.fleet.pool.lease
    one.fleet.pool.lease = lambda decision, now: setattr(one.fleet.pool, "lease", lease)
    assert one.serve() == [("a", "r1")]
    assert one.turns[0].entry is entry
    one.end()
    assert one.serve() == [("a", "r1")]
    one.end()
    assert one.is_quiet()


def test_a_refused_seat_is_barred_until_a_wake_and_nothing_leaks():
    """Others may have the replica's units; it is asked again when something is known to have changed."""
    one = Market(replicas=2, seats=2, holdings=ScriptedHoldings("seat:r1"))
    for number in range(3):
        one.enter("a", f"a{number}")
    assert one.serve() == [("a", "r2"), ("a", "r2")]
    assert one.holdings.asked.count("seat:r1:interactive") <= 1
    assert one.holdings.units == 2
    asked = len(one.holdings.asked)
    assert one.serve() == []
    assert len(one.holdings.asked) == asked, "asked again for nothing"
    one.holdings.refused.clear()
    one.market.wake()
    assert one.serve() == [("a", "r1")]
    while one.turns:
        one.end()
    assert one.is_quiet()


def test_a_refused_replica_is_not_believed_to_hold_the_prompt():
    """It never got it: a hit predicted there would send the conversation's next turn to the wrong place."""
    one = Market(holdings=ScriptedHoldings("seat:r1"))
    one.enter("a", "a long prompt " * 50)
    assert one.serve() == []
    assert one.fleet.route("a long prompt " * 50, salt="a").hit_tokens == 0


def test_half_of_a_seats_units_are_given_back():
    """A bulk seat takes a unit of every lane above, too; refused the last, it keeps none of them, nor the cap's."""
    one = Market(holdings=ScriptedHoldings("seat:r1:bulk"))
    one.enter("a", lane=Lane.BULK, cap=2)
    assert one.serve() == []
    assert one.holdings.asked == ["batch:a:bulk:r1", "seat:r1:interactive", "seat:r1:standard", "seat:r1:bulk"]
    assert one.holdings.units == 0
    assert one.caps.num_holds == 0


def test_a_refused_batch_unit_waits_for_a_grant():
    """The tenant's cap is used up by other gateways; another tenant is not held up."""
    one = Market(seats=2, holdings=ScriptedHoldings("batch:a"))
    one.enter("a", cap=2)
    one.enter("b", cap=2)
    assert one.serve() == [("b", "r1")]
    one.holdings.refused.clear()
    one.caps.granted()
    one.market.wake()
    assert one.serve() == [("a", "r1")]


def test_a_unit_that_comes_back_opens_its_replica_again():
    """Our own unit, given back, may be taken again without waiting for news from the other gateways."""
    holdings = ScriptedHoldings()
    one = Market(seats=3, holdings=holdings)
    for number in range(3):
        one.enter("a", f"a{number}")
    assert holdings.try_take("seat:r1:interactive", 3, one.now)  # as if another gateway had it
    assert len(one.serve()) == 2
    assert one.serve() == []
    one.end()
    assert one.serve() == [("a", "r1")]


def test_a_pinned_lane_goes_only_to_replicas_with_its_labels():
    """And waits for them, though others have seats; other lanes go wherever there is room."""
    one = Market(replicas=2, seats=1)
    one.fleet.pool.upsert(spec("r2", seats=1, labels={"pool": "night", "zone": "x"}), one.now)
    pinned = {"lane": Lane.BULK, "labels": [("pool", "night")]}
    one.enter("a", **pinned)
    one.enter("b", **pinned)
    assert one.serve() == [("a", "r2")]
    one.enter("c", lane=Lane.STANDARD)
    assert one.serve() == [("c", "r1")]
    one.end()
    assert one.serve() == [("b", "r2")]


def test_a_pinned_lane_without_replicas_is_told_so():
    """A misspelt label would else be an hour's wait."""
    one = Market()
    one.enter("a", lane=Lane.BULK, labels=[("pool", "night")])
    (absent,) = one.market.turns(one.now)
    assert absent.reason.reason is Absence.NOT_LABELLED
    assert one.is_quiet()


def test_a_lifted_request_keeps_its_own_lanes_labels_and_caps():
    """Bulk that waited long is served as standard, on bulk's replicas and within bulk's cap."""
    one = Market(replicas=2, seats=2, reserved={Lane.STANDARD: 1}, lift_after_s=5.0, lifted_at_once=2)
    one.fleet.pool.upsert(spec("r2", seats=2, labels={"pool": "night"}), one.now)
    for _ in range(3):
        one.enter("a", lane=Lane.BULK, labels=[("pool", "night")], cap=2)
    assert one.serve() == [("a", "r2")]
    one.fleet.now += 6
    one.market.wake()
    assert one.serve() == [("a", "r2")]
    assert [turn.decision.lane for turn in one.turns] == [Lane.BULK, Lane.STANDARD]
    assert one.caps.in_flight("a", Lane.BULK, "r2") == 2
    assert one.serve() == []


def test_expired_entries_leave_and_hold_nothing():
    """At their deadline, not before."""
    one = Market()
    one.enter("a")
    late = one.enter("b", deadline=one.now + 5)
    one.serve()
    assert one.market.expire(one.now + 4.9) == []
    assert one.market.expire(one.now + 5) == [late]
    assert not one.market.leave(late, one.now)
    one.end()
    assert one.is_quiet()


def test_a_lane_holds_no_more_than_its_bound():
    """Who leaves is said, and when to come back: one place comes free a second, as long as no drain was seen."""
    one = Market(lanes={lane: LaneRule(bound=2) for lane in Lane})
    first, second = one.enter(), one.enter()
    assert one.market.queue.overflow(second) is None
    over = one.enter()
    assert one.market.queue.overflow(over) == Overflow(over, 3)
    assert one.market.leave(over, one.now)
    assert one.market.queue.overflow(first) is None
    assert [one.market.retry_after_s(Lane.INTERACTIVE, one.now) for _ in range(3)] == [1.0, 2.0, 2.0]


def test_load_counts_what_the_lane_may_use():
    """Seats kept for higher lanes are as good as taken; replicas that are not ready count for nothing."""
    one = Market(replicas=2, seats=4, reserved={Lane.INTERACTIVE: 1}, kv_used=0.5)
    assert one.market.load(Lane.BULK, one.now).seats_used_ratio == 0.0
    for _ in range(6):
        one.enter("a", lane=Lane.BULK)
    assert len(one.serve()) == 6
    one.enter("a", lane=Lane.BULK)
    one.fleet.now += 2
    bulk, person = (one.market.load(lane, one.now) for lane in (Lane.BULK, Lane.INTERACTIVE))
    assert (bulk.seats_used_ratio, person.seats_used_ratio) == (1.0, 0.75)
    assert bulk.kv_used_ratio == 0.5
    assert bulk.oldest_wait_s == {Lane.INTERACTIVE: 0.0, Lane.STANDARD: 0.0, Lane.BULK: 2.0}
    for name in ("r1", "r2"):
        one.fleet.pool.move(name, ReplicaState.DRAINING)
    assert one.market.load(Lane.BULK, one.now).seats_used_ratio == 1.0


def test_kv_pressure_sheds_the_lowest_lane_first():
    """At 0.96 of the cache in use, bulk is shed and standard is not."""
    one = Market(kv_used=0.96)
    one.enter()
    one.serve()
    bulk, standard = one.enter("a", lane=Lane.BULK), one.enter("a", lane=Lane.STANDARD)
    assert isinstance(one.market.refusal(bulk, one.now), Shed)
    assert bulk.is_waiting, "a refusal is only said"
    assert one.market.refusal(standard, one.now) is None


def test_an_old_flood_sheds_its_own_tenant_alone():
    """Who floods and has waited nearly as long as may be is sent away; another in the same lane waits its turn."""
    one = Market()
    one.enter("flood", lane=Lane.STANDARD)
    one.serve()
    one.enter("flood", lane=Lane.STANDARD)
    one.fleet.now += 250
    mine, other = one.enter("flood", lane=Lane.STANDARD), one.enter("quiet", lane=Lane.STANDARD)
    assert isinstance(one.market.refusal(mine, one.now), Shed)
    assert one.market.refusal(other, one.now) is None
    assert one.market.refusal(one.enter("quiet", lane=Lane.BULK), one.now), "standard's age is bulk's concern"


def test_who_would_come_too_late_is_refused_by_the_measured_drain():
    """One turn in 2 s: the third in line waits 6 s, and its deadline says whether that will do."""
    one = Market()
    for number in range(12):
        one.enter("a", f"{number}")
    one.serve()
    for _ in range(9):
        one.fleet.now += 2.0
        one.end()
        one.serve()
    assert len(one.market) == 2
    late, patient = one.enter("a", deadline=one.now + 5), one.enter("a", deadline=one.now + 60)
    refusal = one.market.refusal(late, one.now)
    assert isinstance(refusal, TooLate)
    assert refusal.wait_s == pytest.approx(6.0, rel=0.01)
    assert one.market.refusal(patient, one.now) is None
    place, eta_s = one.market.place_of(patient, one.now)
    assert (place.position, eta_s) == (4, pytest.approx(8.0, rel=0.01))
    assert one.market.place_of(one.turns[0].entry, one.now) is None
    assert one.market.refusal(one.turns[0].entry, one.now) is None
    assert patient.deadline < FOREVER


@pytest.mark.parametrize("case", ["full", "pinned", "leased"])
def test_a_lane_without_a_seat_is_not_asked_tenant_by_tenant(case):
    """A thousand tenants may wait, and every end of a turn looks again: what bars all of them alike is asked once."""
    one = Market(replicas=2, holdings=ScriptedHoldings("seat:r1") if case == "leased" else None)
    labels = [("pool", "night")] if case == "pinned" else []
    one.fleet.pool.upsert(spec("r2", seats=1, labels=dict(labels)), one.now)
    num_free = {"full": 0, "pinned": 1, "leased": 1}[case]
    for number in range(2 - num_free + 200):
        one.enter(f"tenant {number}", lane=Lane.BULK, labels=labels)
    one.serve()
    route, routed = one.fleet.router.route, []
    one.fleet.router.route = lambda query, now: routed.append(query) or route(query, now)
    one.market.queue.wake()
    assert one.serve() == []
    assert len(routed) == 1
    assert len(one.market) == 200
