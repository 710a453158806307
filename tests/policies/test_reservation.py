"""Tokens and money of one request: all limits or none, charged once, whatever way it ends."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.calendar_windows import day_window, month_window
from policies.lane import Lane
from policies.meters import Counted, Moment
from policies.prices import Price, Work
from policies.quota import Expected, Quotas, Reason, Rejected, Reservation, Scope
from policies.tenant import Limits, Tenant

UNIX = 1_790_000_000.0
AT = Moment(5000.0, UNIX)
DOLLAR = 10**9


def tenant(project="p", *, limits=None, above=None) -> Tenant:
    return Tenant(project, "o", "0" * 32, limits or Limits(), above or Limits())


def reserved(quotas, team, expected=None, moment=AT) -> Reservation:
    reservation = quotas.reserve(team, Lane.BULK, moment)
    assert isinstance(reservation, Reservation)
    if expected is not None:
        assert reservation.hold(expected, moment) is None
    return reservation


def used(quotas, team, moment=AT) -> dict:
    return {(one.scope.value, one.name): one.used for one in quotas.standings(team, moment)}


ALL = Limits(
    rpm=100, tpm=1000, tokens_per_day=2000, usd_per_month=5, concurrency=dict.fromkeys(Lane, 9), time_zone="Asia/Tokyo"
)


def test_every_limit_of_both_levels_is_held_and_settled():
    """What is reserved counts as used; what is charged replaces it."""
    quotas, team = Quotas(), tenant(limits=ALL, above=ALL)
    held = reserved(quotas, team, Expected(300, 200, DOLLAR, DOLLAR // 2))
    kinds = [one for one in used(quotas, team).items() if one[0][1] != "concurrency"]
    assert dict(kinds) == {
        (scope, name): amount
        for scope in ("organization", "project")
        for name, amount in [("rpm", 1), ("tpm", 300), ("tokens_per_day", 300), ("usd_per_month", DOLLAR)]
    }
    held.charge(Work(200, 0, 60), 70, AT)
    held.charge(Work(9, 9, 9), 9, AT)
    held.settle(AT)
    held.undo(AT)
    after = used(quotas, team)
    assert (after["project", "tpm"], after["organization", "tokens_per_day"], after["project", "usd_per_month"]) == (
        260,
        260,
        70,
    )
    assert quotas.statistics()["takes"] == quotas.statistics()["reservations"] == 0


def test_an_undone_hold_leaves_every_counter_as_it_was():
    """P14: also of the limits that passed before one refused."""
    quotas, team = Quotas(), tenant(limits=ALL, above=ALL)
    reserved(quotas, team, Expected(900, 900, DOLLAR, DOLLAR)).settle(AT)
    before = used(quotas, team)
    second = reserved(quotas, team)
    rejected = second.hold(Expected(50, 50, 6 * DOLLAR, 6 * DOLLAR), AT)
    assert (rejected.reason, rejected.scope) == (Reason.USD_PER_MONTH, Scope.ORGANIZATION)
    second.undo(AT)
    assert used(quotas, team) == before


def test_a_refusal_of_the_project_gives_back_what_its_organisation_gave():
    """The organisation is asked first, and must not pay for its project's limit."""
    quotas, team = Quotas(), tenant(limits=Limits(tpm=10), above=Limits(tpm=1000))
    held = reserved(quotas, team)
    rejected = held.hold(Expected(50, 50), AT)
    assert (rejected.name, rejected.limit, rejected.remaining) == ("project.tpm", 10, 10)
    assert used(quotas, team)["organization", "tpm"] == 0
    held.settle(AT)


