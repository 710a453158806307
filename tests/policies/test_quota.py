"""Requests a minute and requests in flight: refused calls leave no trace, ended ones give back exactly once."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.lane import Lane
from policies.meters import Moment
from policies.quota import Quotas, Reason, Rejected, Reservation, Scope
from policies.tenant import Limits, Tenant

NOW = 1000.0


def at(now: float) -> Moment:
    """An instant of both clocks."""
    return Moment(now, 1_790_000_000.0 + now)


def tenant(project="p", organization="o", *, limits=None, above=None) -> Tenant:
    return Tenant(project, organization, "0" * 32, limits or Limits(), above or Limits())


def in_flight(number: int, lane: Lane = Lane.INTERACTIVE) -> Limits:
    return Limits(concurrency={lane: number})


def admitted(outcome) -> Reservation:
    assert isinstance(outcome, Reservation), outcome
    return outcome


def refused(outcome) -> Rejected:
    assert isinstance(outcome, Rejected), outcome
    return outcome


def test_without_limits_everything_is_admitted():
    """None means no limit."""
    quotas = Quotas()
    assert all(isinstance(quotas.reserve(tenant(), Lane.BULK, at(NOW)), Reservation) for _ in range(1000))


@pytest.mark.parametrize("limits", [Limits(rpm=0), in_flight(0)])
def test_a_limit_of_0_admits_nothing_and_advises_no_wait(limits):
    """0 means none allowed, and waiting is no use."""
    quotas = Quotas()
    rejected = refused(quotas.reserve(tenant(limits=limits), Lane.INTERACTIVE, at(NOW)))
    assert (rejected.limit, rejected.remaining, rejected.retry_after_s) == (0, 0, None)
    assert quotas.statistics()["reservations"] == 0


def test_a_refusal_names_its_limit_and_the_wait():
    """A client must learn which limit it met and when to come back."""
    quotas, team = Quotas(), tenant(limits=Limits(rpm=2))
    quotas.reserve(team, Lane.BULK, at(NOW + 0.5))
    quotas.reserve(team, Lane.BULK, at(NOW + 10))
    rejected = refused(quotas.reserve(team, Lane.BULK, at(NOW + 20)))
    assert (rejected.reason, rejected.scope, rejected.limit) == (Reason.RPM, Scope.PROJECT, 2)
    assert rejected.retry_after_s == pytest.approx(41.0)
    assert "2 requests in 60 seconds" in rejected.message
    admitted(quotas.reserve(team, Lane.BULK, at(NOW + 20 + rejected.retry_after_s)))


def test_refused_by_concurrency_does_not_eat_the_minute():
    """P14: with 3 a minute and 1 in parallel, five parallel refusals leave two more calls in the minute."""
    quotas, team = Quotas(), tenant(limits=Limits(rpm=3, concurrency={Lane.INTERACTIVE: 1}))
    first = admitted(quotas.reserve(team, Lane.INTERACTIVE, at(NOW)))
    for _ in range(5):
        before = (quotas.headline(team, at(NOW))[0], quotas.statistics())
        assert refused(quotas.reserve(team, Lane.INTERACTIVE, at(NOW))).reason is Reason.CONCURRENCY
        assert (quotas.headline(team, at(NOW))[0], quotas.statistics()) == before
    first.settle(at(NOW))
    admitted(quotas.reserve(team, Lane.INTERACTIVE, at(NOW + 1))).settle(at(NOW))
    admitted(quotas.reserve(team, Lane.INTERACTIVE, at(NOW + 2))).settle(at(NOW))
    assert refused(quotas.reserve(team, Lane.INTERACTIVE, at(NOW + 3))).reason is Reason.RPM


def test_refused_by_the_level_above_does_not_eat_the_level_below():
    """P14 in levels: 10 below and 1 above, five sent, the upper raised to 20: nine more must pass."""
    quotas = Quotas()
    narrow = tenant(limits=Limits(rpm=10), above=Limits(rpm=1))
    outcomes = [quotas.reserve(narrow, Lane.BULK, at(NOW)) for _ in range(5)]
    assert [isinstance(one, Reservation) for one in outcomes] == [True, False, False, False, False]
    assert refused(outcomes[1]).scope is Scope.ORGANIZATION
    wide = tenant(limits=Limits(rpm=10), above=Limits(rpm=20))
    outcomes = [quotas.reserve(wide, Lane.BULK, at(NOW)) for _ in range(10)]
    assert sum(isinstance(one, Reservation) for one in outcomes) == 9


def test_refused_by_the_level_below_does_not_eat_the_level_above():
    """One project at its limit must not use up its organisation's."""
    quotas = Quotas()
    above = Limits(rpm=3)
    small = tenant("small", limits=Limits(rpm=1), above=above)
    for _ in range(5):
        quotas.reserve(small, Lane.BULK, at(NOW))
    other = tenant("other", above=above)
    outcomes = [quotas.reserve(other, Lane.BULK, at(NOW)) for _ in range(3)]
    assert [isinstance(one, Reservation) for one in outcomes] == [True, True, False]


