"""Holdings and the lease table step by step: who may take what, when it returns, and what a lost answer costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fair_shares import Want, fair_shares
from policies.lane import Lane
from policies.lease_table import LeaseTable
from policies.leases import MAX_PER_REPORT, SoleHoldings, batch, cap, family_of, seat
from policies.local_holdings import LocalHoldings

LEASE_S = 4.0
START = 1000.0
SEAT = seat("r")


class Site:
    """Gateways and their table, with a clock."""

    def __init__(self, *names: str, **options) -> None:
        self.table = LeaseTable(LEASE_S)
        self.now = START
        self.pressed = []
        self.gateways = {
            name: LocalHoldings(name, lease_s=LEASE_S, on_press=lambda name=name: self.pressed.append(name), **options)
            for name in names
        }
        for name in names:
            self.renew(name)
        for _ in range(4):  # a table that knows nothing grants nothing for a lease
            self.wait(LEASE_S / 4)

    def renew(self, name: str, *, is_answered: bool = True) -> None:
        gateway = self.gateways[name]
        for names in gateway.due():
            report = gateway.report(names, self.now)
            grants = self.table.renew(report, self.now)
            if is_answered:
                gateway.apply(report, grants)

    def wait(self, seconds: float, *, without: str = "") -> None:
        self.now += seconds
        for name in self.gateways:
            if name not in without:
                self.renew(name)

    def take(self, name: str, limit: int, times: int = 1) -> int:
        """How many of so many tries succeed, with a report after the first refusal."""
        taken = 0
        for waiting in range(times, 0, -1):
            for _ in range(2):
                if self.gateways[name].try_take(SEAT, limit, self.now, waiting):
                    taken += 1
                    break
                self.renew(name)
        return taken

    def give_back(self, name: str, times: int = 1) -> None:
        for _ in range(times):
            self.gateways[name].give_back(SEAT)


def test_names_say_whose_units_they_are():
    """A resource's name is the same in every gateway."""
    assert [seat("r1"), cap("p", Lane.BULK), batch("p", Lane.BULK, "r1")] == [
        "seat:r1",
        "cap:p:bulk",
        "batch:p:bulk:r1",
    ]
    assert [family_of(name) for name in (seat("a:b"), cap("p", Lane.BULK))] == ["seat", "cap"]


def test_one_process_has_every_limit_exactly():
    """With one gateway nothing is reported and nothing approximate."""
    holdings = SoleHoldings()
    assert [holdings.try_take(SEAT, 2, START) for _ in range(3)] == [True, True, False]
    holdings.give_back(SEAT)
    assert holdings.try_take(SEAT, 2, START)
    assert not holdings.try_take(SEAT, 1, START)
    assert repr(holdings) == "<SoleHoldings units_in_use=2>"
    holdings.give_back(SEAT)
    holdings.give_back(SEAT)
    holdings.relimit(SEAT, 5)
    assert holdings.overdue(START) == {}
    assert holdings.statistics() == {"units_in_use": 0, "resources": 0}
    with pytest.raises(AssertionError, match="more often than taken"):
        holdings.give_back(SEAT)


@given(
    st.integers(0, 50),
    st.dictionaries(
        st.text("abcdef", max_size=2), st.builds(Want, st.integers(0, 60), st.integers(0, 9), st.integers(0, 5))
    ),
)
def test_fair_shares_are_max_min_fair(limit, wants):
    """Nobody gets more than wanted, nothing is wasted, and who gets less than wanted has at most one less than anyone."""
    shares = fair_shares(limit, wants)
    wanted = {name: want.wanted for name, want in wants.items()}
    assert sum(shares.values()) == min(limit, sum(wanted.values()))
    assert all(0 <= shares[name] <= wanted[name] for name in wants)
    for name in wants:
        if shares[name] < wanted[name]:
            assert shares[name] >= max(shares.values()) - 1


def test_odd_units_go_to_who_had_least():
    """Three units for four gateways must go round."""
    wants = {"a": Want(9, 0, 4), "b": Want(9, 0, 0), "c": Want(9, 0, 1), "d": Want(9, 0, 2)}
    assert fair_shares(3, wants) == {"a": 0, "b": 1, "c": 1, "d": 1}
    assert fair_shares(0, {"a": Want(1, 0, 0)}) == {"a": 0}
    assert fair_shares(4, {}) == {}


