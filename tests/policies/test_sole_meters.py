"""Meters of one process against a slow reference: every amount is kept in a list and summed at each question."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.calendar_windows import day_window
from policies.meters import Counted, Meter, Moment, Short
from policies.sole_meters import KEEP_S, SoleMeters, Used

UNIX = 1_790_000_000.0  # in September 2026
AT = Moment(5000.0, UNIX)


def minute(limit=100, of="project:p", counted=Counted.TOKENS) -> Meter:
    return Meter(of, counted, limit)


def day(limit=100, unix=UNIX, zone="UTC", of="project:p") -> Meter:
    return Meter(of, Counted.DAY_TOKENS, limit, *day_window(unix, zone))


def later(seconds: float) -> Moment:
    return Moment(AT.now + seconds, AT.unix + seconds)


@pytest.mark.parametrize("meter", [minute(), day()])
def test_the_limit_is_reached_and_never_passed(meter):
    """Exactly the limit fits, and what is refused is not counted."""
    meters = SoleMeters()
    for _ in range(4):
        assert not isinstance(meters.take(meter, 25, AT), Short)
    short = meters.take(meter, 1, AT)
    assert (short.meter, short.remaining) == (meter, 0)
    assert meters.used(meter, AT) == 100
    assert meters.remaining(meter, AT)[0] == 0


@pytest.mark.parametrize("meter", [minute(), day()])
def test_a_refusal_tells_what_is_left_and_when_there_will_be_room(meter):
    """Waiting as told lets the same request in; more than the limit itself no wait lets in."""
    meters = SoleMeters()
    meters.take(meter, 90, AT)
    short = meters.take(meter, 20, AT)
    assert (short.remaining, short.retry_after_s is None) == (10, False)
    then = later(short.retry_after_s)
    meter = day(unix=then.unix) if meter.ends_at else meter
    assert not isinstance(meters.take(meter, 20, then), Short)
    assert meters.take(meter, 101, then).retry_after_s is None


@pytest.mark.parametrize("meter", [minute(), day()])
@pytest.mark.parametrize("end", ["correct", "undo"])
def test_a_take_ends_once(meter, end):
    """Whatever comes after the first end changes nothing."""
    meters = SoleMeters()
    take = meters.take(meter, 50, AT)
    (take.correct(30, AT) if end == "correct" else take.undo(AT))
    take.correct(99, AT)
    take.undo(AT)
    assert meters.used(meter, AT) == (30 if end == "correct" else 0)
    assert meters.statistics()["takes"] == 0


@pytest.mark.parametrize("meter", [minute(), day()])
def test_the_real_amount_may_pass_the_limit_and_what_remains_is_0(meter):
    """Work that was done is counted; remaining is never negative."""
    meters = SoleMeters()
    meters.take(meter, 50, AT).correct(180, AT)
    assert meters.used(meter, AT) == 180
    assert meters.remaining(meter, AT)[0] == 0
    assert isinstance(meters.take(meter, 1, AT), Short)


def test_a_long_request_counts_its_excess_when_it_is_known_and_is_given_back_nothing_that_has_left():
    """The minute of the estimate is over; the excess was produced since, the saving is nobody's any more."""
    meters, meter = SoleMeters(), minute()
    more, less = meters.take(meter, 10, AT), meters.take(meter, 10, AT)
    meters.expire(later(90))
    more.correct(35, later(90))
    less.correct(2, later(90))
    assert meters.used(meter, later(90)) == 25
    assert meters.used(meter, later(151)) == 0


def test_a_request_over_midnight_counts_in_the_day_it_came():
    """The new day begins with all of its allowance."""
    meters = SoleMeters()
    today = day()
    midnight = Moment(AT.now + today.ends_at - UNIX, today.ends_at)
    tomorrow = day(unix=midnight.unix)
    take = meters.take(today, 10, AT)
    take.correct(70, midnight)
    assert meters.used(today, midnight) == 70
    assert meters.remaining(tomorrow, midnight) == (100, 0.0)