def test_the_organisations_limit_is_for_the_sum_of_its_projects():
    """Splitting the load over projects must not get past the organisation's limit."""
    quotas = Quotas()
    above = Limits(rpm=4, concurrency={Lane.BULK: 2})
    teams = [tenant(f"p{number}", above=above) for number in range(4)]
    outcomes = [quotas.reserve(team, Lane.BULK, at(NOW)) for team in teams]
    assert sum(isinstance(one, Reservation) for one in outcomes) == 2
    assert refused(outcomes[2]).reason is Reason.CONCURRENCY


def test_a_limit_that_is_set_later_counts_the_last_minute():
    """A new limit acts at once: what was sent before it was set is not forgotten."""
    quotas = Quotas()
    for _ in range(5):
        quotas.reserve(tenant(), Lane.BULK, at(NOW))
    assert refused(quotas.reserve(tenant(limits=Limits(rpm=5)), Lane.BULK, at(NOW))).reason is Reason.RPM


def test_concurrency_is_counted_by_lane():
    """A full bulk lane must not keep interactive requests out."""
    quotas, team = Quotas(), tenant(limits=in_flight(1, Lane.BULK))
    admitted(quotas.reserve(team, Lane.BULK, at(NOW)))
    refused(quotas.reserve(team, Lane.BULK, at(NOW)))
    admitted(quotas.reserve(team, Lane.INTERACTIVE, at(NOW)))


def test_the_parallel_cap_holds_across_minutes():
    """P18: cap 4, calls of 150 s, an attempt each second for 5 minutes: never more than 4 open, none forgotten."""
    quotas, team = Quotas(), tenant(limits=in_flight(4))
    held: list[tuple[float, Reservation]] = []
    num_admitted = 0
    for second in range(300):
        now = NOW + second
        for started, reservation in held[:]:
            if now - started >= 150:
                reservation.settle(at(NOW))
                held.remove((started, reservation))
        outcome = quotas.reserve(team, Lane.INTERACTIVE, at(now))
        quotas.expire(at(now))
        if isinstance(outcome, Reservation):
            held.append((now, outcome))
            num_admitted += 1
        assert len(held) <= 4
        assert quotas.statistics()["reservations"] == len(held)
    assert num_admitted == 8


@pytest.mark.parametrize("ending", ["settle", "undo"])
def test_a_reservation_ends_exactly_once(ending):
    """A second end must not give a seat to somebody it does not belong to."""
    quotas, team = Quotas(), tenant(limits=in_flight(2))
    first, _second = (admitted(quotas.reserve(team, Lane.INTERACTIVE, at(NOW))) for _ in range(2))
    for _ in range(3):
        getattr(first, ending)(at(NOW))
        first.settle(at(NOW))
        first.undo(at(NOW))
    assert first.has_ended
    assert quotas.statistics()["reservations"] == 1
    admitted(quotas.reserve(team, Lane.INTERACTIVE, at(NOW)))
    refused(quotas.reserve(team, Lane.INTERACTIVE, at(NOW)))


