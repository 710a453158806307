"""The fair queue: lanes in order, tenants by weight, hits where fairness allows, nobody passed too often or forgotten."""

import itertools
from collections import Counter

import pytest

from policies.entry import Entry
from policies.fair_queue import FairQueue, Place
from policies.fair_settings import FairSettings, LaneRule
from policies.lane import Lane
from policies.offer import NoRoom, Offer

NOW = 1000.0


def lanes(bound=100_000, standard=3.0, bulk=1.0) -> dict[Lane, LaneRule]:
    return {
        Lane.INTERACTIVE: LaneRule(bound=bound),
        Lane.STANDARD: LaneRule(standard, bound),
        Lane.BULK: LaneRule(bulk, bound),
    }


def queue(**settings) -> FairQueue:
    settings.setdefault("lanes", lanes())
    settings.setdefault("output_weight", 1.0)
    return FairQueue(FairSettings(**settings))


def entry(tenant="a", lane=Lane.INTERACTIVE, request=None, **more) -> Entry:
    return Entry(tenant, lane, request, **more)


def pushed(fair, *entries, now=NOW):
    for one in entries:
        fair.push(one, now)
    return entries[0] if len(entries) == 1 else entries


def offering(gains=None, cost=100):
    """A chooser with room for all; gains by entry, 0 for the others."""
    return lambda one: Offer((gains or {}).get(one, 0.0), cost)


def drained(fair, chooser, now=NOW):
    """Everything that can be picked, in order; nothing ends meanwhile."""
    picks = []
    while (picked := fair.pick(chooser, now)) is not None or fair.is_scan_unfinished:
        picks += [picked] if picked else []
    return picks


def served(picks) -> list[str]:
    return [picked.entry.tenant for picked in picks]


def test_an_empty_queue_picks_nothing_and_asks_nobody():
    """The common case must cost nothing."""
    fair = queue()
    assert fair.pick(lambda _: pytest.fail("nobody waits"), NOW) is None
    assert (len(fair), repr(fair)) == (0, "<FairQueue waiting/in flight: interactive=0/0 standard=0/0 bulk=0/0>")


def test_one_flow_without_hits_is_first_come_first_served():
    """Where nothing speaks for overtaking, order of arrival holds."""
    fair = queue()
    entries = [entry(request=number) for number in range(20)]
    pushed(fair, *entries)
    assert [picked.entry.request for picked in drained(fair, offering())] == list(range(20))


def test_a_pick_tells_what_was_chosen_and_charged():
    """The caller needs the payload for the seat and the charge for the ledger."""
    fair = queue(output_weight=2.0)
    one = pushed(fair, entry(output_tokens=30))
    picked = fair.pick(lambda _: Offer(5.0, 40, "seat"), NOW + 3)
    assert (picked.entry, picked.offer.payload, picked.charged, picked.queued_s) == (one, "seat", 100.0, 3.0)
    assert (one.is_waiting, fair.depth(Lane.INTERACTIVE), fair.in_flight(Lane.INTERACTIVE)) == (False, 0, 1)
    assert repr(picked) == "<Picked a interactive open charged=100>"


def test_nothing_is_free():
    """A request that is all cached and expects no output still counts as service."""
    assert FairSettings().cost(0, 0) == 1.0


def test_interactive_comes_before_standard_before_bulk():
    """The order of the lanes is strict while nothing is held by the lower two."""
    fair = queue()
    pushed(fair, entry("b", Lane.BULK), entry("s", Lane.STANDARD), entry("i"))
    assert served(drained(fair, offering())) == ["i", "s", "b"]


def test_a_lower_lane_is_asked_only_when_nobody_above_has_room():
    """A bulk entry must not take the seat that an interactive one waits for."""
    fair = queue()
    pushed(fair, entry("i"), entry("b", Lane.BULK))
    assert fair.pick(lambda _: NoRoom.LANE, NOW) is None
    asked = []
    assert fair.pick(lambda one: asked.append(one) or NoRoom.LANE, NOW) is None
    assert asked == []  # closed until a wake
    fair.wake()
    assert fair.pick(offering(), NOW).entry.tenant == "i"