def test_an_odd_unit_stays_until_its_holder_is_well_ahead():
    """It should not change hands with every request."""
    assert fair_shares(1, {"a": Want(9, 1, 10), "b": Want(9, 0, 5)}, stay=6) == {"a": 1, "b": 0}
    assert fair_shares(1, {"a": Want(9, 1, 12), "b": Want(9, 0, 5)}, stay=6) == {"a": 0, "b": 1}


def test_a_gateway_alone_may_use_the_whole_limit():
    """Nothing is kept for gateways that do not exist."""
    site = Site("a")
    assert site.take("a", 3, times=5) == 3
    assert site.gateways["a"].statistics() == {"units_in_use": 3, "units_held": 3, "resources": 1}


def test_a_new_table_grants_nothing_for_a_lease():
    """It cannot know what was granted before it was emptied."""
    site = Site("a")
    site.take("a", 3, times=3)
    site.give_back("a")
    site.table.forget()
    site.gateways["b"] = LocalHoldings("b", lease_s=LEASE_S)
    site.renew("b")
    assert site.take("b", 3, times=3) == 0
    assert site.gateways["a"].try_take(SEAT, 3, site.now)  # what is held stays valid
    site.renew("a")
    for _ in range(4):
        site.wait(LEASE_S / 4)
    assert site.take("b", 3, times=3) == 0
    site.give_back("a", 3)
    site.wait(0.01)
    site.wait(0.01)
    assert site.take("b", 3, times=3) >= 1


def test_nothing_new_is_taken_once_the_lease_has_run_out():
    """Others may have been granted it by then."""
    site = Site("a")
    site.take("a", 3, times=2)
    gateway = site.gateways["a"]
    site.now += 0.9 * LEASE_S
    assert not gateway.has_lease(site.now)
    assert not gateway.try_take(SEAT, 3, site.now)
    assert gateway.overdue(site.now) == {SEAT: 2}
    assert gateway.overdue(site.now - 0.01) == {}


def test_a_lost_answer_costs_nothing_but_time():
    """What the store granted and the gateway never heard of is the store's again at the next report."""
    site = Site("a", "b")
    assert not site.gateways["a"].try_take(SEAT, 3, site.now, waiting=3)
    site.renew("a", is_answered=False)
    assert site.table.held(SEAT, site.now) == {"a": 3}
    assert not site.gateways["a"].try_take(SEAT, 3, site.now)
    site.gateways["a"].release()
    site.renew("a")
    assert site.table.held(SEAT, site.now) == {}
    assert site.take("b", 3, times=3) == 3


def test_a_report_that_arrives_late_changes_nothing():
    """A broken connection may deliver what was overtaken."""
    site = Site("a", "b")
    site.take("a", 3, times=3)
    old = site.gateways["a"].report([SEAT], site.now)
    site.give_back("a", 3)
    site.wait(LEASE_S / 2)
    site.wait(LEASE_S / 2)
    assert site.take("b", 3, times=3) == 3
    answer = site.table.renew(old, site.now)
    assert answer.is_stale
    assert not site.gateways["a"].apply(old, answer)
    assert site.table.held(SEAT, site.now)["b"] == 3


def test_units_of_a_dead_gateway_return_within_a_lease_and_at_once_if_buried():
    """A lease is how long the silent are waited for; who saw the death need not wait."""
    site = Site("a", "b", "c")
    assert site.take("a", 4, times=4) == 4
    site.wait(0.98 * LEASE_S, without="a")
    assert site.take("b", 4, times=1) == 0
    site.wait(0.02 * LEASE_S, without="a")
    assert site.take("b", 4, times=4) == 4
    assert site.table.bury("b")
    assert not site.table.bury("b")
    assert site.take("c", 4, times=4) == 4


def test_demand_moves_units_as_they_are_given_back():
    """Nothing in use is taken away; what comes back goes to who lacks it."""
    site = Site("a", "b")
    assert site.take("a", 4, times=4) == 4
    assert site.take("b", 4, times=9) == 0
    site.wait(0.1)
    site.give_back("a")
    assert not site.gateways["a"].try_take(SEAT, 4, site.now)
    assert "a" in site.pressed
    site.renew("a")
    assert site.take("b", 4, times=9) == 1
    site.give_back("a")
    site.renew("a")
    assert site.take("b", 4, times=9) == 1
    assert not site.gateways["a"].try_take(SEAT, 4, site.now) or site.table.held(SEAT, site.now)["a"] <= 2


