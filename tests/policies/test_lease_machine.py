"""Leases over any order of takes, reports, losses, deaths, partitions, freezes, limit changes and store restarts.

What must hold: units in use never exceed the limit in force, none is lost for ever, and nobody is starved. In use
beyond a lease that has run out ("adrift") is counted apart: a strict gateway ends it, a lenient one lets it finish.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.lease_table import LeaseTable
from policies.local_holdings import LocalHoldings

LEASE_S = 4.0
RESOURCES = ("seat:r", "cap:p:bulk")
MOST_GATEWAYS = 4


class Gateway:
    """One process: its holdings, and the units that its requests use."""

    def __init__(self, name: str, fallback_families: tuple[str, ...]) -> None:
        self.holdings = LocalHoldings(
            name, lease_s=LEASE_S, fallback_families=fallback_families, urgent_families=("cap",)
        )
        self.in_use: Counter[str] = Counter()
        self.adrift: Counter[str] = Counter()
        self.is_frozen = False
        self.is_cut_off = False

    def give_back(self, resource: str) -> None:
        self.holdings.give_back(resource)
        self.in_use[resource] -= 1
        self.adrift[resource] = max(0, self.adrift[resource] - 1)


class Fleet(RuleBasedStateMachine):
    is_strict = False
    fallback_families: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(LEASE_S)
        self.now = 1000.0
        self.living: list[Gateway] = []
        self.dead: list[str] = []
        self.late: list = []
        self.num_started = 0
        self.limits = dict.fromkeys(RESOURCES, 3)
        self.in_force = dict(self.limits)  # the highest limit that someone may still go by

    @initialize(limit=st.integers(0, 12))
    def begin(self, limit):
        self.limits["seat:r"] = self.in_force["seat:r"] = limit
        self.start()
        self.start()

    def pick(self, number: int) -> Gateway:
        return self.living[number % len(self.living)]

    @precondition(lambda self: len(self.living) < MOST_GATEWAYS)
    @rule()
    def start(self):
        self.num_started += 1
        self.living.append(Gateway(f"g{self.num_started}", self.fallback_families))

    @precondition(lambda self: self.living)
    @rule(number=st.integers(0, 3), resource=st.sampled_from(RESOURCES), times=st.integers(1, 5))
    def take(self, number, resource, times):
        gateway = self.pick(number)
        for waiting in range(times, 0, -1):
            if gateway.is_frozen:
                return
            if gateway.holdings.try_take(resource, self.limits[resource], self.now, waiting):
                gateway.in_use[resource] += 1

    @precondition(lambda self: self.living)
    @rule(number=st.integers(0, 3), resource=st.sampled_from(RESOURCES))
    def give_back(self, number, resource):
        gateway = self.pick(number)
        if gateway.in_use[resource] and not gateway.is_frozen:
            gateway.give_back(resource)

    @precondition(lambda self: self.living)
    @rule(
        number=st.integers(0, 3),
        fate=st.sampled_from(["answered", "answered", "answered", "report lost", "answer lost", "late"]),
        only_pressed=st.booleans(),
    )
    def renew(self, number, fate, only_pressed):
        self.send(self.pick(number), fate, only_pressed=only_pressed)

    def send(self, gateway: Gateway, fate: str, *, only_pressed: bool = False) -> None:
        if gateway.is_frozen:
            return
        for names in gateway.holdings.due(only_pressed=only_pressed):
            report = gateway.holdings.report(names, self.now)
            if fate == "late" and not gateway.is_cut_off:
                self.late.append(report)
            elif fate != "report lost" and not gateway.is_cut_off:
                grants = self.table.renew(report, self.now)
            if fate != "answered" or gateway.is_cut_off:
                gateway.holdings.fail(report)
                return
            gateway.holdings.apply(report, grants)
            for other in self.living:
                if other is not gateway and not other.is_cut_off:
                    other.holdings.press(grants.contended, self.now)

    @precondition(lambda self: self.late)
    @rule(number=st.integers(0, 10))
    def deliver_late(self, number):
        """What was sent on a broken connection may still arrive, long after; its answer finds nobody."""
        self.table.renew(self.late.pop(number % len(self.late)), self.now)

    @precondition(lambda self: self.living)
    @rule(number=st.integers(0, 3))
    def kill(self, number):
        self.dead.append(self.living.pop(number % len(self.living)).holdings.gateway)

    @precondition(lambda self: self.dead)
    @rule()
    def bury(self):
        self.table.bury(self.dead.pop())

    @precondition(lambda self: self.living)
    @rule(number=st.integers(0, 3))
    def leave(self, number):
        gateway = self.pick(number)
        if gateway.is_frozen or gateway.is_cut_off or gateway.in_use.total():
            return
        gateway.holdings.release()
        self.send(gateway, "answered")
        self.table.bury(gateway.holdings.gateway)
        self.living.remove(gateway)

    @precondition(lambda self: self.living)
    @rule(number=st.integers(0, 3))
    def cut_off_or_heal(self, number):
        gateway = self.pick(number)
        gateway.is_cut_off = not gateway.is_cut_off

    @precondition(lambda self: self.living)
    @rule(number=st.integers(0, 3))
    def freeze_or_wake(self, number):
        gateway = self.pick(number)
        gateway.is_frozen = not gateway.is_frozen
        self.run_out()

    @rule()
    def store_restarts_empty(self):
        self.table.forget()

    @rule(resource=st.sampled_from(RESOURCES), limit=st.integers(0, 12), is_told=st.booleans())
    def change_limit(self, resource, limit, is_told):
        self.limits[resource] = limit
        self.in_force[resource] = max(self.in_force[resource], limit)
        if is_told:
            for gateway in self.living:
                gateway.holdings.relimit(resource, limit)

    @rule(seconds=st.sampled_from([0.02, 0.3, 1.0, 1.0, 2.0, 3.7, 4.1]))
    def advance(self, seconds):
        self.now += seconds
        self.run_out()

    def run_out(self) -> None:
        for gateway in self.living:
            for resource, count in gateway.holdings.overdue(self.now).items():
                gateway.adrift[resource] = count
                while self.is_strict and not gateway.is_frozen and gateway.adrift[resource]:
                    gateway.give_back(resource)

    def held(self, resource: str) -> int:
        """Units that someone may be using or go on to use without asking."""
        granted = sum(self.table.held(resource, self.now).values())
        local = 0
        for gateway in self.living:
            holding = gateway.holdings._holdings.get(resource)
            if holding is not None:
                local += max(holding.in_use, holding.allowed if self.now < holding.valid_until else 0)
        return max(granted, local)

    @invariant()
    def units_in_use_stay_within_the_limit_in_force(self):
        for resource in RESOURCES:
            in_use = sum(gateway.in_use[resource] for gateway in self.living)
            adrift = sum(gateway.adrift[resource] for gateway in self.living)
            assert in_use - adrift <= self.in_force[resource], (resource, in_use, adrift)
            old = [ask.limit for report in self.late for ask in report.asks if ask.resource == resource]
            if self.held(resource) <= self.limits[resource]:
                self.in_force[resource] = max([self.limits[resource], *old, *self.known(resource)])

    def known(self, resource: str) -> list[int]:
        """Limits that living gateways go by."""
        holdings = (gateway.holdings._holdings.get(resource) for gateway in self.living)
        return [holding.limit for holding in holdings if holding is not None]

    @invariant()
    def what_is_counted_is_what_is_used(self):
        for gateway in self.living:
            assert gateway.holdings.statistics()["units_in_use"] == gateway.in_use.total()

    def teardown(self):
        """Once everything is well again, the whole of each limit can be had, by each one and by all in turn."""
        if not self.living:
            return
        for gateway in self.living:
            gateway.is_cut_off = gateway.is_frozen = False
        self.late = []
        for resource in RESOURCES:
            self.change_limit(resource, 3, is_told=True)
            self.everyone_is_served(resource)
            self.one_alone_gets_all(resource)

    def everyone_is_served(self, resource: str) -> None:
        served: set[str] = set()
        for _ in range(30):  # 7.5 leases: one or two to recover, then turns
            self.round([resource], served)
        assert served == {gateway.holdings.gateway for gateway in self.living}
        again: set[str] = set()
        for _ in range(2 * MOST_GATEWAYS):
            self.round([resource], again)
        assert again == served

    def round(self, resources: list[str], served: set[str]) -> None:
        """A quarter of a lease: all units in use go back, everyone reports twice and takes what it can."""
        self.advance(LEASE_S / 4)
        for gateway in self.living:
            for used in [*gateway.in_use.elements()]:
                gateway.give_back(used)
        for _ in range(2):
            for gateway in self.living:
                self.advance(0.03)
                self.send(gateway, "answered")
                for resource in resources:
                    while gateway.holdings.try_take(resource, self.limits[resource], self.now, waiting=5):
                        gateway.in_use[resource] += 1
                        served.add(gateway.holdings.gateway)
                self.units_in_use_stay_within_the_limit_in_force()

    def one_alone_gets_all(self, resource: str) -> None:
        first = self.living[0]
        for _ in range(12):
            self.advance(LEASE_S / 4)
            for gateway in self.living:
                for used in [*gateway.in_use.elements()]:
                    gateway.give_back(used)
                self.send(gateway, "answered")
            while first.holdings.try_take(resource, self.limits[resource], self.now, waiting=5):
                first.in_use[resource] += 1
        assert first.in_use[resource] == self.limits[resource]
        for gateway in self.living[1:]:
            assert not gateway.holdings.try_take(resource, self.limits[resource], self.now)


class StrictFleet(Fleet):
    """Every gateway ends what uses units beyond its lease, so only the frozen can have any adrift."""

    is_strict = True

    @invariant()
    def only_the_frozen_are_adrift(self):
        for gateway in self.living:
            if not gateway.is_frozen:
                assert not gateway.adrift.total()


class FallbackFleet(StrictFleet):
    """The store is away for all or for none; in the first case a share of the seats may be used without a lease."""

    fallback_families = ("seat", "cap")
    is_away = False
    returned_at = 0.0

    @rule()
    def store_goes_or_returns(self):
        """Outages are half a lease apart, and whoever runs notices that one is over."""
        if not self.is_away and self.now < self.returned_at + LEASE_S / 2:
            return
        self.is_away = not self.is_away
        self.returned_at = self.now
        for gateway in self.living:
            gateway.is_cut_off = self.is_away
            self.send(gateway, "answered")

    @rule(number=st.integers(0, 3))
    def cut_off_or_heal(self, number):
        """Not in this fleet: a gateway that is cut off alone may add its share."""

    @rule(number=st.integers(0, 3), only_pressed=st.booleans())
    def renew(self, number, only_pressed):
        if self.living:
            self.send(self.pick(number), "answered", only_pressed=only_pressed)

    @rule(seconds=st.sampled_from([1.0, 5.0]))
    def all_go_on_for(self, seconds):
        for _ in range(int(seconds)):
            self.advance(1.0)
            for gateway in self.living:
                self.send(gateway, "answered")
                if not gateway.is_frozen:
                    while gateway.holdings.try_take("seat:r", self.limits["seat:r"], self.now, waiting=9):
                        gateway.in_use["seat:r"] += 1
                self.units_in_use_stay_within_the_limit_in_force()

    @precondition(lambda self: len(self.living) < MOST_GATEWAYS)
    @rule()
    def start(self):
        super().start()
        self.living[-1].is_cut_off = self.is_away


TestFleet = Fleet.TestCase
TestStrictFleet = StrictFleet.TestCase
TestFallbackFleet = FallbackFleet.TestCase
TestFleet.settings = TestStrictFleet.settings = TestFallbackFleet.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