@pytest.mark.parametrize(
    ("limits", "expected", "message"),
    [
        (Limits(tpm=100), Expected(60, 60), "the project may use 100 tokens in 60 seconds: 50 are left and this request needs about 60; try again in 61 s"),
        (Limits(tokens_per_day=100), Expected(60, 60), "the project may use 100 tokens a day (UTC): 50 are left and this request needs about 60; try again in 35200 s (9 h 46 min)"),
        (Limits(usd_per_month=0.1), Expected(1, 1, 60_000_001, 1, is_bound=True), "the project may spend 0.1 USD a month (UTC): 0.05 are left and this request may cost 0.060000001; try again in 812800 s (9 d 9 h)"),
        (Limits(usd_per_month=0.1), Expected(1, 1, 70_000_000, 60_000_001), "the project may spend 0.1 USD a month (UTC): 0.05 are left and this request may cost 0.060000001; try again in 812800 s (9 d 9 h)"),
        (Limits(tpm=100), Expected(90, 60, is_bound=True), "the project may use 100 tokens in 60 seconds: 50 are left and this request needs about 90; try again in 61 s"),
        (Limits(tpm=100), Expected(90, 60), "the project may use 100 tokens in 60 seconds: 50 are left and this request needs about 60; try again in 61 s"),
        (Limits(tpm=100), Expected(200, 101), "the project may use 100 tokens in 60 seconds: 50 are left and this request needs about 101; waiting is of no use"),
    ],
)  # fmt: skip
def test_a_refusal_names_limit_rest_and_reset(limits, expected, message):
    """A client must learn what it met, how far it is from it, and when to come back."""
    quotas, team = Quotas(), tenant(limits=limits)
    reserved(quotas, team, Expected(50, 50, 50_000_000, 50_000_000))
    rejected = reserved(quotas, team).hold(expected, AT)
    assert rejected.message == message


def test_a_guessed_output_never_makes_a_request_impossible():
    """A limit of 100 and a guess of 500: the request is let in when nothing else is counted, and held at the limit."""
    quotas, team = Quotas(), tenant(limits=Limits(tpm=100))
    held = reserved(quotas, team, Expected(500, 20))
    assert used(quotas, team)["project", "tpm"] == 100
    held.charge(Work(20, 0, 30), None, AT)
    assert used(quotas, team)["project", "tpm"] == 50


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(tpm=100), Expected(148, 20)),
        (Limits(tokens_per_day=100), Expected(148, 20)),
        (Limits(usd_per_month=1e-7), Expected(148, 20, 148, 20)),
        (Limits(tpm=100), Expected(5000, 20)),
    ],
)
@pytest.mark.parametrize("scope", ["project", "organization"])
def test_a_small_limit_serves_as_much_as_it_says_although_the_guess_is_larger(limits, expected, scope):
    """Answers of 5 tokens to prompts of 20 under a limit of 100: four, each charged what it was, then none."""
    quotas, team = Quotas(), tenant(**{("limits" if scope == "project" else "above"): limits})
    for number in range(4):
        held = reserved(quotas, team, expected)
        assert [one for one in used(quotas, team).values() if one] == [100]  # all that is left
        held.charge(Work(20, 0, 5), 25, AT)
        held.settle(AT)
        assert [one for one in used(quotas, team).values() if one] == [25 * (number + 1)]
    rejected = reserved(quotas, team).hold(expected, AT)
    assert (rejected.scope.value, rejected.remaining) == (scope, 0)


def test_a_guess_takes_what_is_left_and_the_next_finds_nothing():
    """So beyond the limit goes no more than the answers of those in flight: no second one is let in beside them."""
    quotas, team = Quotas(), tenant(limits=Limits(tpm=200))
    held = [reserved(quotas, team, Expected(148, 20)), reserved(quotas, team, Expected(148, 20))]
    assert used(quotas, team)["project", "tpm"] == 200
    assert isinstance(reserved(quotas, team).hold(Expected(148, 20), AT), Rejected)
    for one in held:
        one.charge(Work(20, 0, 300), None, AT)
    assert used(quotas, team)["project", "tpm"] == 640
    assert isinstance(reserved(quotas, team).hold(Expected(1, 1), AT), Rejected)