def test_a_calendar_clock_that_steps_back_and_forth_gives_no_second_allowance():
    """By minutes over midnight, or by days for an hour: each day keeps what was counted in it."""
    meters, today = SoleMeters(), day()
    meters.take(today, 100, AT)
    for wrong in (UNIX + 5 * 86400, UNIX - 5 * 86400):
        assert not isinstance(meters.take(day(unix=wrong), 40, Moment(AT.now + 10, wrong)), Short)
        meters.expire(Moment(AT.now + 3600, wrong))
    assert isinstance(meters.take(today, 1, later(3600)), Short)
    assert isinstance(meters.take(day(unix=UNIX + 5 * 86400), 61, Moment(AT.now, UNIX + 5 * 86400)), Short)


def test_what_is_over_is_dropped_and_what_is_not_ended_stays():
    """Memory is bounded by the tenants of now; a take that ends late must still find its meter."""
    meters = SoleMeters()
    held = meters.take(minute(of="project:held"), 5, AT)
    for number in range(1000):
        meters.take(minute(of=f"project:{number}"), 5, AT).correct(5, AT)
        meters.take(day(of=f"project:{number}"), 5, AT).correct(5, AT)
    assert meters.statistics()["meters"] == 2001
    assert meters.expire(later(61)) == 1000
    assert meters.expire(later(86400)) == 1000
    assert meters.statistics() == {"takes": 1, "meters": 1, "history": 0}
    held.undo(later(86400))
    assert meters.expire(later(86400)) == 1
    assert repr(meters) == "<SoleMeters takes=0 meters=0 history=0>"


def test_a_meter_in_use_is_kept_beyond_its_day_for_a_while():
    """The calendar's clock alone does not decide: it may be wrong."""
    meters, today = SoleMeters(), day()
    meters.take(today, 5, AT).correct(5, AT)
    assert meters.expire(Moment(AT.now + KEEP_S - 1, today.ends_at + 1)) == 0
    assert meters.expire(Moment(AT.now + KEEP_S, today.ends_at + 1)) == 1


def test_meters_that_share_a_key_count_together_whatever_their_limit():
    """A changed limit acts at once, on what was used before."""
    meters = SoleMeters()
    meters.take(day(100), 60, AT)
    assert meters.take(day(50), 1, AT).remaining == 0
    assert meters.remaining(day(200), AT)[0] == 140


def test_what_was_used_before_the_start_counts():
    """P16: a restart grants no second allowance; of other windows, kinds and tenants nothing counts."""
    meters = SoleMeters()
    rows = [
        Used("project:p", Counted.DAY_TOKENS, UNIX - 900, 40),
        Used("project:p", Counted.DAY_TOKENS, UNIX - 3 * 86400, 500),
        Used("project:q", Counted.DAY_TOKENS, UNIX - 900, 500),
        Used("project:p", Counted.TOKENS, UNIX - 10, 30),
        Used("project:p", Counted.TOKENS, UNIX - 90, 500),
    ]
    meters.restore(rows, AT)
    assert meters.remaining(day(), AT)[0] == 60
    assert (meters.remaining(minute(), AT)[0], meters.used(minute(), AT)) == (70, 30), "told as it is enforced"
    assert meters.statistics()["meters"] == 0
    assert meters.take(day(), 61, AT).remaining == 60
    assert meters.take(minute(), 71, AT).remaining == 70
    assert not isinstance(meters.take(minute(), 70, AT), Short)
    assert meters.used(minute(), later(52)) == 70


def test_restoring_again_counts_nothing_twice():
    """The ledger tells everything again when a limit is set; what this process counted is in it."""
    meters = SoleMeters()
    meters.take(day(), 30, AT).correct(30, AT)
    meters.take(minute(), 30, AT).correct(30, AT)
    for _ in range(2):
        meters.restore([Used("project:p", Counted.DAY_TOKENS, UNIX - 5, 30)], AT)
        meters.restore(
            [Used("project:p", Counted.DAY_TOKENS, UNIX - 5, 45), Used("project:p", Counted.TOKENS, UNIX - 1, 30)], AT
        )
    assert meters.used(day(), AT) == 45
    assert meters.used(minute(), AT) == 30