def test_a_few_units_wait_for_a_newcomer_of_a_large_limit():
    """Its first request should not have to wait until somebody's ends."""
    site = Site("a", "b", "c", "d")
    assert site.take("a", 32, times=40) == 29
    assert site.take("b", 32, times=1) == 1


def test_in_use_beyond_a_lease_is_counted_and_not_taken_again():
    """A gateway that was cut off comes back with requests still running: the others' units stay theirs."""
    site = Site("a", "b")
    assert site.take("a", 3, times=2) == 2
    for _ in range(5):
        site.wait(LEASE_S / 4, without="a")
    assert site.take("b", 3, times=3) == 3
    site.renew("a")
    assert site.table.held(SEAT, site.now) == {"a": 2, "b": 3}
    site.give_back("a", 2)
    assert not site.gateways["a"].try_take(SEAT, 3, site.now)


def test_three_units_go_round_four_gateways():
    """Each reports at its own time, so each sees another moment of the others; all must still agree who is next."""
    site = Site("a", "b", "c", "d")
    served = dict.fromkeys(site.gateways, 0)
    for turn in range(400):
        site.now += 0.03
        name = "abcd"[turn % 4]
        gateway = site.gateways[name]
        for _ in range(gateway.statistics()["units_in_use"]):
            gateway.give_back(SEAT)
        site.renew(name)
        while gateway.try_take(SEAT, 3, site.now, waiting=9):
            served[name] += 1
    assert min(served.values()) > 0.7 * max(served.values()), served


def test_a_newcomer_that_always_wants_overtakes_who_had_much_long_ago():
    """Service is forgotten by halves, so a large holding of the past is no debt for minutes."""
    site = Site("a", "b")
    assert site.take("a", 40, times=40) >= 35
    for _ in range(8):
        site.wait(LEASE_S / 4)
    site.give_back("a", site.gateways["a"].statistics()["units_in_use"])
    rounds = {"a": 0, "b": 0}
    for _ in range(32):
        site.wait(LEASE_S / 4)
        for name, gateway in site.gateways.items():
            for _ in range(gateway.statistics()["units_in_use"]):
                gateway.give_back(SEAT)
            site.renew(name)
            rounds[name] += site.take(name, 1, times=1)
    assert min(rounds.values()) >= 4, rounds


@pytest.mark.parametrize("is_told", [True, False])
def test_a_lowered_limit_holds_as_units_are_given_back(is_told):
    """It is in force for all as soon as one gateway has reported it and the others have reported once more."""
    site = Site("a", "b")
    assert site.take("a", 6, times=2) == 2
    assert site.take("b", 6, times=2) == 2
    if is_told:
        for gateway in site.gateways.values():
            gateway.relimit(SEAT, 1)
        assert {"a", "b"} <= set(site.pressed)
    else:
        assert not site.gateways["a"].try_take(SEAT, 1, site.now)
    site.wait(0.1)
    site.wait(0.1)
    site.give_back("a", 2)
    assert not site.gateways["a"].try_take(SEAT, 1, site.now)
    site.give_back("b", 2)
    site.wait(0.1)
    site.wait(0.1)
    assert site.take("a", 1, times=1) + site.take("b", 1, times=1) == 1


def test_a_limit_of_0_is_not_even_reported():
    """None allowed needs no round trip and no memory."""
    site = Site("a")
    assert not site.gateways["a"].try_take(SEAT, 0, site.now)
    assert site.gateways["a"].statistics()["resources"] == 0
    assert site.pressed == []


def test_idle_resources_are_dropped():
    """Replicas and tenants come and go."""
    site = Site("a")
    site.take("a", 3, times=3)
    site.give_back("a", 3)
    for _ in range(4):
        site.wait(LEASE_S / 4)
    assert site.gateways["a"].statistics() == {"units_in_use": 0, "units_held": 0, "resources": 0}
    assert site.table.held(SEAT, site.now) == {}