def test_a_lane_with_its_own_replicas_goes_on_while_the_lane_above_is_full():
    """Bulk may be pinned to replicas of its own."""
    fair = queue()
    pushed(fair, entry("i"), entry("b", Lane.BULK))
    picked = fair.pick(lambda one: NoRoom.LANE if one.lane is Lane.INTERACTIVE else Offer(0, 1), NOW)
    assert picked.entry.tenant == "b"


def test_standard_and_bulk_hold_seats_by_their_lanes_weights():
    """With 3 to 1 and 16 seats, bulk holds 4 of them, whatever a request costs."""
    fair = queue()
    pushed(fair, *(entry("s", Lane.STANDARD) for _ in range(50)), *(entry("b", Lane.BULK) for _ in range(50)))
    held = Counter(picked.entry.lane for picked in (fair.pick(offering(), NOW) for _ in range(16)))
    assert held == {Lane.STANDARD: 12, Lane.BULK: 4}


def test_bulk_takes_every_seat_that_standard_does_not_want():
    """The division is work-conserving."""
    fair = queue()
    pushed(fair, *(entry("b", Lane.BULK) for _ in range(16)))
    assert len(drained(fair, offering())) == 16


def test_an_old_bulk_entry_is_served_as_standard_but_never_above_interactive():
    """Bulk without seats of its own must make progress, yet no person waits for it."""
    fair = queue(lift_after_s=10.0)
    pushed(fair, entry("old", Lane.BULK), entry("older", Lane.BULK))
    no_bulk_seats = lambda one: NoRoom.LANE if one.served_as is Lane.BULK else Offer(0, 1)  # noqa: E731
    assert fair.pick(no_bulk_seats, NOW + 9) is None
    fair.wake()
    pushed(fair, entry("i"), entry("s", Lane.STANDARD), now=NOW + 10)
    picks = drained(fair, no_bulk_seats, NOW + 10)
    assert served(picks) == ["i", "old", "s"]
    assert [picked.is_lifted for picked in picks] == [False, True, False]


def test_no_more_are_lifted_at_once_than_the_setting_allows():
    """A bulk queue of hours must not become the standard lane."""
    fair = queue(lift_after_s=10.0, lifted_at_once=2)
    pushed(fair, *(entry("b", Lane.BULK) for _ in range(9)))
    no_bulk_seats = lambda one: NoRoom.LANE if one.served_as is Lane.BULK else Offer(0, 1)  # noqa: E731
    first, second = drained(fair, no_bulk_seats, NOW + 20)
    fair.settle(first, 1, NOW + 21)
    fair.put_back(second)
    fair.wake()
    assert [picked.is_lifted for picked in drained(fair, no_bulk_seats, NOW + 22)] == [True, True]


def test_a_young_entry_of_another_tenant_is_not_lifted_along():
    """Only who has waited so long is lifted."""
    fair = queue(lift_after_s=10.0, lifted_at_once=5)
    pushed(fair, entry("old", Lane.BULK))
    pushed(fair, entry("young", Lane.BULK), entry("old", Lane.BULK), now=NOW + 9)
    no_bulk_seats = lambda one: NoRoom.LANE if one.served_as is Lane.BULK else Offer(0, 1)  # noqa: E731
    assert served(drained(fair, no_bulk_seats, NOW + 10)) == ["old"]


@pytest.mark.parametrize("lift_after_s", [None, 1e9])
def test_without_a_lift_bulk_waits(lift_after_s):
    """None lifts nobody."""
    fair = queue(lift_after_s=lift_after_s)
    pushed(fair, entry("b", Lane.BULK))
    assert fair.pick(lambda one: NoRoom.LANE if one.served_as is Lane.BULK else Offer(0, 1), NOW + 1e6) is None


def test_the_best_hit_within_the_quantum_is_chosen():
    """Locality is what the quantum is for."""
    fair = queue(quantum_tokens=1000)
    a, b = pushed(fair, entry("a"), entry("b"))
    assert fair.pick(offering({b: 5.0}), NOW).entry is b
    assert fair.pick(offering({a: -5.0}), NOW).entry is a