def test_an_undone_reservation_leaves_every_counter_as_it_was():
    """P14: a request that a later step refused (a full queue) must not cost its place in the minute."""
    quotas, team = Quotas(), tenant(limits=Limits(rpm=2), above=Limits(rpm=2))
    admitted(quotas.reserve(team, Lane.BULK, at(NOW))).settle(at(NOW))
    before = quotas.headline(team, at(NOW))[0]
    admitted(quotas.reserve(team, Lane.BULK, at(NOW))).undo(at(NOW))
    assert quotas.headline(team, at(NOW))[0] == before
    admitted(quotas.reserve(team, Lane.BULK, at(NOW)))


def test_remaining_and_reset_are_what_is_enforced():
    """P20: the first refusal comes exactly when the header said so; reset is in the future; never negative."""
    quotas, team = Quotas(), tenant(limits=Limits(rpm=5))
    remaining = []
    for number in range(5):
        held = admitted(quotas.reserve(team, Lane.BULK, at(NOW + number)))
        standing = quotas.headline(team, at(NOW + number))[0]
        remaining.append(standing.remaining)
        assert standing.limit == 5
        assert 0 < standing.reset_s <= 61
        held.settle(at(NOW))  # finished, failed or aborted: a request that was let in stays counted
    assert remaining == [4, 3, 2, 1, 0]
    refused(quotas.reserve(team, Lane.BULK, at(NOW + 4)))
    standing = quotas.headline(team, at(NOW + 4))[0]
    assert quotas.headline(team, at(NOW + 4 + standing.reset_s))[0].remaining == 5


def test_without_a_limit_there_is_no_standing():
    """P20: headers are absent, not -1, where there is no limit."""
    assert Quotas().headline(tenant(), at(NOW))[0] is None


def test_the_strictest_limit_is_shown():
    """P20: of two limits the one that will refuse first is told."""
    quotas = Quotas()
    team = tenant("a", limits=Limits(rpm=3), above=Limits(rpm=4))
    assert quotas.headline(team, at(NOW))[0].limit == 3
    for _ in range(3):
        quotas.reserve(tenant("b", above=Limits(rpm=4)), Lane.BULK, at(NOW))
    assert (quotas.headline(team, at(NOW))[0].limit, quotas.headline(team, at(NOW))[0].remaining) == (4, 1)


def test_a_lowered_limit_never_shows_a_negative_rest():
    """P20: more admitted than the new limit allows is a rest of 0."""
    quotas = Quotas()
    for _ in range(5):
        quotas.reserve(tenant(), Lane.BULK, at(NOW))
    assert quotas.headline(tenant(limits=Limits(rpm=2)), at(NOW))[0].remaining == 0


def test_idle_tenants_are_dropped_as_others_come():
    """The tenants made ready are bounded by twice those of the last minute, without anybody calling expire."""
    quotas, most = Quotas(), 0
    for number in range(2000):
        team = tenant(f"p{number}", f"o{number}")
        admitted(quotas.reserve(team, Lane.BULK, at(NOW + number))).settle(at(NOW + number))
        most = max(most, quotas.statistics()["tenants"])
    assert most <= 2 * 61


def test_a_long_request_in_flight_does_not_keep_idle_tenants():
    """One stream of hours at the head of the line must not stop the dropping behind it."""
    quotas = Quotas()
    held = [admitted(quotas.reserve(tenant(f"long{number}"), Lane.BULK, at(NOW))) for number in range(3)]
    for number in range(1000):
        admitted(quotas.reserve(tenant(f"p{number}"), Lane.BULK, at(NOW + number))).settle(at(NOW + number))
    assert quotas.statistics()["tenants"] <= 2 * 61
    for one in held:
        one.settle(at(NOW))
    quotas.expire(at(NOW + 2000))
    assert quotas.statistics() == {"reservations": 0, "tenants": 0, "takes": 0, "meters": 0, "history": 0}
    assert not quotas._in_flight
    assert repr(quotas) == "<Quotas reservations=0 tenants=0 takes=0 meters=0 history=0>"


def test_expire_drops_the_idle_and_keeps_those_in_flight():
    """What is in flight must keep its count for as long as it lasts."""
    quotas, team = Quotas(), tenant(limits=in_flight(1))
    held = admitted(quotas.reserve(team, Lane.INTERACTIVE, at(NOW)))
    assert quotas.expire(at(NOW + 3600)) == 0
    refused(quotas.reserve(team, Lane.INTERACTIVE, at(NOW + 3600)))
    held.settle(at(NOW))
    assert quotas.expire(at(NOW + 7200)) == 1