def test_the_number_of_resources_is_bounded():
    """A flood of tenants must not make a gateway grow; what is over the bound is refused."""
    holdings = LocalHoldings("a", lease_s=LEASE_S, max_resources=2)
    for number in range(5):
        holdings.try_take(f"seat:{number}", 1, START)
    assert holdings.statistics()["resources"] == 2


def test_a_report_has_a_bounded_number_of_resources():
    """A call to the store stays short; the rest goes with the next one."""
    holdings = LocalHoldings("a", lease_s=LEASE_S)
    for number in range(2 * MAX_PER_REPORT + 1):
        holdings.try_take(f"seat:{number}", 1, START)
    assert [len(names) for names in holdings.due()] == [MAX_PER_REPORT, MAX_PER_REPORT, 1]
    assert [len(names) for names in holdings.due(only_pressed=True)] == [0]


def test_giving_back_what_was_not_taken_is_a_bug():
    """Twice the same end would lend a unit twice."""
    site = Site("a")
    site.take("a", 3)
    site.give_back("a")
    with pytest.raises(AssertionError, match="more often than taken"):
        site.give_back("a")
    with pytest.raises(AssertionError, match="never taken"):
        site.gateways["a"].give_back("seat:other")


class TestWithoutTheStore:
    """The degraded mode: nothing new, or a share of the families named."""

    def outage(self, site: Site, seconds: float) -> None:
        """The store answers nobody for so long."""
        for _ in range(int(seconds * 4)):
            site.now += 0.25
            for gateway in site.gateways.values():
                for names in gateway.due():
                    gateway.fail(gateway.report(names, site.now))

    def take_all(self, site: Site, resource: str, limit: int) -> int:
        return sum(
            gateway.try_take(resource, limit, site.now) for gateway in site.gateways.values() for _ in range(limit)
        )

    def test_nothing_new_is_the_default(self):
        """The only mode that keeps a limit whoever is cut off."""
        site = Site("a", "b")
        self.outage(site, 2 * LEASE_S)
        assert self.take_all(site, SEAT, 9) == 0

    def test_a_share_after_everyones_lease_has_ended(self):
        """Seats of a family named for it stay usable, and their sum stays within the limit."""
        site = Site("a", "b", fallback_families=["seat"])
        self.outage(site, LEASE_S)
        assert self.take_all(site, SEAT, 9) == 0
        self.outage(site, 0.5)
        assert self.take_all(site, SEAT, 9) == 8
        assert self.take_all(site, "cap:p:bulk", 9) == 0
        assert site.gateways["a"].overdue(site.now) == {}

    def test_on_return_what_is_in_use_counts(self):
        """No double allowance: for one lease everyone says what they use."""
        site = Site("a", "b", fallback_families=["seat"])
        self.outage(site, LEASE_S + 0.5)
        assert self.take_all(site, SEAT, 9) == 8
        site.renew("a")
        assert site.take("a", 9, times=9) == 0
        for _ in range(5):
            site.wait(LEASE_S / 4)
        assert self.take_all(site, SEAT, 9) <= 1

    def test_a_frozen_gateway_has_no_share_when_it_wakes(self):
        """It has not seen the store fail just now, so the others may be using all of it."""
        site = Site("a", fallback_families=["seat"])
        self.outage(site, 1.0)
        site.now += 3 * LEASE_S
        assert not site.gateways["a"].try_take(SEAT, 9, site.now)

    def test_two_outages_are_not_one(self):
        """Frozen between them, a gateway cannot know that the others were served meanwhile."""
        site = Site("a", "b", fallback_families=["seat"])
        self.outage(site, 1.0)
        frozen = site.gateways.pop("a")
        for _ in range(5):
            site.wait(1.0)
        site.gateways["a"] = frozen
        self.outage(site, 1.0)
        assert not frozen.try_take(SEAT, 9, site.now)

    def test_a_newcomer_has_no_share(self):
        """The others were never told to count it."""
        site = Site("a", "b", fallback_families=["seat"])
        site.gateways["c"] = LocalHoldings("c", lease_s=LEASE_S, fallback_families=["seat"])
        site.renew("c")
        self.outage(site, LEASE_S + 0.5)
        assert not site.gateways["c"].try_take(SEAT, 9, site.now)
        assert site.gateways["a"].try_take(SEAT, 9, site.now)