def test_a_flow_that_is_a_quantum_ahead_waits_whatever_it_hits():
    """Fairness bounds locality."""
    fair = queue(quantum_tokens=1000, skips=100)
    hits = [entry("hit") for _ in range(20)]
    pushed(fair, *hits, *(entry("miss") for _ in range(20)))
    picks = [fair.pick(offering(dict.fromkeys(hits, 9.0)), NOW) for _ in range(12)]
    assert served(picks) == ["hit"] * 10 + ["miss", "hit"]


def test_a_head_is_passed_at_most_k_times_then_it_is_next():
    """Even within the quantum nobody is passed for ever."""
    fair = queue(quantum_tokens=1e9, skips=3)
    hits = [entry("hit") for _ in range(20)]
    pushed(fair, entry("miss"), *hits)
    picks = [fair.pick(offering(dict.fromkeys(hits, 9.0)), NOW) for _ in range(5)]
    assert served(picks) == ["hit", "hit", "hit", "miss", "hit"]


def test_within_a_flow_an_entry_is_overtaken_less_often_than_the_window_is_wide():
    """A tenant's own unlucky request must not starve behind its lucky ones."""
    fair = queue(window=4)
    cold = entry(request="cold")
    warm = [entry(request=number) for number in range(9)]
    pushed(fair, cold, *warm)
    picks = [fair.pick(offering(dict.fromkeys(warm, 9.0)), NOW) for _ in range(5)]
    assert [picked.entry.request for picked in picks] == [0, 1, 2, "cold", 3]


def test_with_no_skips_and_no_quantum_the_least_served_is_always_next():
    """K = 0, Q = 0 and W = 1 are strict fair queueing."""
    fair = queue(quantum_tokens=0, skips=0, window=1)
    entries = [entry(tenant) for tenant in "aaaabbbb"]
    pushed(fair, *entries)
    gains = {one: number for number, one in enumerate(entries)}
    assert [picked.entry for picked in drained(fair, offering(gains))] == [entries[i] for i in (0, 4, 1, 5, 2, 6, 3, 7)]


def test_no_more_offers_are_asked_for_than_heads():
    """The price of a pick is bounded by a setting."""
    fair = queue(heads=5, window=3, asks=5)
    pushed(fair, *(entry(tenant) for tenant in "abcdefghij" for _ in range(4)))
    asked = []
    fair.pick(lambda one: asked.append(one.tenant) or Offer(0, 1), NOW)
    assert asked == ["a", "b", "c", "d", "e"]


def test_heads_come_before_what_waits_behind_them():
    """With few flows the rest of the questions go to their windows, nearest first."""
    fair = queue(heads=5, window=3, asks=5)
    pushed(fair, *(entry(tenant, request=number) for tenant in "ab" for number in range(4)))
    asked = []
    fair.pick(lambda one: asked.append((one.tenant, one.request)) or Offer(0, 1), NOW)
    assert asked == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2)]


def test_those_at_home_where_a_seat_is_free_are_asked_first():
    """With many waiting, the few questions go to those that the seat's replica is warm for; the first turn always has one."""
    fair = queue(heads=3)
    pushed(fair, *(entry(tenant, request=number, home=f"r{number}") for tenant in "abc" for number in range(9)))
    asked = []

    def chooser(one):
        asked.append((one.tenant, one.request))
        return Offer(float(one.home == "r7"), 100)

    assert fair.pick(chooser, NOW, near=["r7"]).entry.request == 7
    assert asked == [("a", 0), ("a", 7), ("b", 7)]


def test_home_is_no_more_than_a_hint():
    """Nobody at home, or nobody with a home: the turns are as without."""
    fair = queue()
    pushed(fair, entry("a", home="r1"), entry("b"), entry("a"))
    picks = [fair.pick(offering(), NOW, near=["r2", "r3"]) for _ in range(3)]
    assert served(picks) == ["a", "b", "a"]