def test_an_organisation_in_flight_through_an_idle_project_is_kept():
    """The counts of an organisation belong to all its projects, also to those that were dropped and came back."""
    quotas, above = Quotas(), in_flight(2)
    held = admitted(quotas.reserve(tenant("a", above=above), Lane.INTERACTIVE, at(NOW)))
    quotas.expire(at(NOW + 3600))
    admitted(quotas.reserve(tenant("b", above=above), Lane.INTERACTIVE, at(NOW + 3600)))
    refused(quotas.reserve(tenant("c", above=above), Lane.INTERACTIVE, at(NOW + 3600)))
    held.settle(at(NOW + 3600))
    admitted(quotas.reserve(tenant("c", above=above), Lane.INTERACTIVE, at(NOW + 3600)))


class QuotaMachine(RuleBasedStateMachine):
    """Any order of calls, against a plain list of what was admitted and what is held."""

    @initialize(
        rpm=st.none() | st.integers(0, 4), cap=st.none() | st.integers(0, 3), above=st.none() | st.integers(0, 6)
    )
    def begin(self, rpm, cap, above):
        self.quotas = Quotas()
        self.now = 1000.0
        self.set_limits(rpm, cap, above)
        self.admitted: list[tuple[float, str]] = []
        self.held: list[tuple[Reservation, str, Lane, tuple[float, str]]] = []
        self.ended: list[Reservation] = []

    @rule(rpm=st.none() | st.integers(0, 4), cap=st.none() | st.integers(0, 3), above=st.none() | st.integers(0, 6))
    def set_limits(self, rpm, cap, above):
        concurrency = None if cap is None else dict.fromkeys(Lane, cap)
        self.rpm, self.cap, self.above = rpm, cap, above
        self.tenants = {
            name: tenant(name, limits=Limits(rpm=rpm, concurrency=concurrency), above=Limits(rpm=above))
            for name in ("p", "q")
        }

    @rule(seconds=st.one_of(st.just(0.0), st.floats(0, 2), st.floats(0, 130)))
    def wait(self, seconds):
        self.now += seconds

    @rule(name=st.sampled_from("pq"), lane=st.sampled_from(Lane))
    def reserve(self, name, lane):
        standing = self.quotas.headline(self.tenants[name], at(self.now))
        outcome = self.quotas.reserve(self.tenants[name], lane, at(self.now))
        if isinstance(outcome, Reservation):
            assert self.may_enter(name, lane)
            entry = (self.now, name)
            self.admitted.append(entry)
            self.held.append((outcome, name, lane, entry))
            minute = [who for when, who in self.admitted if self.now - when < 60]
            assert self.rpm is None or minute.count(name) <= self.rpm
            assert self.above is None or len(minute) <= self.above
        else:
            assert not self.may_enter(name, lane)
            assert self.quotas.headline(self.tenants[name], at(self.now)) == standing

    def may_enter(self, name, lane) -> bool:
        counted = [who for when, who in self.admitted if int(self.now) - int(when) <= 60]
        open_now = sum((who, where) == (name, lane) for _, who, where, _ in self.held)
        return (
            (self.rpm is None or counted.count(name) < self.rpm)
            and (self.above is None or len(counted) < self.above)
            and (self.cap is None or open_now < self.cap)
        )

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def settle(self, data):
        reservation, *_ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        reservation.settle(at(self.now))
        self.ended.append(reservation)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def undo(self, data):
        reservation, _, _, entry = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        reservation.undo(at(self.now))
        self.admitted.remove(entry)
        self.ended.append(reservation)

    @precondition(lambda self: self.ended)
    @rule()
    def end_again(self):
        self.ended[-1].undo(at(self.now))
        self.ended[-1].settle(at(self.now))

    @rule()
    def expire(self):
        self.quotas.expire(at(self.now))

    @invariant()
    def counts_agree(self):
        if hasattr(self, "held"):
            assert self.quotas.statistics()["reservations"] == len(self.held)


QuotaMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestQuotaMachine = QuotaMachine.TestCase
