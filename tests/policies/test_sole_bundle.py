"""Limits counted in one step against the same limits asked one by one: nobody can tell which of them counted."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.calendar_windows import day_window
from policies.lane import Lane
from policies.meters import Counted, Meter, Moment
from policies.prices import Work
from policies.quota import Expected, Quotas, Rejected
from policies.sole_meters import KEEP_S, SoleMeters
from policies.tenant import Limits, Tenant

UNIX = 1_790_000_000.0
AT = Moment(5000.0, UNIX)
DOLLAR = 10**9


class OneByOne:
    """The same meters, which offer no bundles: every limit is asked by itself, as where gateways count together."""

    def __init__(self):
        counts = SoleMeters()
        self.take, self.remaining, self.used = counts.take, counts.remaining, counts.used
        self.expire, self.statistics = counts.expire, counts.statistics


def later(seconds):
    return Moment(AT.now + seconds, AT.unix + seconds)


def bundle_of(*limits):
    """Tokens a minute, tokens a day."""
    meters = SoleMeters()
    minute, day = limits
    of = [
        (Meter("project:p", Counted.TOKENS, minute), 1),
        (Meter("project:p", Counted.DAY_TOKENS, day, *day_window(UNIX, "UTC")), 2),
    ]
    return meters, meters.bundle(of), [meter for meter, _ in of]


@pytest.mark.parametrize("limits", [(100, 50), (50, 100)])
def test_one_without_room_leaves_all_as_they_were(limits):
    """All are counted or none, whichever comes first."""
    meters, bundle, [minute, day] = bundle_of(*limits)
    assert bundle.take((0, 30, 30), AT) is not None
    assert bundle.take((0, 30, 30), AT) is None
    assert (meters.used(minute, AT), meters.used(day, AT)) == (30, 30)
    assert meters.statistics()["takes"] == 1


def test_each_counts_its_own_amount_and_is_corrected_by_it():
    """The organisation's tokens and the project's may weigh differently."""
    meters, bundle, [minute, day] = bundle_of(100, 100)
    take = bundle.take((0, 10, 20), AT)
    take.correct((0, 60, 5), AT)
    assert (meters.used(minute, AT), meters.used(day, AT)) == (60, 5)
    bundle.take((0, 7, 7), AT).undo(AT)
    assert (meters.used(minute, AT), meters.used(day, AT)) == (60, 5)
    assert meters.statistics()["takes"] == 0


def test_a_take_outlives_its_dropped_windows():
    """A stream of hours: what is more counts in the minute of its end, of what is less nothing is given back twice."""
    meters, bundle, [minute, day] = bundle_of(100, 1000)
    more, less = bundle.take((0, 10, 10), AT), bundle.take((0, 20, 20), AT)
    end = later(86_400 + KEEP_S)
    assert meters.expire(end) == 2
    more.correct((0, 30, 30), end)
    less.correct((0, 0, 0), end)
    assert meters.used(minute, end) == 20
    assert meters.used(day, end) == 0
    assert bundle.take((0, 80, 80), end) is not None
    assert bundle.take((0, 1, 1), end) is None


def test_windows_that_were_dropped_are_found_anew():
    """Nobody counts on in a window that nobody reads."""
    meters, bundle, [minute, _] = bundle_of(100, 1000)
    bundle.take((0, 10, 10), AT).undo(AT)
    assert meters.expire(later(100)) == 1
    bundle.take((0, 10, 10), later(101))
    assert meters.used(minute, later(101)) == 10


def test_a_clock_that_steps_back_is_left_to_who_asks_one_by_one():
    """And counts nothing."""
    meters, bundle, [minute, _] = bundle_of(100, 1000)
    bundle.take((0, 10, 10), AT)
    assert bundle.take((0, 10, 10), later(-5)) is None
    assert bundle.try_add(1, later(-5)) is None
    assert meters.used(minute, AT) == 10


AMOUNT = st.none() | st.integers(0, 60)


class BundleMachine(RuleBasedStateMachine):
    """Any order of requests of two projects, counted twice: in bundles and one by one."""

    @initialize()
    def begin(self):
        self.both = (Quotas(), Quotas(OneByOne()))
        self.now = 5000.0
        self.open = []
        self.teams = {}
        self.limit("p", 10, 50, 60, None, 3, 0, False)
        self.limit("q", 1000, 40, None, 40, None, 25, True)

    @property
    def moment(self):
        return Moment(self.now, UNIX + self.now)

    @rule(
        name=st.sampled_from("pq"),
        rpm=st.just(1000) | st.integers(0, 5),  # without a limit one counts requests and the other does not
        tpm=AMOUNT,
        day=AMOUNT,
        money=AMOUNT,
        cap=st.none() | st.integers(0, 3),
        percent=st.sampled_from([0, 25, 100]),
        shadow=st.booleans(),
    )
    def limit(self, name, rpm, tpm, day, money, cap, percent, shadow):  # noqa: PLR0917
        own = Limits(
            rpm=rpm,
            tpm=tpm,
            tokens_per_day=day,
            usd_per_month=None if money is None else money / DOLLAR,
            concurrency=None if cap is None else dict.fromkeys(Lane, cap),
            cached_token_discount=percent / 100,
            shadow=shadow,
            time_zone="Asia/Kathmandu",
        )
        above = Limits(rpm=8, tpm=70, tokens_per_day=300, usd_per_month=300 / DOLLAR)
        self.teams[name] = Tenant(name, "o", "0" * 32, own, above)

    @rule(seconds=st.one_of(st.floats(0, 3), st.floats(0, 130), st.floats(0, 90_000), st.floats(-3, 0)))
    def wait(self, seconds):
        self.now = max(5000.0, self.now + seconds)

    @rule(
        name=st.sampled_from("pq"),
        prompt=st.integers(1, 20),
        output=st.integers(0, 40),
        is_bound=st.booleans(),
        has_price=st.booleans(),
    )
    def arrive(self, name, prompt, output, is_bound, has_price):
        tenant, moment = self.teams[name], self.moment
        found = [quotas.reserve(tenant, Lane.BULK, moment) for quotas in self.both]
        self.same(found)
        if isinstance(found[0], Rejected):
            return
        self.same([one.used_up(moment) for one in found])
        money = (prompt + output, prompt) if has_price else (None, None)
        rejected = [one.hold(Expected(prompt + output, prompt, *money, is_bound), moment) for one in found]
        self.same(rejected)
        self.same([one.shadowed for one in found])
        if rejected[0] is not None:
            for one in found:
                one.undo(moment)
        else:
            self.open.append(found)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), uncached=st.integers(0, 30), cached=st.integers(0, 30), output=st.integers(0, 40))
    def finish(self, data, uncached, cached, output):
        found = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        work = Work(uncached + cached, cached, output)
        assert len({one.charge(work, uncached + output, self.moment) for one in found}) == 1
        for one in found:
            one.settle(self.moment)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), end=st.sampled_from(["settle", "undo"]))
    def end(self, data, end):
        for one in self.open.pop(data.draw(st.integers(0, len(self.open) - 1))):
            getattr(one, end)(self.moment)

    @rule()
    def tidy(self):
        if not self.open:
            for quotas in self.both:
                quotas.expire(self.moment)

    @invariant()
    def agree(self):
        if not hasattr(self, "both"):
            return
        moment = self.moment
        for tenant in self.teams.values():
            standings = [quotas.standings(tenant, moment) for quotas in self.both]
            assert standings[0] == standings[1]
            for first, second in zip(*(quotas.headline(tenant, moment) for quotas in self.both), strict=True):
                assert (first and (first.remaining, first.reset_s)) == (second and (second.remaining, second.reset_s))
            self.same([quotas.used_up(tenant, moment) for quotas in self.both])
        if not self.open:
            assert [quotas.statistics()["takes"] for quotas in self.both] == [0, 0]

    @staticmethod
    def same(found):
        """Both admit, or both refuse with the same words."""
        first, second = (one if isinstance(one, Rejected) or one is None else "admitted" for one in found)
        assert first == second


BundleMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestBundleMachine = BundleMachine.TestCase