def test_an_entry_at_home_beyond_the_window_is_not_asked():
    """The window bounds how far the hit may reach in a flow."""
    fair = queue(window=4)
    entries = [entry(request=number, home="warm" if number >= 4 else None) for number in range(6)]
    pushed(fair, *entries)
    gains = {one: one.request for one in entries}
    picks = [fair.pick(lambda one: Offer(gains[one], 1), NOW, near=["warm"]) for _ in range(3)]
    assert [picked.entry.request for picked in picks] == [3, 2, 1]
    assert fair.pick(lambda one: Offer(gains[one], 1), NOW, near=["warm"]).entry.request == 0
    assert fair.pick(lambda one: Offer(gains[one], 1), NOW, near=["warm"]).entry.request == 5


def test_an_entry_at_home_that_is_set_aside_or_leaves_is_not_asked():
    """The order by home follows every way in and out."""
    fair = queue()
    first, gone, barred, last = (entry(request=number, home="r") for number in range(4))
    pushed(fair, first, gone, barred, last)
    fair.remove(gone, NOW)
    answers = {first: Offer(0, 1), barred: NoRoom.ENTRY, last: Offer(0, 1)}
    assert fair.pick(answers.__getitem__, NOW, near=["r"]).entry is first
    assert fair.pick(answers.__getitem__, NOW, near=["r"]).entry is last
    fair.wake()
    assert fair.pick(offering(), NOW, near=["r"]).entry is barred


def test_those_at_home_are_asked_in_order_after_a_wake_too():
    """What was set aside returns to its place among those of its home."""
    fair = queue(heads=2, window=8)
    away, first, second = entry(), entry(home="r"), entry(home="r")
    pushed(fair, away, first, second)
    answers = {away: NoRoom.ENTRY, first: NoRoom.ENTRY, second: NoRoom.ENTRY}
    assert fair.pick(answers.__getitem__, NOW, near=["r"]) is None
    fair.wake()
    asked = []
    fair.pick(lambda one: asked.append(one) or Offer(0, 1), NOW, near=["r"])
    assert asked == [away, first]


def test_service_follows_the_weights():
    """2 to 1 under overload, within 5%, though the heavier one's requests cost three times as much."""
    fair = queue()
    service = Counter()
    for tenant, weight in (("a", 2.0), ("b", 1.0)):
        pushed(fair, *(entry(tenant, weight=weight) for _ in range(3000)))
    for _ in range(2000):
        picked = fair.pick(lambda one: Offer(0, 300 if one.tenant == "a" else 100), NOW)
        service[picked.entry.tenant] += picked.charged
        fair.settle(picked, picked.charged, NOW)
    assert service["a"] / service["b"] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("actual", "then"), [(600.0, "bbbbbbbbbb"), (100.0, "ababababab"), (0.0, "aababababa")])
def test_settling_corrects_the_charge_in_both_directions(actual, then):
    """A wrong prediction is paid back: dearer than predicted costs turns, cheaper gives them."""
    fair = queue(quantum_tokens=0)
    pushed(fair, *(entry(tenant) for tenant in "a" * 9 + "b" * 12))
    for picked in [fair.pick(offering(), NOW) for _ in range(4)]:
        fair.settle(picked, actual if picked.entry.tenant == "a" else picked.charged, NOW)
    assert "".join(served([fair.pick(offering(), NOW) for _ in range(10)])) == then


def test_an_idle_tenant_cannot_hoard_credit():
    """Hours without requests do not buy a flood: it shares from the moment it comes."""
    fair = queue(quantum_tokens=500)
    fair.settle(pushed_and_picked(fair, "idler"), 100, NOW)
    pushed(fair, *(entry("worker") for _ in range(500)))
    for _ in range(200):
        fair.pick(offering(), NOW)
    pushed(fair, *(entry("idler") for _ in range(300)))
    counts = Counter(served([fair.pick(offering(), NOW) for _ in range(100)]))
    assert abs(counts["idler"] - counts["worker"]) * 100 <= 2 * (500 + 100)


def pushed_and_picked(fair, tenant, **more):
    pushed(fair, entry(tenant, **more))
    return fair.pick(offering(), NOW)