def test_an_output_that_the_client_bounds_is_held_in_full():
    """What was promised can be kept exactly; a bound above the limit itself does not make the request impossible."""
    quotas, team = Quotas(), tenant(limits=Limits(tpm=100))
    wide = reserved(quotas, team, Expected(500, 20, is_bound=True))
    assert used(quotas, team)["project", "tpm"] == 100
    wide.charge(Work(20, 0, 30), None, AT)
    assert isinstance(reserved(quotas, team).hold(Expected(51, 20, is_bound=True), AT), Rejected)
    reserved(quotas, team, Expected(50, 20, is_bound=True))


@pytest.mark.parametrize("scope", ["project", "organization"])
@pytest.mark.parametrize("name", ["tpm", "tokens_per_day", "usd_per_month"])
def test_a_limit_that_is_used_up_refuses_before_anything_is_read(name, scope):
    """It is told with its name, rest and reset, and nothing is counted; in shadow mode it refuses nobody."""
    limits = {
        "tpm": Limits(tpm=10),
        "tokens_per_day": Limits(tokens_per_day=10),
        "usd_per_month": Limits(usd_per_month=1e-8),
    }
    which = "limits" if scope == "project" else "above"
    quotas, team = Quotas(), tenant(**{which: limits[name]})
    first = reserved(quotas, team, Expected(9, 9, 9, 9))
    assert reserved(quotas, team).used_up(AT) is None
    assert quotas.used_up(team, AT) is None
    first.charge(Work(10, 0, 5), 15, AT)
    before = used(quotas, team)
    for rejected in (reserved(quotas, team).used_up(AT), quotas.used_up(team, AT)):
        assert (rejected.name, rejected.remaining, rejected.pending) == (f"{scope}.{name}", 0, None)
        assert rejected.retry_after_s == {"tpm": 61.0, "tokens_per_day": 35_200.0, "usd_per_month": 812_800.0}[name]
        assert "0 are left; try again in" in rejected.message
    assert used(quotas, team) == before
    watched = tenant(**{which: replace(limits[name], shadow=True)})
    assert reserved(quotas, watched).used_up(AT) is None
    assert quotas.used_up(watched, AT) is None


def test_requests_a_minute_are_used_up_too():
    """Where the body has not come yet; a request that is counted already is not asked again."""
    quotas, team = Quotas(), tenant(limits=Limits(rpm=1, tpm=10))
    held = reserved(quotas, team)
    assert held.used_up(AT) is None
    assert quotas.used_up(team, AT).name == "project.rpm"


def test_money_without_a_price_is_refused():
    """Fail closed: what cannot be counted is not spent."""
    quotas, team = Quotas(), tenant(limits=Limits(tpm=100, usd_per_month=5))
    held = reserved(quotas, team)
    rejected = held.hold(Expected(50, 20), AT)
    assert (rejected.reason, rejected.limit, rejected.remaining) == (Reason.UNPRICED, 5 * DOLLAR, 5 * DOLLAR)
    assert used(quotas, team)["project", "tpm"] == 0
    held.undo(AT)


@pytest.mark.parametrize("shadowed", ["rpm", "concurrency", "tpm", "tokens_per_day", "usd_per_month"])
def test_a_shadowed_limit_tells_and_does_not_refuse(shadowed):
    """Each kind; the limits of the other level count and refuse as ever."""
    amounts = {"rpm": 1, "concurrency": dict.fromkeys(Lane, 1), "tpm": 10, "tokens_per_day": 10, "usd_per_month": 1e-8}
    own = Limits(shadow=True, **{shadowed: amounts[shadowed]})
    quotas, team = Quotas(), tenant(limits=own, above=Limits(tpm=25))
    first = reserved(quotas, team, Expected(10, 10, 10, 10))
    second = reserved(quotas, team, Expected(10, 10, 10, 10))
    assert first.shadowed is None
    assert second.shadowed.name == f"project.{shadowed}"
    assert used(quotas, team)["organization", "tpm"] == 20
    assert reserved(quotas, team).hold(Expected(10, 10, 10, 10), AT).scope is Scope.ORGANIZATION
    first.settle(AT)
    second.settle(AT)


