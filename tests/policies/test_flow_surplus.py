"""The order of flows by surplus: right whatever grew, shrank and left since it was noted, and bounded."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.entry import Entry
from policies.fair_settings import FairSettings
from policies.flow_surplus import SurplusOrder
from policies.lane import Lane
from policies.lane_flows import LaneFlows


class Flows:
    """A lane's flows; `entries`: what waits, by tenant, first come first."""

    def __init__(self, **weights):
        self.lane = LaneFlows(FairSettings())
        self.weights = weights
        self.entries = {tenant: [] for tenant in weights}

    def push(self, tenant, num=1):
        """So many more wait."""
        for _ in range(num):
            entry = Entry(tenant, Lane.STANDARD, weight=self.weights[tenant])
            self.entries[tenant].append(entry)
            self.lane.push(entry, 0.0)

    def leave(self, tenant, num=1):
        """So many leave, the first ones."""
        for _ in range(num):
            entry = self.entries[tenant].pop(0)
            self.lane.leave(entry.flow, entry, 0.0)

    @property
    def largest(self):
        """The tenant with the largest surplus."""
        flow = self.lane.surpluses.largest()
        return None if flow is None else flow.tenant


def test_nobody_has_a_surplus_of_one_place():
    """The first place is everybody's own, whatever its weight."""
    flows = Flows(a=0.001, b=5.0)
    for tenant in "ab":
        flows.push(tenant)
    assert flows.largest is None
    assert len(flows.lane.surpluses) == 0


def test_the_largest_for_its_weight_is_found():
    """Five places at weight 4 are less than three at weight 1."""
    flows = Flows(heavy=4.0, light=1.0)
    flows.push("heavy", 5)
    assert flows.largest == "heavy"
    flows.push("light", 3)
    assert flows.largest == "light"


def test_of_equals_it_is_the_one_that_grew_first():
    """So that the answer does not change without a reason."""
    flows = Flows(a=1.0, b=1.0)
    flows.push("b", 3)
    flows.push("a", 3)
    assert flows.largest == "b"
    flows.push("a")
    flows.leave("a")
    assert flows.largest == "b"


def test_a_flow_that_shrank_is_corrected():
    """What was noted of it is too high, until somebody asks."""
    flows = Flows(a=1.0, b=1.0, c=1.0)
    for tenant, num in (("a", 9), ("b", 6), ("c", 4)):
        flows.push(tenant, num)
    flows.leave("a", 7)
    assert flows.largest == "b"
    flows.leave("b", 6)
    assert flows.largest == "c"
    flows.leave("c", 3)
    assert flows.largest == "a"


def test_another_weight_counts_at_once():
    """An administrator may change it while requests wait; the next one brings it."""
    flows = Flows(a=1.0, b=1.0)
    flows.push("a", 5)
    flows.push("b", 4)
    flows.weights["a"] = 10.0
    flows.push("a")
    assert flows.largest == "b"
    flows.weights["b"] = 100.0
    flows.push("b")
    assert flows.largest == "a"


def test_what_is_outdated_is_bounded_and_goes_with_the_last():
    """A flood at a full lane is corrected and notes itself with every entry; a day of it must not be remembered."""
    flows = Flows(a=1.0, b=1.0)
    flows.push("b", 2)
    most = 0
    for _ in range(1000):
        flows.push("a")
        assert flows.largest is not None
        most = max(most, len(flows.lane.surpluses))
    assert most == 2 * 2 + 64
    for tenant in "ab":
        flows.leave(tenant, len(flows.entries[tenant]))
    assert len(flows.lane.surpluses) == 0
    assert flows.largest is None


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1).map(Random))
def test_it_is_the_largest_whatever_came_and_left(random):
    """Against counting everybody."""
    flows = Flows(**{tenant: random.choice([0.5, 1.0, 3.0, 7.7]) for tenant in "abcdefgh"})
    for _ in range(random.randrange(10, 300)):
        tenant = random.choice("aaabbcdefgh")
        if random.random() < 0.6:
            if random.random() < 0.05:
                flows.weights[tenant] = random.choice([0.5, 1.0, 3.0, 7.7])
            flows.push(tenant, random.choice([1, 1, 1, 5]))
        elif flows.entries[tenant]:
            flows.leave(tenant, random.randrange(1, len(flows.entries[tenant]) + 1))
        if random.random() < 0.5:
            held = {one: entries[0].flow.surplus for one, entries in flows.entries.items() if len(entries) > 1}
            assert (flows.largest is None) == (not held)
            if held:
                assert held[flows.largest] == max(held.values())
        surpluses: SurplusOrder = flows.lane.surpluses
        assert len(surpluses) <= 2 * 8 + 64