def test_leaving_and_returning_does_not_shed_a_debt():
    """A tenant that got more than its share waits, even if its queue was empty for a moment."""
    fair = queue(quantum_tokens=0)
    pushed(fair, entry("greedy"), *(entry("other") for _ in range(20)))
    greedy = fair.pick(lambda _: Offer(0, 1000), NOW)
    assert greedy.entry.tenant == "greedy"
    fair.settle(greedy, 1000, NOW)
    assert fair.statistics()["interactive"]["idle"] == 1
    pushed(fair, entry("greedy"))
    assert served([fair.pick(offering(), NOW) for _ in range(11)]) == ["other"] * 10 + ["greedy"]


@pytest.mark.parametrize(("then", "idle"), [("nothing", 1), ("paid", 0), ("old", 0)])
def test_a_debt_is_forgotten_when_it_is_paid_or_old(then, idle):
    """What the queue remembers of tenants without requests is bounded in time, and given up without harm."""
    fair = queue(debt_s=60.0)
    fair.settle(pushed_and_picked(fair, "debtor"), 100, NOW)
    pushed(fair, *(entry("other") for _ in range(20)))
    for _ in range(3 if then == "paid" else 1):
        fair.pick(offering(), NOW)
    fair.expire(NOW + (60 if then == "old" else 59))
    assert fair.statistics()["interactive"]["idle"] == idle


def test_flows_without_work_are_bounded_in_number():
    """A million tenants that each came once leave no million flows."""
    fair = queue(idle_flows=10, quantum_tokens=1e9, skips=1000)
    pushed(fair, entry("waits"))
    for number in range(100):
        last = pushed(fair, entry(f"t{number}"))
        fair.settle(fair.pick(offering({last: 9.0}), NOW), 100, NOW)
    assert fair.statistics()["interactive"]["idle"] == 10
    assert fair.statistics()["interactive"]["flows"] == 11


def test_flows_that_come_and_go_with_nobody_else_waiting_leave_nothing():
    """Old debts are dropped as new flows come, without anybody calling `expire`."""
    fair = queue(debt_s=60.0)
    for number in range(1000):
        pushed(fair, entry(f"t{number}"), now=NOW + number)
        fair.settle(fair.pick(offering(), NOW + number), 100, NOW + number)
    assert fair.statistics()["interactive"]["flows"] <= 62


def test_an_entry_without_room_does_not_block_those_behind_it():
    """A request that may go to no replica with a seat waits; the tenant's next does not."""
    fair = queue()
    tried, fresh = pushed(fair, entry(request="tried"), entry(request="fresh"))
    assert fair.pick(lambda one: NoRoom.ENTRY if one is tried else Offer(0, 1), NOW).entry is fresh
    assert tried.passed == 0  # it could not have gone: nobody took its place
    fair.wake()
    assert fair.pick(offering(), NOW).entry is tried


def test_a_flow_without_room_does_not_block_the_others():
    """A tenant whose batch caps are full everywhere waits, for the price of one question."""
    fair = queue()
    pushed(fair, *(entry("capped") for _ in range(50)), entry("other"))
    asked = []

    def chooser(one):
        asked.append(one.tenant)
        return NoRoom.FLOW if one.tenant == "capped" else Offer(0, 1)

    assert fair.pick(chooser, NOW).entry.tenant == "other"
    assert asked == ["capped", "other"]
    assert fair.pick(chooser, NOW) is None
    assert asked == ["capped", "other"]  # not asked again before a wake
    fair.wake()
    assert fair.pick(offering(), NOW).entry.tenant == "capped"


def test_a_flow_at_its_cap_is_asked_again_when_it_gives_back_not_before():
    """Other tenants' seats change nothing for it, so it must cost them nothing."""
    fair = queue()
    pushed(fair, entry("capped"))
    assert fair.pick(lambda _: NoRoom.CAPPED, NOW) is None
    fair.wake()
    assert fair.pick(lambda _: pytest.fail("asked"), NOW) is None
    assert fair.statistics()["interactive"]["capped"] == 1
    fair.wake_flow("capped", Lane.INTERACTIVE)
    assert fair.pick(offering(), NOW).entry.tenant == "capped"


def test_capped_flows_are_asked_again_when_caps_are_changed():
    """A raised limit gives nothing back, yet must act."""
    fair = queue()
    pushed(fair, entry("capped"))
    assert fair.pick(lambda _: NoRoom.CAPPED, NOW) is None
    fair.wake(with_capped=True)
    assert fair.pick(offering(), NOW).entry.tenant == "capped"


