"""The places of a full lane: divided by weight, whoever floods, and a place for everybody who has none."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.entry import Entry, Picked
from policies.fair_queue import FairQueue
from policies.fair_settings import FairSettings, LaneRule
from policies.lane import Lane
from policies.lane_queue import Overflow
from policies.offer import NoRoom, Offer

WEIGHTS = (0.2, 1.0, 1.0, 2.0, 7.7)


@dataclass
class Places:
    """A lane of `bound` places that nobody is dispatched from but by `pick`. `lost`: who had to leave, in order."""

    bound: int
    fair: FairQueue = field(init=False)
    waiting: list[Entry] = field(default_factory=list)
    lost: list[Overflow] = field(default_factory=list)

    def __post_init__(self):
        lanes = {lane: LaneRule(bound=self.bound) for lane in Lane}
        self.fair = FairQueue(FairSettings(lanes=lanes, lift_after_s=None))

    def come(self, tenant, weight=1.0, num=1, now=0.0, **more):
        """Requests come one after the other; the last."""
        for _ in range(num):
            entry = Entry(tenant, Lane.STANDARD, weight=weight, **more)
            self.fair.push(entry, now)
            self.waiting.append(entry)
            overflow = self.fair.overflow(entry)
            if overflow is not None:
                self._check(entry, overflow)
                self.lost.append(overflow)
                self.leave(overflow.entry)
        return entry

    def leave(self, entry):
        """One leaves."""
        assert self.fair.remove(entry, 0.0)
        self.waiting.remove(entry)

    def held(self):
        """Places by tenant."""
        return Counter(one.tenant for one in self.waiting)

    def _check(self, newcomer, overflow):
        """The promise of the module: the newest of whoever keeps at least its share without it."""
        held, loser = self.held(), overflow.entry
        weights = {one.tenant: one.flow.weight for one in self.waiting}
        share = (self.bound + 1 - len(held)) * weights[loser.tenant] / sum(weights.values())
        left = held[loser.tenant] - 1
        assert overflow.num_held == left + 1
        assert left >= share - 1e-9
        if not left:
            assert set(held.values()) == {1}
            assert loser is newcomer
        surpluses = {tenant: (num - 1) / weights[tenant] for tenant, num in held.items()}
        assert surpluses[loser.tenant] == max(surpluses.values())
        if loser.tenant != newcomer.tenant:
            assert surpluses[loser.tenant] > surpluses[newcomer.tenant], "or the two would push each other out for ever"
        mine = list(loser.flow.waiting) or list(loser.flow.aside)
        assert loser is mine[-1]


def test_one_tenant_alone_may_fill_the_lane():
    """All of it; what comes then is refused, and those that wait are not disturbed."""
    one = Places(100)
    one.come("a", num=100)
    assert one.lost == []
    last = one.come("a")
    assert one.lost == [Overflow(last, 101)]
    assert one.held() == {"a": 100}


def test_a_flood_is_never_another_tenants_refusal():
    """B waits for nothing and finds a place, and so on until it has as many as A; A loses its newest, one for one."""
    one = Places(100)
    one.come("a", num=250)
    one.lost.clear()
    for number in range(50):
        one.come("b")
        assert one.held() == {"a": 99 - number, "b": 1 + number}
    assert {overflow.entry.tenant for overflow in one.lost} == {"a"}
    own = one.come("b")
    assert one.lost[-1] == Overflow(own, 51)
    assert one.held() == {"a": 50, "b": 50}


def test_a_hundred_floods_leave_a_place_for_who_comes_last():
    """However many flood: while anybody has two places, who has none gets one."""
    one = Places(300)
    for number in range(100):
        one.come(f"flood{number}", num=300)
    for number in range(200):
        late = one.come(f"late{number}")
        assert late.is_waiting
    assert set(one.held().values()) == {1}


def test_a_lane_of_as_many_tenants_as_places_refuses_the_next():
    """Nobody's only request is thrown out for somebody else's, whatever the weights."""
    one = Places(3)
    for tenant in "abc":
        one.come(tenant, weight=0.01)
    next_one = one.come("d", weight=100.0)
    assert one.lost == [Overflow(next_one, 1)]
    assert one.held() == dict.fromkeys("abc", 1)


def test_places_are_divided_by_weight():
    """What is beyond everybody's first place."""
    one = Places(63)
    for _ in range(100):
        one.come("a", weight=3.0)
        one.come("b", weight=2.0)
        one.come("c", weight=1.0)
    assert one.held() == {"a": 31, "b": 21, "c": 11}