def test_a_held_amount_that_nobody_settles_is_charged_as_expected():
    """An end without a charge must neither be free nor hold for ever."""
    quotas, team = Quotas(), tenant(limits=Limits(tpm=100))
    reserved(quotas, team, Expected(30, 20)).settle(AT)
    assert used(quotas, team)["project", "tpm"] == 30
    assert quotas.statistics()["takes"] == 0


def test_the_strictest_of_all_token_limits_is_shown():
    """Of a minute and a day, of project and organisation; money and shadowed limits are no headers."""
    own = Limits(tpm=1000, usd_per_month=0)
    quotas = Quotas()
    team = tenant(limits=own, above=Limits(tokens_per_day=400))
    requests, tokens = quotas.headline(team, AT)
    assert requests is None
    assert (tokens.limit, tokens.remaining, tokens.reset_s) == (400, 400, 0.0)
    shadowed = tenant("q", above=Limits(tokens_per_day=400, rpm=3, shadow=True))
    assert quotas.headline(shadowed, AT) == (None, None)


def test_a_new_day_begins_with_all_of_its_allowance():
    """By the project's own calendar; what was held over midnight stays in its day."""
    quotas, team = Quotas(), tenant(limits=Limits(tokens_per_day=100, time_zone="Asia/Tokyo"))
    held = reserved(quotas, team, Expected(100, 100))
    midnight = day_window(UNIX, "Asia/Tokyo").ends_at
    after = Moment(AT.now + midnight - UNIX, midnight)
    assert used(quotas, team, after)["project", "tokens_per_day"] == 0
    reserved(quotas, team, Expected(100, 100), after).settle(after)
    held.charge(Work(100, 0, 50), None, after)
    held.settle(after)
    assert used(quotas, team, after)["project", "tokens_per_day"] == 100
    assert used(quotas, team)["project", "tokens_per_day"] == 150


def test_what_was_used_before_a_restart_counts_for_project_and_organisation():
    """P16: rows of stretches are put into the windows of each level's own calendar."""
    team = tenant(limits=Limits(tokens_per_day=100, tpm=50), above=Limits(tokens_per_day=200, usd_per_month=1))
    quotas = Quotas()
    rows = [
        ("p", "o", Counted.DAY_TOKENS, UNIX - 900, 60),
        ("q", "o", Counted.DAY_TOKENS, UNIX - 900, 70),
        ("q", "o", Counted.DAY_TOKENS, UNIX - 86400, 500),
        ("q", "o", Counted.MONTH_MONEY, UNIX - 86400, 7),
        ("p", "o", Counted.TOKENS, UNIX - 3, 20),
    ]
    quotas.restore(rows, AT)
    assert isinstance(reserved(quotas, team).hold(Expected(31, 31, 1, 1), AT), Rejected)
    reserved(quotas, team, Expected(30, 30, 1, 1))
    found = used(quotas, team)
    assert (found["project", "tokens_per_day"], found["organization", "tokens_per_day"]) == (90, 160)
    assert (found["project", "tpm"], found["organization", "usd_per_month"]) == (50, 8)