def test_a_capped_flow_gets_its_share_when_it_can_but_no_hoard():
    """What it missed while it could not be served is its due up to a quantum."""
    fair = queue(quantum_tokens=300, skips=0, window=1)
    pushed(fair, *(entry("capped") for _ in range(20)), *(entry("other") for _ in range(50)))
    refuse = lambda one: NoRoom.CAPPED if one.tenant == "capped" else Offer(0, 100)  # noqa: E731
    for _ in range(20):
        fair.pick(refuse, NOW)
    fair.wake_flow("capped", Lane.INTERACTIVE)
    counts = served([fair.pick(offering(), NOW) for _ in range(8)])
    assert counts[:3] == ["capped"] * 3
    assert counts.count("capped") <= 6


def test_a_new_entry_of_a_flow_aside_is_asked():
    """Those before it had no room; it may."""
    fair = queue()
    pushed(fair, entry(request="tried"))
    assert fair.pick(lambda _: NoRoom.ENTRY, NOW) is None
    pushed(fair, entry(request="fresh"))
    assert fair.pick(offering(), NOW).entry.request == "fresh"
    assert fair.pick(offering(), NOW) is None
    fair.wake()
    assert fair.pick(offering(), NOW).entry.request == "tried"


def test_a_scan_stops_at_its_bound_and_goes_on_at_the_next_pick():
    """One pick never costs more than its setting, and yet whoever has room is found."""
    fair = queue(heads=4, asks=10)
    pushed(fair, *(entry(f"t{number}") for number in range(35)))
    asked = []
    chooser = lambda one: asked.append(one) or (Offer(0, 1) if one.tenant == "t34" else NoRoom.FLOW)  # noqa: E731
    for round_ in range(1, 4):
        assert fair.pick(chooser, NOW) is None
        assert fair.is_scan_unfinished
        assert len(asked) == 10 * round_
    assert fair.pick(chooser, NOW).entry.tenant == "t34"
    assert not fair.is_scan_unfinished
    assert len(set(asked)) == 35


def test_an_unfinished_scan_is_finished_before_it_starts_over_and_holds_back_lower_lanes():
    """Seats that come free all the time must not keep the scan from its end, nor let bulk slip in."""
    fair = queue(heads=4, asks=4)
    pushed(fair, *(entry(f"t{number}") for number in range(9)), entry("bulk", Lane.BULK))
    asked = []

    def chooser(one):
        asked.append(one.tenant)
        return Offer(0, 1) if len(asked) > 4 and one.tenant in {"t0", "bulk"} else NoRoom.FLOW

    assert fair.pick(chooser, NOW) is None
    fair.wake()  # a seat for t0 or bulk, while t4 to t8 have not been asked
    assert fair.pick(chooser, NOW) is None
    assert fair.pick(chooser, NOW).entry.tenant == "t0"
    assert asked == [f"t{number}" for number in range(9)] + ["t0", "t1", "t2"]


def test_who_comes_back_has_its_old_place():
    """It was dispatched before those that came after it, and did nothing wrong; its age counts from its first coming."""
    fair = queue()
    first = pushed(fair, entry(request="first", home="r"), now=NOW - 5)
    fair.settle(fair.pick(offering(), NOW), 0, NOW)
    pushed(fair, *(entry(request=number, home="r") for number in range(2)), now=NOW + 1)
    pushed(fair, entry(request="back", home="r", since=first.since), now=NOW + 2)
    assert fair.oldest_since(Lane.INTERACTIVE) == NOW + 1  # how long it ran is no time in the queue
    picks = drained(fair, offering(), NOW + 3)
    assert [(picked.entry.request, picked.queued_s) for picked in picks] == [("back", 1.0), (0, 2.0), (1, 2.0)]
    assert picks[0].entry.since == NOW - 5


