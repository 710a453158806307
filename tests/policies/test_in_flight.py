"""A place in flight that gateways share: taken with its place in the minute, ended once with it, or neither."""

import pytest

from policies.in_flight import InFlight, Unit, UnitTake
from policies.lane import Lane
from policies.leases import SoleHoldings, cap
from policies.local_holdings import LocalHoldings
from policies.meters import Counted, Meter, Moment
from policies.quota import Quotas, Reason, Rejected
from policies.quota_level import organization_meters, project_meters
from policies.sole_meters import SoleMeters
from policies.tenant import Limits, Tenant

MOMENT = Moment(10.0, 1_700_000_010.0)


class Elsewhere(SoleHoldings):
    """Others may have what is lacking here. `relimited`: what was told without a request."""

    def __init__(self):
        super().__init__()
        self.relimited = {}

    def may_come(self, resource, now):
        """Always."""
        return True

    def relimit(self, resource, limit):
        """Remember it."""
        self.relimited[resource] = limit


def tenant(limits, above=Limits()):  # noqa: B008
    """A project of an organisation."""
    return Tenant("p", "o", "0" * 32, limits, organization_limits=above)


@pytest.mark.parametrize("ending", ["correct", "undo"])
def test_a_unit_ends_once_and_so_does_what_was_taken_with_it(ending):
    """Settled it stays counted in its minute, undone it does not; a second end, of either kind, changes nothing."""
    holdings, meters, minute = SoleHoldings(), SoleMeters(), Meter("project:p", Counted.REQUESTS, 5)
    take = InFlight(holdings).take("project:p", Lane.BULK, 1, meters.take(minute, 1, MOMENT), 0.0)
    assert isinstance(take, UnitTake)
    assert "ended" not in repr(take)
    for end in (ending, "correct", "undo"):
        take.undo(MOMENT) if end == "undo" else take.correct(1, MOMENT)
    assert "ended" in repr(take)
    assert holdings.statistics()["units_in_use"] == 0
    assert meters.used(minute, MOMENT) == (1 if ending == "correct" else 0)
    assert meters.statistics()["takes"] == 0


def test_where_nothing_can_come_there_is_none_and_else_the_unit_is_named():
    """Whoever is refused waits only for what others may hold."""
    for holdings, expected in ((SoleHoldings(), None), (Elsewhere(), Unit("cap:project:p:bulk", 0))):
        assert InFlight(holdings).take("project:p", Lane.BULK, 0, None, 0.0) == expected


def test_a_refused_place_at_the_project_gives_the_organisations_back():
    """All levels or none, whatever was taken first."""
    holdings = Elsewhere()
    quotas = Quotas(SoleMeters(), holdings=holdings)
    team = tenant(Limits(rpm=9, concurrency={Lane.BULK: 1}), Limits(rpm=9, concurrency={Lane.BULK: 5}))
    first = quotas.reserve(team, Lane.BULK, MOMENT)
    assert holdings.statistics()["units_in_use"] == 2
    refused = quotas.reserve(team, Lane.BULK, MOMENT)
    assert isinstance(refused, Rejected)
    assert (refused.reason, refused.pending) == (Reason.CONCURRENCY, (Unit("cap:project:p:bulk", 1), 1))
    assert holdings.statistics()["units_in_use"] == 2
    for of in (project_meters("p"), organization_meters("o")):
        assert quotas.meters.used(Meter(of, Counted.REQUESTS, 9), MOMENT) == 1
    first.settle(MOMENT)
    assert holdings.statistics()["units_in_use"] == 0


def test_other_lanes_and_tenants_without_a_limit_take_no_unit():
    """What is not limited costs nobody anything."""
    holdings = SoleHoldings()
    quotas = Quotas(SoleMeters(), holdings=holdings)
    assert not isinstance(quotas.reserve(tenant(Limits(concurrency={Lane.BULK: 1})), Lane.STANDARD, MOMENT), Rejected)
    assert holdings.statistics()["units_in_use"] == 0


def test_a_changed_limit_is_told_for_who_is_active_and_no_request_needs_to_come():
    """Gateways go by the lowest that one of them reports, so a raised one must be told by all."""
    holdings = Elsewhere()
    quotas = Quotas(SoleMeters(), holdings=holdings)
    before = tenant(Limits(concurrency={Lane.BULK: 2}), Limits(concurrency={Lane.BULK: 3}))
    quotas.reserve(before, Lane.BULK, MOMENT)
    quotas.relimit({"p": before}.get)
    assert holdings.relimited == {}
    after = tenant(Limits(concurrency={Lane.BULK: 8}), Limits(concurrency={Lane.BULK: 9}))
    quotas.relimit({"p": after}.get)
    assert holdings.relimited == {cap("project:p", Lane.BULK): 8, cap("organization:o", Lane.BULK): 9}
    quotas.relimit({}.get)
    Quotas().relimit({"p": after}.get)


def test_what_is_unused_is_given_up_when_another_lacks_it_and_not_before_it_could_be_taken():
    """A unit that was granted a moment ago belongs to whoever waited for it."""
    holdings = LocalHoldings("a", urgent_families=("cap",))
    assert not holdings.try_take("cap:p:bulk", 4, 0.0)
    report = holdings.report(("cap:p:bulk",), 0.0)
    assert report.asks[0].is_urgent
    assert not holdings.report(("cap:p:bulk",), 0.0).asks[0].is_urgent, "asked for once"
    report = holdings.report(("cap:p:bulk",), 0.0)
    grant(holdings, report, 3)
    holdings.press(("cap:p:bulk",), 0.01)
    assert holdings.statistics()["units_held"] == 3
    assert holdings.try_take("cap:p:bulk", 4, 0.02)
    holdings.press(("cap:p:bulk",), 0.03)
    assert holdings.statistics()["units_held"] == 1
    ask = holdings.report(("cap:p:bulk",), 0.04).asks[0]
    assert (ask.held, ask.in_use, ask.wanted) == (1, 1, 1)


def test_seats_are_not_called_for():
    """Who finds no seat waits in its lane, and units go by fair shares."""
    holdings = LocalHoldings("a", urgent_families=("cap",))
    assert not holdings.try_take("seat:r", 4, 0.0)
    report = holdings.report(("seat:r",), 0.0)
    assert not report.asks[0].is_urgent
    grant(holdings, report, 3)
    holdings.press(("seat:r",), 1.0)
    assert holdings.statistics()["units_held"] == 3


def grant(holdings, report, *allowed):
    """The store's answer."""
    from policies.leases import Grants

    holdings.apply(report, Grants(1, 2, allowed))