def test_history_is_forgotten_when_no_month_can_want_it():
    """Restored rows are bounded too."""
    meters = SoleMeters()
    meters.restore([Used("project:p", Counted.MONTH_MONEY, UNIX - 86400, 5)], AT)
    assert meters.statistics()["history"] == 1
    meters.expire(later(33 * 86400))
    assert meters.statistics()["history"] == 0


class MetersMachine(RuleBasedStateMachine):
    """Takes, corrections and undoing in any order, over midnights and with a calendar clock that steps."""

    @initialize(zone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"]))
    def begin(self, zone):
        self.zone = zone
        self.meters = SoleMeters()
        self.now, self.offset = 5000.0, UNIX - 5000.0
        self.days: dict[int, int] = {}  # by the start of the day
        self.touched: dict[int, float] = {}
        self.minute: list[list[int]] = []  # [second, amount]
        self.open: list[tuple] = []

    @property
    def moment(self):
        return Moment(self.now, self.now + self.offset)

    def day_now(self, limit=100):
        return day(limit, self.now + self.offset, self.zone)

    def in_minute(self):
        return sum(amount for second, amount in self.minute if int(self.now) - second <= 60)

    @rule(seconds=st.one_of(st.floats(0, 3), st.floats(0, 130), st.floats(0, 50_000)))
    def wait(self, seconds):
        self.now += seconds

    @rule(seconds=st.floats(-40_000, 40_000))
    def step_the_calendar(self, seconds):
        self.offset += seconds

    @rule(amount=st.integers(0, 60), limit=st.integers(0, 150))
    def take_of_the_day(self, amount, limit):
        meter = self.day_now(limit)
        used = self.days.get(meter.starts_at, 0)
        taken = self.meters.take(meter, amount, self.moment)
        assert isinstance(taken, Short) == (used + amount > limit)
        if isinstance(taken, Short):
            assert taken.remaining == max(0, limit - used) < amount or not amount
            return
        self.days[meter.starts_at] = used + amount
        self.touched[meter.starts_at] = self.now
        self.open.append((taken, amount, meter.starts_at, None))

    @rule(amount=st.integers(1, 60), limit=st.integers(0, 150))
    def take_of_the_minute(self, amount, limit):
        used = self.in_minute()
        taken = self.meters.take(minute(limit), amount, self.moment)
        assert isinstance(taken, Short) == (used + amount > limit)
        if not isinstance(taken, Short):
            entry = [int(self.now), amount]
            self.minute.append(entry)
            self.open.append((taken, amount, None, entry))

    @precondition(lambda self: self.open)
    @rule(actual=st.integers(0, 90), data=st.data())
    def end(self, actual, data):
        taken, amount, starts_at, entry = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        undo = data.draw(st.booleans())
        (taken.undo(self.moment) if undo else taken.correct(actual, self.moment))
        taken.correct(77, self.moment)
        actual = 0 if undo else actual
        if starts_at is not None:
            self.days[starts_at] += actual - amount
        elif actual > amount:
            self.minute.append([int(self.now), actual - amount])
        else:
            entry[1] = actual

    @rule()
    def expire(self):
        self.meters.expire(self.moment)
        held = {starts_at for _, _, starts_at, _ in self.open}
        for starts_at in set(self.days) - held:
            is_over = day_window(starts_at, self.zone).ends_at <= self.moment.unix
            if is_over and self.now >= self.touched[starts_at] + KEEP_S:
                del self.days[starts_at]

    @invariant()
    def agrees(self):
        if not hasattr(self, "open"):
            return
        assert self.meters.statistics()["takes"] == len(self.open)
        assert self.meters.used(minute(), self.moment) == self.in_minute()
        meter = self.day_now()
        used = self.meters.used(meter, self.moment)
        assert used == self.days.get(meter.starts_at, 0) >= 0
        assert self.meters.remaining(meter, self.moment)[0] == max(0, 100 - used)


MetersMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestMetersMachine = MetersMachine.TestCase