def test_who_comes_back_goes_behind_those_that_are_older_still():
    """One that was overtaken for another's hit, or set aside, came before it."""
    fair = queue()
    tried, overtaken, hit = (
        pushed(fair, entry(request=name), now=NOW + second) for second, name in enumerate(["tried", "overtaken", "hit"])
    )
    answers = {tried: NoRoom.ENTRY, overtaken: Offer(0.0, 1), hit: Offer(9.0, 1)}
    picked = fair.pick(answers.__getitem__, NOW + 3)
    assert picked.entry is hit
    fair.settle(picked, 0, NOW + 4)
    pushed(fair, entry(request="young"), now=NOW + 5)
    back = [pushed(fair, entry(request=name, since=hit.since), now=NOW + 6) for name in ("hit again", "and again")]
    fair.wake()
    order = ["tried", "overtaken", "hit again", "and again", "young"]
    assert [picked.entry.request for picked in drained(fair, offering(), NOW + 7)] == order
    assert not any(one.is_waiting for one in back)


def test_bulk_that_gave_way_is_lifted_by_the_time_since_it_first_came():
    """Else who is cancelled for people again and again would never be old enough."""
    fair = queue(lift_after_s=10.0)
    pushed(fair, entry("b", Lane.BULK, since=NOW - 9))
    no_bulk_seats = lambda one: NoRoom.LANE if one.served_as is Lane.BULK else Offer(0, 1)  # noqa: E731
    assert fair.pick(no_bulk_seats, NOW) is None
    assert fair.pick(no_bulk_seats, NOW + 1).is_lifted


def test_an_expired_entry_leaves_its_lane():
    """Waiting past the deadline is of no use to anybody."""
    fair = queue()
    entries = [entry(request=seconds, deadline=NOW + seconds) for seconds in (5, 1, 3)] + [entry(request="for ever")]
    pushed(fair, *entries)
    assert fair.due_at == NOW + 1
    assert fair.expire(NOW + 0.9) == []
    assert [one.request for one in fair.expire(NOW + 3)] == [1, 3]
    assert fair.due_at == NOW + 5
    assert [picked.entry.request for picked in drained(fair, offering(), NOW + 4)] == [5, "for ever"]
    assert fair.expire(NOW + 1e9) == []


def test_a_removed_entry_is_never_picked():
    """The client left; leaving twice is harmless."""
    fair = queue()
    first, second = pushed(fair, entry(request=1, deadline=NOW + 9), entry(request=2))
    assert fair.remove(first, NOW)
    assert not fair.remove(first, NOW)
    assert fair.pick(offering(), NOW).entry is second
    assert not fair.remove(second, NOW)
    assert fair.expire(NOW + 10) == []


@pytest.mark.parametrize("reason", [NoRoom.ENTRY, NoRoom.FLOW, NoRoom.CAPPED])
def test_an_entry_can_leave_wherever_it_waits(reason):
    """Set aside or capped, the client may go."""
    fair = queue()
    one = pushed(fair, entry())
    assert fair.pick(lambda _: reason, NOW) is None
    assert fair.remove(one, NOW)
    fair.wake(with_capped=True)
    assert fair.pick(offering(), NOW) is None
    assert fair.statistics()["interactive"] == dict.fromkeys(fair.statistics()["interactive"], 0)


def test_a_pick_ends_once():
    """Whoever ends it first decides the charge; the second changes nothing."""
    fair = queue()
    pushed(fair, entry())
    picked = fair.pick(offering(), NOW)
    assert fair.settle(picked, 50, NOW)
    assert not fair.settle(picked, 5000, NOW)
    assert not fair.put_back(picked)
    assert (fair.in_flight(Lane.INTERACTIVE), len(fair)) == (0, 0)


def test_a_pick_put_back_waits_at_its_old_place_uncharged():
    """A seat that was gone is nobody's fault: order, passes and counters are as before."""
    fair = queue(quantum_tokens=0)
    entries = pushed(fair, *(entry(tenant, request=number, deadline=NOW + 9) for tenant in "ab" for number in range(3)))
    picked = fair.pick(offering(), NOW)
    assert picked.entry is entries[0]
    assert fair.put_back(picked)
    assert fair.depth(Lane.INTERACTIVE) == 6
    order = [(picked.entry.tenant, picked.entry.request) for picked in drained(fair, offering())]
    assert [request for tenant, request in order if tenant == "a"] == [0, 1, 2]
    assert Counter(order[:2])["b", 0] == 1  # by turns, as if nothing had happened


