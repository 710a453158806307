"""Caps of a tenant in a lane: in flight and per replica, given back exactly once, leased where gateways share them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.caps import CapLimits, Caps, Hold
from policies.lane import Lane
from policies.leases import SoleHoldings, batch, cap

NOW = 10.0
FREE = CapLimits()


def taken(hold) -> Hold:
    assert isinstance(hold, Hold)
    return hold


def test_without_caps_everything_is_taken():
    """None means no cap."""
    caps = Caps()
    assert all(caps.take("a", Lane.BULK, FREE, "r", NOW) for _ in range(1000))


def test_a_cap_in_flight_counts_over_all_replicas():
    """Two on one replica and one on another are three."""
    caps, limits = Caps(), CapLimits(in_flight=2)
    taken(caps.take("a", Lane.BULK, limits, "r1", NOW))
    second = taken(caps.take("a", Lane.BULK, limits, "r2", NOW))
    assert not caps.can_take("a", Lane.BULK, limits)
    assert caps.take("a", Lane.BULK, limits, "r3", NOW) is None
    second.give_back()
    assert caps.can_take("a", Lane.BULK, limits, "r1")


def test_a_batch_cap_counts_on_its_replica_alone():
    """A full batch on one replica leaves the others open."""
    caps, limits = Caps(), CapLimits(per_replica=1)
    taken(caps.take("a", Lane.BULK, limits, "r1", NOW))
    assert caps.can_take("a", Lane.BULK, limits)
    assert not caps.can_take("a", Lane.BULK, limits, "r1")
    assert caps.can_take("a", Lane.BULK, limits, "r2")


def test_tenants_and_lanes_do_not_share_caps():
    """The flow, tenant and lane, is what a cap belongs to."""
    caps, limits = Caps(), CapLimits(in_flight=1, per_replica=1)
    for tenant, lane in (("a", Lane.BULK), ("a", Lane.STANDARD), ("b", Lane.BULK)):
        taken(caps.take(tenant, lane, limits, "r", NOW))
    assert caps.in_flight("a", Lane.BULK) == caps.in_flight("b", Lane.BULK, "r") == 1
    assert caps.in_flight("b", Lane.INTERACTIVE) == 0


@pytest.mark.parametrize("limits", [CapLimits(in_flight=0), CapLimits(per_replica=0)])
def test_a_cap_of_0_takes_nothing(limits):
    """0 means none allowed."""
    assert Caps().take("a", Lane.BULK, limits, "r", NOW) is None


def test_a_lowered_cap_acts_at_once_and_takes_nothing_away():
    """Limits come with each call."""
    caps = Caps()
    holds = [taken(caps.take("a", Lane.BULK, CapLimits(in_flight=3), "r", NOW)) for _ in range(3)]
    holds.pop().give_back()
    assert not caps.can_take("a", Lane.BULK, CapLimits(in_flight=2))
    assert caps.in_flight("a", Lane.BULK) == 2


def test_a_hold_is_given_back_once_and_its_flow_is_told():
    """Finished, failed, abandoned or twice: one unit."""
    told = []
    caps = Caps(on_give_back=lambda tenant, lane: told.append((tenant, lane)))
    with pytest.raises(RuntimeError), taken(caps.take("a", Lane.BULK, FREE, "r", NOW)) as hold:
        assert repr(hold) == "<Hold a bulk r held>"
        raise RuntimeError
    hold.give_back()
    assert (told, repr(hold), repr(caps)) == ([("a", Lane.BULK)], "<Hold a bulk r ended>", "<Caps holds=0 flows=0>")
    assert caps.statistics() == {"holds": 0, "flows": 0, "refused": 0}


def test_leased_units_are_taken_and_given_back_with_the_hold():
    """Among several gateways each unit of a cap is leased; what has no cap is not."""
    holdings = SoleHoldings()
    caps = Caps(holdings)
    with taken(caps.take("a", Lane.BULK, CapLimits(in_flight=5, per_replica=2), "r", NOW)):
        assert holdings.statistics() == {"units_in_use": 2, "resources": 2}
        with taken(caps.take("a", Lane.BULK, FREE, "r", NOW)):
            assert holdings.statistics()["units_in_use"] == 2
    assert holdings.statistics()["units_in_use"] == 0


@pytest.mark.parametrize(("resource", "elsewhere"), [(cap("a", Lane.BULK), False), (batch("a", Lane.BULK, "r"), True)])
def test_what_a_lease_refused_is_not_asked_for_again_until_it_is_granted(resource, elsewhere):
    """Else the queue would pick the same entry for ever; and a refusal leaves nothing taken."""
    holdings, limits = SoleHoldings(), CapLimits(in_flight=1, per_replica=1)
    caps = Caps(holdings)
    assert holdings.try_take(resource, 1, NOW)  # another gateway's
    assert caps.can_take("a", Lane.BULK, limits, "r")
    assert caps.take("a", Lane.BULK, limits, "r", NOW) is None
    assert holdings.statistics()["units_in_use"] == 1
    assert not caps.can_take("a", Lane.BULK, limits, "r")
    assert caps.can_take("a", Lane.BULK, limits, "other") is elsewhere
    holdings.give_back(resource)
    assert caps.granted() == [("a", Lane.BULK)]
    assert caps.statistics() == {"holds": 0, "flows": 0, "refused": 0}
    taken(caps.take("a", Lane.BULK, limits, "r", NOW)).give_back()


def test_giving_back_clears_a_refusal():
    """The unit given back may be the one that was missing."""
    holdings, limits = SoleHoldings(), CapLimits(in_flight=2)
    caps = Caps(holdings)
    own = taken(caps.take("a", Lane.BULK, limits, "r", NOW))
    holdings.try_take(cap("a", Lane.BULK), 2, NOW)
    assert caps.take("a", Lane.BULK, limits, "r", NOW) is None
    own.give_back()
    taken(caps.take("a", Lane.BULK, limits, "r", NOW)).give_back()
    assert caps.granted() == []


class Holding(RuleBasedStateMachine):
    """Takes and endings in any order against plain counting."""

    @initialize(leased=st.booleans())
    def begin(self, leased):
        self.holdings = SoleHoldings() if leased else None
        self.caps = Caps(self.holdings)
        self.limits = CapLimits(in_flight=4, per_replica=2)
        self.holds: list[Hold] = []

    def held(self, tenant, replica=None) -> int:
        return sum(hold.tenant == tenant and replica in {None, hold.replica} for hold in self.holds)

    @rule(tenant=st.sampled_from("ab"), replica=st.sampled_from(["r1", "r2", "r3"]))
    def take(self, tenant, replica):
        hold = self.caps.take(tenant, Lane.BULK, self.limits, replica, NOW)
        assert (hold is not None) == (self.held(tenant) < 4 and self.held(tenant, replica) < 2)
        self.holds += [hold] if hold else []

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), twice=st.booleans())
    def give_back(self, data, twice):
        hold = self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1)))
        for _ in range(1 + twice):
            hold.give_back()

    @invariant()
    def counts_agree(self):
        assert self.caps.statistics()["holds"] == len(self.holds)
        assert self.caps.statistics()["flows"] == len({hold.tenant for hold in self.holds})
        if self.holdings is not None:
            assert self.holdings.statistics()["units_in_use"] == 2 * len(self.holds)
        for tenant in "ab":
            assert self.caps.in_flight(tenant, Lane.BULK) == self.held(tenant)


TestHolding = Holding.TestCase
TestHolding.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
