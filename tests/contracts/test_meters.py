"""The contract of what counts limits, run on both: one process in its memory, and a gateway whose counts are in Redis."""

import itertools
import time
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.calendar_windows import day_window, month_window
from policies.meters import Counted, Meter, Moment, Short
from policies.sole_meters import SoleMeters
from tests.policies.test_redis_meters import Gateway
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures
from tests.scripted_engine import PATIENCE_S

_NAMES = (f"project:{number}" for number in itertools.count())
_PREFIXES = (f"meters{number}" for number in itertools.count())


def moment():
    return Moment(time.monotonic(), time.time())


class Sole:
    """One process with SQLite."""

    def __init__(self):
        self.meters = SoleMeters()

    async def take(self, meter, amount=1):
        return self.meters.take(meter, amount, moment())


class Shared:
    """A gateway of several, as the reserve step asks it."""

    def __init__(self, gateway):
        self._gateway = gateway
        self.meters = gateway.meters.leased

    async def take(self, meter, amount=1):
        found = await self._gateway.take(meter, amount)
        until = time.monotonic() + PATIENCE_S
        while isinstance(found, Short) and found.is_pending and time.monotonic() < until:
            found = await self._gateway.take(meter, amount)
        return found


@pytest.fixture(params=["sole", "redis"])
def opened(request):
    """A function that opens what counts, empty."""

    @asynccontextmanager
    async def one():
        if request.param == "sole":
            yield Sole()
            return
        async with Gateway(request.getfixturevalue("shared_redis").url, next(_PREFIXES)) as gateway:
            yield Shared(gateway)

    return one


def _meter(counted, limit=100, of=None):
    """Of a tenant of its own, in the window of now."""
    window = {Counted.DAY_TOKENS: day_window, Counted.MONTH_MONEY: month_window}.get(counted)
    return Meter(of or next(_NAMES), counted, limit, *(window(time.time(), "UTC") if window else ()))


each_kind = pytest.mark.parametrize("counted", Counted)


@each_kind
async def test_the_limit_is_reached_and_never_passed(opened, counted):
    """All of it can be had, and not one more; the refusal says that nothing is left, and when there will be."""
    async with opened() as one:
        meter = _meter(counted)
        takes = [await one.take(meter, 25) for _ in range(4)]
        assert not any(isinstance(take, Short) for take in takes)
        short = await one.take(meter, 1)
        assert isinstance(short, Short)
        assert (short.meter, short.remaining, short.retry_after_s > 0) == (meter, 0, True)
        assert one.meters.used(meter, moment()) == 100
        left, reset_s = one.meters.remaining(meter, moment())
        assert left == 0
        assert 0 < reset_s <= (62 if meter.is_sliding else meter.ends_at - meter.starts_at)


@each_kind
async def test_more_than_the_limit_never_fits_and_counts_nothing(opened, counted):
    """No wait lets it in; a limit of 0 lets nothing in."""
    async with opened() as one:
        meter, shut = _meter(counted), _meter(counted, 0)
        for refused, asked in ((meter, 101), (shut, 1)):
            short = await one.take(refused, asked)
            assert (isinstance(short, Short), short.retry_after_s) == (True, None)
        assert one.meters.used(meter, moment()) == 0
        assert not isinstance(await one.take(meter, 100), Short)


@each_kind
@pytest.mark.parametrize("end", ["correct", "undo"])
async def test_what_was_not_used_can_be_had_again_and_a_take_ends_once(opened, counted, end):
    """Reserved 80 and used 30, or never begun; a second end of either kind changes nothing."""
    async with opened() as one:
        meter = _meter(counted)
        take = await one.take(meter, 80)
        take.correct(30, moment()) if end == "correct" else take.undo(moment())
        take.correct(99, moment())
        take.undo(moment())
        used = 30 if end == "correct" else 0
        assert one.meters.used(meter, moment()) == used
        assert not isinstance(await one.take(meter, 100 - used), Short)
        assert isinstance(await one.take(meter, 1), Short)


@each_kind
async def test_what_was_used_beyond_the_limit_counts_and_nothing_is_negative(opened, counted):
    """The work is done; the next one waits."""
    async with opened() as one:
        meter = _meter(counted)
        (await one.take(meter, 50)).correct(130, moment())
        assert one.meters.used(meter, moment()) == 130
        assert one.meters.remaining(meter, moment())[0] == 0
        assert isinstance(await one.take(meter, 1), Short)


async def test_a_changed_limit_goes_on_with_what_was_used_and_others_are_not_touched(opened):
    """A lowered limit acts at once; each tenant and each kind counts by itself."""
    async with opened() as one:
        meter = _meter(Counted.TOKENS)
        assert not isinstance(await one.take(meter, 60), Short)
        assert isinstance(await one.take(_meter(Counted.TOKENS, 50, meter.of), 1), Short)
        assert not isinstance(await one.take(_meter(Counted.TOKENS, 120, meter.of), 60), Short)
        for other in (_meter(Counted.TOKENS), _meter(Counted.DAY_TOKENS, of=meter.of)):
            assert not isinstance(await one.take(other, 100), Short)


async def test_nothing_is_open_once_all_have_ended(opened):
    """`takes` is zero when quiescent, however they ended."""
    async with opened() as one:
        takes = [await one.take(_meter(counted), 5) for counted in Counted for _ in range(2)]
        assert one.meters.statistics()["takes"] == len(takes)
        for number, take in enumerate(takes):
            take.undo(moment()) if number % 2 else take.correct(9, moment())
        assert one.meters.statistics()["takes"] == 0


STEPS = st.lists(st.tuples(st.sampled_from(["take", "correct", "undo"]), st.integers(1, 60)), max_size=14)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.sampled_from(list(Counted)))
async def test_both_decide_as_a_plain_sum_does(opened, steps, counted):
    """Whatever is taken, corrected and undone in whatever order, who is let in follows from what is counted.

    A grant that was on its way when more was used than was reserved may be used: by so much, and by no more.
    """
    async with opened() as one:
        meter, counts, takes, beyond = _meter(counted), [], [], 0
        for step, amount in steps:
            if step == "take":
                would_be = sum(counts) + amount
                take = await one.take(meter, amount)
                if isinstance(take, Short):
                    assert would_be > meter.limit
                else:
                    assert would_be <= meter.limit + (0 if isinstance(one, Sole) else beyond)
                    counts.append(amount)
                    takes.append((len(counts) - 1, take))
            elif takes:
                place, take = takes.pop(amount % len(takes))
                beyond += max(0, amount - counts[place]) if step == "correct" else 0
                counts[place] = amount if step == "correct" else 0
                take.correct(amount, moment()) if step == "correct" else take.undo(moment())
            assert one.meters.used(meter, moment()) == sum(counts)