def test_the_last_entry_of_a_flow_can_be_put_back():
    """Its flow was empty meanwhile."""
    fair = queue()
    picked = pushed_and_picked(fair, "a", deadline=NOW + 9)
    assert fair.put_back(picked)
    assert fair.expire(NOW + 9) == [picked.entry]


def test_place_is_exact_for_one_flow():
    """A waiting stream is told its position, from 1."""
    fair = queue()
    entries = pushed(fair, *(entry() for _ in range(5)))
    assert [fair.place_of(one) for one in entries] == [Place(number, number) for number in range(1, 6)]
    fair.pick(offering(), NOW)
    assert fair.place_of(entries[4]) == Place(4, 4)
    assert fair.place_of(entries[0]) is None


def test_place_counts_turns_by_weight_and_lanes_above():
    """Two flows go by turns; a flow of double weight has two turns in three; interactive goes first."""
    fair = queue()
    a = pushed(fair, *(entry("a", Lane.BULK, weight=2.0) for _ in range(10)))
    pushed(fair, *(entry("b", Lane.BULK, weight=1.0) for _ in range(10)))
    assert fair.place_of(a[4]) == Place(7, 7)
    pushed(fair, entry("i"), *(entry("s", Lane.STANDARD) for _ in range(4)))
    assert fair.place_of(a[4]) == Place(7 + 1 + 4, 7)
    assert fair.place_of(a[9]).in_lane <= 20


def test_place_never_leaves_the_lane():
    """An estimate, but never beyond what waits."""
    fair = queue()
    a = pushed(fair, *(entry("a") for _ in range(50)))
    b = pushed(fair, *(entry("b", weight=10.0) for _ in range(2)))
    for one in itertools.chain(a[::2], b[:1]):
        fair.remove(one, NOW)
    for one in itertools.chain(a[1::2], b[1:]):
        assert 1 <= fair.place_of(one).in_lane <= 26


def test_the_oldest_of_a_lane_is_known():
    """Queue age is a signal of saturation."""
    fair = queue()
    first = pushed(fair, entry("a"))
    pushed(fair, entry("b"), now=NOW + 1)
    assert (fair.oldest_since(Lane.INTERACTIVE), fair.oldest_since(Lane.BULK)) == (NOW, None)
    fair.remove(first, NOW + 2)
    assert fair.oldest_since(Lane.INTERACTIVE) == NOW + 1


def test_a_changed_weight_acts_at_once_and_settles_by_the_old_one():
    """What was charged by one weight is corrected by the same, or the account would not balance."""
    fair = queue(quantum_tokens=0)
    pushed(fair, entry("a", weight=1.0))
    picked = fair.pick(offering(), NOW)
    pushed(fair, entry("a", weight=4.0), entry("b"))
    fair.settle(picked, 0, NOW)
    again = pushed(fair, entry("a", weight=4.0))
    assert again.flow.counter == pytest.approx(0.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"quantum_tokens": -1},
        {"skips": -1},
        {"window": 0},
        {"flows": 0},
        {"heads": 9, "asks": 8},
        {"lanes": {}},
        {"idle_flows": 0},
    ],
)
def test_senseless_settings_are_refused(bad):
    """At start-up, not at the first request."""
    with pytest.raises(ValueError, match=r"at least|needs"):
        FairSettings(**bad)


@pytest.mark.parametrize("bad", [{"weight": 0}, {"bound": -1}])
def test_senseless_lane_rules_are_refused(bad):
    """A weight of 0 would starve a lane for ever."""
    with pytest.raises(ValueError, match="weight above 0"):
        LaneRule(**bad)


def test_an_entry_waits_once():
    """Queued twice it would be served twice."""
    fair = queue()
    one = pushed(fair, entry())
    assert repr(one) == "<Entry a interactive waiting passed=0>"
    with pytest.raises(AssertionError, match="queued already"):
        fair.push(one, NOW)
    with pytest.raises(AssertionError, match="weight"):
        entry(weight=0)