class ReservationMachine(RuleBasedStateMachine):
    """Two projects of one organisation, any order of ends; sums of charges against sums of what was really done."""

    @initialize(
        tpm=st.none() | st.integers(0, 300),
        day=st.none() | st.integers(0, 600),
        money=st.none() | st.integers(0, 2000),
        above=st.none() | st.integers(0, 800),
        zone=st.sampled_from(["UTC", "America/New_York", "Asia/Kathmandu"]),
        percent=st.sampled_from([0, 25, 100]),
    )
    def begin(self, tpm, day, money, above, zone, percent):  # noqa: PLR0917
        self.quotas = Quotas()
        self.now = 5000.0
        self.offset = 1_772_940_000.0  # a day before the clocks change in New York
        self.discount = percent / 100
        dollars = None if money is None else money / DOLLAR
        own = Limits(
            tpm=tpm, tokens_per_day=day, usd_per_month=dollars, time_zone=zone, cached_token_discount=self.discount
        )
        self.zone, self.most = zone, {"tpm": tpm, "tokens_per_day": day, "usd_per_month": money, "above": above}
        self.teams = {name: tenant(name, limits=own, above=Limits(tokens_per_day=above)) for name in "pq"}
        self.days: dict[tuple[str, int], int] = {}
        self.months: dict[tuple[str, int], int] = {}
        self.above: dict[int, int] = {}
        self.open: list[tuple] = []
        self.price = Price(1_000_000, 500_000, 2_000_000)

    @property
    def moment(self):
        return Moment(self.now, self.now + self.offset)

    @rule(seconds=st.one_of(st.floats(0, 5), st.floats(0, 100), st.floats(0, 90_000)))
    def wait(self, seconds):
        self.now += seconds

    @rule(seconds=st.floats(-7000, 7000))
    def step_the_calendar(self, seconds):
        self.offset += seconds

    @rule(name=st.sampled_from("pq"), prompt=st.integers(1, 150), output=st.integers(0, 150))
    def arrive(self, name, prompt, output):
        team, moment = self.teams[name], self.moment
        before = used(self.quotas, team, moment)
        held = reserved(self.quotas, team, moment=moment)
        expected = Expected(
            prompt + output,
            prompt,
            self.price.of(Work(prompt, 0, output)),
            self.price.of(Work(prompt, 0, 0)),
        )
        rejected = held.hold(expected, moment)
        if rejected is not None:
            held.undo(moment)
            assert used(self.quotas, team, moment) == before
            assert 0 <= rejected.remaining <= rejected.limit
            return
        after = used(self.quotas, team, moment)
        for (scope, limit), count in after.items():
            most = self.most["above"] if scope == "organization" else self.most[limit]
            if count != before[scope, limit]:
                assert count <= most, "a reservation never passes the limit"
        starts = (
            day_window(moment.unix, self.zone).starts_at,
            month_window(moment.unix, self.zone).starts_at,
            day_window(moment.unix, "UTC").starts_at,
        )
        self.open.append((held, name, starts))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), uncached=st.integers(0, 200), cached=st.integers(0, 200), output=st.integers(0, 200))
    def finish(self, data, uncached, cached, output):
        held, name, (day, month, above) = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        work = Work(uncached + cached, cached, output)
        cost = self.price.of(work)
        held.charge(work, cost, self.moment)
        held.charge(Work(999, 0, 999), 999, self.moment)
        held.settle(self.moment)
        tokens = uncached + output + ceil(cached * (1 - self.discount))
        self.days[name, day] = self.days.get((name, day), 0) + tokens
        self.months[name, month] = self.months.get((name, month), 0) + cost
        self.above[above] = self.above.get(above, 0) + uncached + cached + output

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def refuse_later(self, data):
        held, *_ = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        held.undo(self.moment)
        held.settle(self.moment)

    @rule()
    def tidy(self):
        if not self.open:  # dropping by two clocks is a test of the meters'
            self.quotas.expire(Moment(self.now, 0.0))

    @invariant()
    def sums_agree(self):
        if not hasattr(self, "open") or self.open:
            return
        moment = self.moment
        assert self.quotas.statistics()["takes"] == self.quotas.statistics()["reservations"] == 0
        day = day_window(moment.unix, self.zone).starts_at
        month = month_window(moment.unix, self.zone).starts_at
        for name, team in self.teams.items():
            found = used(self.quotas, team, moment)
            assert min(found.values(), default=0) >= 0
            if self.most["tokens_per_day"] is not None:
                assert found["project", "tokens_per_day"] == self.days.get((name, day), 0)
            if self.most["usd_per_month"] is not None:
                assert found["project", "usd_per_month"] == self.months.get((name, month), 0)
            if self.most["above"] is not None:
                above = day_window(moment.unix, "UTC").starts_at
                assert found["organization", "tokens_per_day"] == self.above.get(above, 0)


ReservationMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestReservationMachine = ReservationMachine.TestCase
