"""One gateway's allowance: what it may take at once, what it asks and tells, and what it does without a store."""

import pytest

from policies.leased_meters import (
    ASK_AGAIN_S,
    AWAY_AFTER_S,
    MAX_PER_REPORT,
    PENDING_RETRY_S,
    RETRY_S,
    UNKNOWN_PARTS,
    LeasedMeters,
)
from policies.leases import LEASE_S
from policies.meter_allowance import MAX_BATCHES
from policies.meter_table import MeterTable
from policies.meters import Counted, Meter, Moment, Short

UNIX = 1_700_000_000
RPM = Meter("project:p", Counted.REQUESTS, 60)
TPM = Meter("project:p", Counted.TOKENS, 1000)
DAY = Meter("project:p", Counted.DAY_TOKENS, 1000, UNIX - 50, UNIX + 500)
MONEY = Meter("organization:o", Counted.MONTH_MONEY, 1000, UNIX - 50, UNIX + 500)


class World:
    """A store and gateways; `now` on the clock of all of them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.table = MeterTable()
        self.is_away = False

    @property
    def moment(self) -> Moment:
        return Moment(self.now, UNIX + self.now)

    def gateway(self, name="a", **settings):
        return LeasedMeters(name, **settings)

    def renew(self, gateway, *, only_pressed=False):
        """One pass; the keys that others are called for."""
        called = []
        for keys in gateway.due(only_pressed=only_pressed):
            report = gateway.report(keys, self.now)
            if self.is_away:
                gateway.fail(report)
            else:
                answer = self.table.renew(report, round(self.moment.unix * 1000))
                gateway.apply(report, answer)
                called += answer.called
        return called

    def take(self, gateway, meter, amount=1):
        return gateway.take(meter, amount, self.moment)

    def take_all(self, gateway, meter, amount=1, rounds=40):
        """Take until it is refused for good; what was taken."""
        takes = []
        while isinstance(taken := self.take(gateway, meter, amount), Short) is False or taken.is_pending:
            if isinstance(taken, Short):
                if not rounds:
                    break
                rounds -= 1
                self.renew(gateway, only_pressed=True)
            else:
                takes.append(taken)
        return takes


@pytest.fixture
def world():
    return World()


def test_a_first_take_is_pending_until_the_store_has_answered(world):
    """Neither refused wrongly nor admitted without cover: the caller may wait for one round trip."""
    pressed = []
    gateway = world.gateway(on_press=lambda: pressed.append(1))
    short = world.take(gateway, RPM)
    assert short == Short(RPM, 0, PENDING_RETRY_S, is_pending=True)
    assert gateway.can_take(RPM, 1, world.now) is None
    world.take(gateway, RPM)
    assert pressed == [1]
    world.renew(gateway, only_pressed=True)
    assert gateway.can_take(RPM, 1, world.now) is True
    assert not isinstance(world.take(gateway, RPM), Short)


def test_taking_from_the_allowance_tells_nobody(world):
    """No round trip on the request path while there is an allowance; more is asked for before it is used up."""
    gateway = world.gateway()
    world.take(gateway, RPM)
    world.renew(gateway)
    takes = [world.take(gateway, RPM) for _ in range(3)]
    assert not any(isinstance(take, Short) for take in takes)
    assert list(gateway.due(only_pressed=True)) == []
    world.take(gateway, RPM)
    assert list(gateway.due(only_pressed=True)) == [(RPM.key,)]


def test_a_limit_that_is_used_up_says_when_it_will_fit(world):
    """The exact second: a use is noted in its second or the next, and counts for sixty more."""
    gateway = world.gateway()
    assert len(world.take_all(gateway, RPM)) == 60
    short = world.take(gateway, RPM)
    assert not short.is_pending
    assert 60 < short.retry_after_s < 62.2
    assert gateway.can_take(RPM, 1, world.now) is False
    assert gateway.remaining(RPM, world.moment)[0] == 0
    world.now += short.retry_after_s
    world.take(gateway, RPM)
    world.renew(gateway)
    assert not isinstance(world.take(gateway, RPM), Short)


def test_a_used_up_limit_is_asked_for_again_only_now_and_then(world):
    """A flood of refused requests must not become a flood of reports."""
    gateway = world.gateway()
    world.take_all(gateway, RPM)
    assert list(gateway.due(only_pressed=True)) == []
    world.take(gateway, RPM)
    assert list(gateway.due(only_pressed=True)) == []
    world.now += ASK_AGAIN_S
    world.take(gateway, RPM)
    assert list(gateway.due(only_pressed=True)) == [(RPM.key,)]


@pytest.mark.parametrize("limit", [0, 5])
def test_more_than_the_limit_never_fits(world, limit):
    """Waiting is no use, and the store is not asked."""
    gateway = world.gateway()
    meter = Meter("project:p", Counted.REQUESTS, limit)
    assert world.take(gateway, meter, limit + 1) == Short(meter, limit, None)
    assert gateway.can_take(meter, limit + 1, world.now) is False
    assert list(gateway.due(only_pressed=True)) == []


def test_nothing_is_always_there(world):
    """A request without tokens is no reason to wait, and ends like any other."""
    gateway = world.gateway()
    taken = world.take(gateway, TPM, 0)
    assert gateway.statistics() == {"takes": 1, "meters": 1}
    taken.correct(5, world.moment)
    assert gateway.used(TPM, world.moment) == 5
    assert gateway.statistics()["takes"] == 0


def test_small_limits_are_used_whole_by_two_gateways(world):
    """What one holds unused is called back when the other is short."""
    first, second = world.gateway("a"), world.gateway("b")
    meter = Meter("project:p", Counted.REQUESTS, 4)
    world.take(first, meter)
    world.renew(first)
    taken = 0
    for _ in range(20):
        if isinstance(world.take(second, meter), Short):
            for key in world.renew(second, only_pressed=True):
                first.press([key], is_called=True)
                world.renew(first, only_pressed=True)
        else:
            taken += 1
    assert taken == 4
    assert isinstance(world.take(first, meter), Short)


def test_what_is_not_used_goes_back_within_two_seconds(world):
    """An idle gateway holds nothing, and is not reported on any more."""
    gateway = world.gateway()
    world.take(gateway, RPM)
    world.renew(gateway)
    taken = world.take(gateway, RPM)
    taken.undo(world.moment)
    for _ in range(4):
        world.now += 1.0
        world.renew(gateway)
    assert world.table.counted(RPM.key) == (0, 0)
    assert list(gateway.due()) == []
    assert isinstance(world.take(gateway, RPM), Short)


def test_a_correction_gives_back_here_and_everywhere(world):
    """Reserved 900 tokens, used 100: the rest is here at once, and told."""
    gateway = world.gateway()
    (taken, *_) = world.take_all(gateway, TPM, 900, rounds=1)
    assert gateway.used(TPM, world.moment) == 900
    taken.correct(100, world.moment)
    taken.correct(5000, world.moment)
    assert gateway.used(TPM, world.moment) == 100
    assert not isinstance(world.take(gateway, TPM, 800), Short)
    world.renew(gateway)
    assert world.table.counted(TPM.key)[0] == 900
    assert gateway.remaining(TPM, world.moment)[0] == 100


def test_more_than_was_taken_counts_from_now_also_beyond_the_limit(world):
    """The work is done: it is counted, and the next request is refused."""
    gateway = world.gateway()
    (taken, *_) = world.take_all(gateway, TPM, 900, rounds=1)
    taken.correct(1500, world.moment)
    world.renew(gateway)
    assert world.table.counted(TPM.key)[0] == 1500
    assert gateway.remaining(TPM, world.moment) == (0, pytest.approx(61.5, abs=1))
    assert isinstance(world.take(gateway, TPM, 1), Short)


def test_what_is_about_to_leave_the_window_is_not_lent_again(world):
    """It leaves by itself within a lease: lent again it would be there twice."""
    gateway = world.gateway()
    (taken, *_) = world.take_all(gateway, TPM, 900, rounds=1)
    world.renew(gateway)
    for _ in range(58):
        world.now += 1.0
        world.take(gateway, TPM, 10) if world.now < 110 else None
        world.renew(gateway)
    world.take(gateway, TPM, 10)
    world.renew(gateway)
    taken.undo(world.moment)
    assert isinstance(world.take(gateway, TPM, 500), Short)


def test_a_use_that_left_the_window_cannot_be_given_back(world):
    """An answer that took longer than a minute: its tokens are counted no more."""
    gateway = world.gateway()
    (taken, *_) = world.take_all(gateway, TPM, 900, rounds=1)
    world.renew(gateway)
    world.now += 63.0
    taken.undo(world.moment)
    assert gateway.used(TPM, world.moment) == 0
    assert gateway.remaining(TPM, world.moment) == (1000, 0.0)


def test_a_lost_answer_makes_nothing_count_twice(world):
    """The store took the report in, the gateway does not know: the next one finds out."""
    gateway = world.gateway()
    world.take(gateway, DAY, 10)
    world.renew(gateway)
    world.take(gateway, DAY, 10)
    report = gateway.report((DAY.key,), world.now)
    world.table.renew(report, round(world.moment.unix * 1000))
    gateway.fail(report)
    world.take(gateway, DAY, 5)
    world.renew(gateway)
    assert world.table.counted(DAY.key)[0] == 10  # behind: told again at once
    world.renew(gateway, only_pressed=True)
    assert world.table.counted(DAY.key)[0] == 15
    assert gateway.used(DAY, world.moment) == 15


def test_a_store_that_lost_its_last_writes_is_told_again(world):
    """A failover to a replica that was behind: uses of the last second before it are remembered here."""
    gateway = world.gateway()
    world.take(gateway, DAY, 10)
    world.renew(gateway)
    world.take(gateway, DAY, 10)
    world.renew(gateway)
    world.table.forget()
    world.take(gateway, DAY, 7)
    world.renew(gateway)
    world.renew(gateway, only_pressed=True)
    assert world.table.counted(DAY.key)[0] == 17


def test_a_report_that_was_overtaken_changes_nothing(world):
    """A call that hung in a paused store and is answered late."""
    gateway = world.gateway()
    world.take(gateway, DAY, 10)
    late = gateway.report((DAY.key,), world.now)
    world.take(gateway, DAY, 10)
    world.renew(gateway)
    answer = world.table.renew(late, round(world.moment.unix * 1000))
    assert answer.grants[0].is_stale
    gateway.apply(late, answer)
    world.take(gateway, DAY, 10)
    world.renew(gateway)
    assert world.table.counted(DAY.key)[0] == 10


def lose_the_store(world, gateway):
    """It does not answer, for longer than is waited."""
    world.is_away = True
    world.renew(gateway)
    world.now += AWAY_AFTER_S
    world.renew(gateway)


def test_money_is_refused_while_the_store_is_away(world):
    """Fails closed, once the lease has run out; what was granted may be used until then."""
    gateway = world.gateway()
    world.take(gateway, MONEY, 10)
    world.renew(gateway)
    world.take(gateway, MONEY, 10)
    lose_the_store(world, gateway)
    assert not isinstance(world.take(gateway, MONEY, 10), Short)
    world.now += LEASE_S
    short = world.take(gateway, MONEY, 10)
    assert (short.is_pending, short.retry_after_s) == (False, RETRY_S)
    assert gateway.is_degraded(world.now)


@pytest.mark.parametrize("meter", [TPM, DAY])
def test_tokens_are_admitted_in_part_while_the_store_is_away_and_told_afterwards(world, meter):
    """A quarter of what was free, for one of four gateways; counted once when the store is back."""
    gateway = world.gateway()
    gateway.num_gateways = 4
    world.take(gateway, meter, 10)
    world.renew(gateway)
    first = world.take(gateway, meter, 10)
    world.renew(gateway)
    free = 1000 - sum(world.table.counted(meter.key))
    lose_the_store(world, gateway)
    world.now += LEASE_S
    takes = []
    while not isinstance(taken := world.take(gateway, meter, 10), Short):
        takes.append(taken)
    assert len(takes) == free // 4 // 10
    assert not taken.is_pending
    assert gateway.can_take(meter, 10, world.now) is False
    first.correct(0, world.moment)
    takes[0].undo(world.moment)
    assert not isinstance(world.take(gateway, meter, 10), Short)
    world.is_away = False
    world.renew(gateway)
    world.renew(gateway)
    assert world.table.counted(meter.key)[0] == 10 * len(takes)
    assert not gateway.is_degraded(world.now)


def test_of_an_unknown_window_little_is_admitted_until_it_must_have_passed(world):
    """A tenant that comes to this gateway only after the store went away."""
    gateway = world.gateway()
    gateway.num_gateways = 2
    gateway.away_since = world.now
    world.now += AWAY_AFTER_S
    assert isinstance(world.take(gateway, TPM, 1000 // 2 // UNKNOWN_PARTS + 1), Short)
    taken = world.take(gateway, TPM, 1000 // 2 // UNKNOWN_PARTS)
    assert not isinstance(taken, Short)
    assert isinstance(world.take(gateway, TPM, 1), Short)
    world.now += 62.0
    assert not isinstance(world.take(gateway, TPM, 500), Short)
    assert isinstance(world.take(gateway, TPM, 1), Short)


def test_a_short_stall_of_the_store_admits_nothing_uncovered(world):
    """One failed call is no outage."""
    gateway = world.gateway()
    world.take(gateway, RPM)
    world.is_away = True
    world.renew(gateway)
    assert world.take(gateway, RPM).is_pending
    assert not gateway.is_degraded(world.now)
    world.is_away = False
    world.renew(gateway)
    assert not isinstance(world.take(gateway, RPM), Short)


def test_a_lowered_limit_holds_at_once(world):
    """What is held above it is given up; a raised one is asked for."""
    gateway = world.gateway()
    world.take_all(gateway, RPM, rounds=3)
    lowered = Meter(RPM.of, RPM.counted, 2)
    assert isinstance(world.take(gateway, lowered, 2), Short) or gateway.remaining(lowered, world.moment)[0] == 0
    world.renew(gateway)
    assert isinstance(world.take(gateway, lowered, 1), Short)
    assert sum(world.table.counted(RPM.key)) >= 2


def test_what_no_window_holds_is_dropped(world):
    """Tenants come and go; open takes and what is not told yet keep a meter."""
    gateway = world.gateway()
    takes = world.take_all(gateway, RPM, rounds=1) + world.take_all(gateway, DAY, rounds=1)
    world.now += 700.0
    assert gateway.expire(world.moment) == 0
    for take in takes:
        take.correct(1, world.moment)
    for _ in range(3):
        world.renew(gateway)
        world.now += 100.0
    assert gateway.expire(world.moment) == 2
    assert gateway.statistics() == {"takes": 0, "meters": 0}
    assert gateway.remaining(RPM, world.moment) == (60, 0.0)
    assert gateway.used(RPM, world.moment) == 0


def test_meters_in_memory_are_bounded(world):
    """One too many is refused for a moment rather than kept."""
    gateway = world.gateway(max_meters=1)
    world.take(gateway, RPM)
    assert world.take(gateway, TPM) == Short(TPM, 0, RETRY_S)
    assert gateway.can_take(TPM, 1, world.now) is False
    gateway.ask_for(TPM, 1, world.now)
    gateway.press([TPM.key])
    assert gateway.statistics()["meters"] == 1


def test_reports_are_bounded(world):
    """Many tenants make many reports, never a long one."""
    gateway = world.gateway()
    for number in range(MAX_PER_REPORT + 1):
        world.take(gateway, Meter(f"project:{number}", Counted.REQUESTS, 5))
    assert [len(keys) for keys in gateway.due()] == [MAX_PER_REPORT, 1]


def test_a_long_outage_is_remembered_in_bounded_memory(world):
    """Hundreds of failed reports; afterwards everything is counted once."""
    gateway = world.gateway()
    world.take(gateway, DAY, 10)
    world.renew(gateway)
    world.take(gateway, DAY, 10)
    world.is_away = True
    for _ in range(3 * MAX_BATCHES):
        world.now += 1.0
        world.take(gateway, DAY, 1)
        world.renew(gateway)
    assert len(gateway._allowances[DAY.key]._batches) <= MAX_BATCHES
    world.is_away = False
    used = gateway.used(DAY, world.moment)
    world.renew(gateway)
    assert world.table.counted(DAY.key)[0] == used > 100


def test_who_stops_leaves_nothing_behind(world):
    """What is held goes back, what was used is told."""
    gateway = world.gateway()
    world.take(gateway, DAY, 10)
    world.renew(gateway)
    world.take(gateway, DAY, 10)
    gateway.release()
    world.renew(gateway, only_pressed=True)
    assert world.table.counted(DAY.key) == (10, 0)


def test_the_dead_return_what_they_held_except_of_money(world):
    """Rates return within a lease. Of money it is not known what was used, so it stays counted until they say."""
    gateway, other = world.gateway("a"), world.gateway("b")
    for meter in (DAY, MONEY):
        world.take(gateway, meter, 100)
    world.renew(gateway)
    world.take(gateway, MONEY, 100)
    held = world.table.counted(MONEY.key)[1]
    world.now += LEASE_S + 0.1
    for meter in (DAY, MONEY):
        world.take(other, meter, 1)
    world.renew(other)
    assert world.table.counted(DAY.key)[0] == 0
    assert world.table.counted(MONEY.key)[0] == held
    world.renew(gateway)
    assert world.table.counted(MONEY.key)[0] == 100


def test_both_ways_to_look_tell_what_they_are(world):
    """For logs and the debugger."""
    gateway = world.gateway()
    assert repr(gateway) == "<LeasedMeters a of 1 takes=0 meters=0>"
    world.take(gateway, RPM)
    world.renew(gateway)
    taken = world.take(gateway, RPM)
    assert repr(taken) == "<LeasedTake 1 of project:p:rpm:0>"
    taken.undo(world.moment)
    assert repr(taken).endswith("ended>")
    assert repr(gateway._allowances[RPM.key]) == "<Allowance project:p:rpm:0 spare=4 limit=60>"