def test_the_newest_leaves_and_the_oldest_stays():
    """Who has waited longest has the most to lose; a deadline and a home go with who leaves."""
    one = Places(4)
    entries = [one.come("a", request=number, deadline=9.0, home="r") for number in range(4)]
    one.come("b")
    assert [overflow.entry for overflow in one.lost] == entries[3:]
    picks = list(iter(lambda: one.fair.pick(lambda _: Offer(0, 1), 0.0, ["r"]), None))
    assert [picked.entry for picked in picks if picked.entry.tenant == "a"] == entries[:3]
    assert one.fair.expire(10.0) == []


def test_who_comes_back_is_not_the_newest():
    """Its tenant's surplus gives way; a request that was dispatched already keeps its place before the others."""
    one = Places(3)
    entries = [one.come("a", request=number, now=1.0 + number) for number in range(3)]
    back = one.come("a", request="back", now=9.0, since=0.5)
    assert back.is_waiting
    assert one.lost == [Overflow(entries[2], 4)]
    assert one.fair.pick(lambda _: Offer(0, 1), 9.0).entry is back


@pytest.mark.parametrize("reason", [NoRoom.ENTRY, NoRoom.FLOW, NoRoom.CAPPED])
def test_a_flow_without_room_loses_its_surplus_like_any_other(reason):
    """A tenant at its caps may flood, too: set aside or capped, its newest leaves."""
    one = Places(4)
    entries = [one.come("a") for _ in range(4)]
    assert one.fair.pick(lambda _: reason, 0.0) is None
    one.come("b")
    assert one.lost == [Overflow(entries[3], 4)]
    one.fair.wake(with_capped=True)
    assert one.fair.pick(lambda _: Offer(0, 1), 0.0) is not None
    for entry in [*entries[:3], one.waiting[-1]]:
        one.fair.remove(entry, 0.0)
    assert not any(one.fair.statistics()["standard"][name] for name in ("waiting", "ready", "aside", "capped"))


def test_a_lane_without_places_takes_nobody():
    """`queue = 0`: who finds no seat leaves."""
    one = Places(0)
    first = one.come("a")
    assert one.lost == [Overflow(first, 1)]
    assert len(one.fair) == 0


def test_lanes_are_bounded_each_by_itself():
    """A full bulk queue takes no place of a person's."""
    fair = FairQueue(FairSettings(lanes={lane: LaneRule(bound=1) for lane in Lane}))
    for lane in Lane:
        one, over = Entry("a", lane), Entry("a", lane)
        fair.push(one, 0.0)
        assert fair.overflow(one) is None
        fair.push(over, 0.0)
        assert fair.overflow(over) == Overflow(over, 2)
        fair.remove(over, 0.0)
    assert len(fair) == 3


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**32 - 1).map(Random))
def test_who_loses_a_place_keeps_its_share_whatever_happens(bound, random):
    """Arrivals of any weight, floods, leaves, picks, put-backs, returns and wakes; `Places._check` holds each time."""
    one, tenants, open_picks = Places(bound), "abcdefghijklmnop"[: random.randrange(1, 17)], []
    weights = {tenant: random.choice(WEIGHTS) for tenant in tenants}

    def chooser(_):
        reasons = [NoRoom.ENTRY, NoRoom.ENTRY, NoRoom.FLOW, NoRoom.CAPPED]
        return random.choice(reasons) if random.random() < 0.4 else Offer(random.random(), random.randrange(300))

    for step in range(random.randrange(20, 200)):
        chance, now = random.random(), float(step)
        if chance < 0.6:
            tenant = random.choice(tenants[: random.choice([1, 3, 16])])
            if random.random() < 0.05:
                weights[tenant] = random.choice(WEIGHTS)
            one.come(tenant, weights[tenant], random.choice([1, 1, 1, 20]), now, home=random.choice([None, "r1"]))
        elif chance < 0.7 and one.waiting:
            one.leave(random.choice(one.waiting))
        elif chance < 0.85:
            picked = one.fair.pick(chooser, now, random.choice([(), ("r1",)]))
            if picked is not None and random.random() < 0.3:
                assert one.fair.put_back(picked)
            elif picked is not None:
                one.waiting.remove(picked.entry)
                open_picks.append(picked)
        elif open_picks:
            _end(one, open_picks.pop(random.randrange(len(open_picks))), random, now)
        else:
            one.fair.wake(with_capped=random.random() < 0.5)
        assert len(one.waiting) == one.fair.depth(Lane.STANDARD) <= bound


def _end(one: Places, picked: Picked, random: Random, now: float) -> None:
    """Finished, or given way to others: then it comes back."""
    assert one.fair.settle(picked, random.choice([0.0, picked.charged, 500.0]), now)
    if random.random() < 0.5:
        entry = picked.entry
        one.come(entry.tenant, entry.weight, now=now, since=entry.since)
