"""Any order of takes, reports, lost answers, deaths and outages over four gateways: the limit holds as it is promised."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.leased_meters import AWAY_AFTER_S, LeasedMeters
from policies.leases import LEASE_S
from policies.meter_table import MeterTable
from policies.meters import Counted, Meter, Moment, Short

UNIX = 1_700_000_000
WINDOW_S = 60


class Gateway:
    """One gateway; `taken`: takes that are open."""

    def __init__(self, name: str, offset_s: float) -> None:
        self.offset_s = offset_s  # its clock against the store's
        self.meters = LeasedMeters(name)
        self.taken = []
        self.told_at = float("-inf")
        self.since_told = 0  # most that was used and is not known to the store
        self.failing_since = None

    def is_cut_off(self, now: float) -> bool:
        """Whether it may decide without the store."""
        return self.failing_since is not None and now >= self.failing_since + AWAY_AFTER_S


class MeterMachine(RuleBasedStateMachine):
    """Times are seconds on the store's clock, from 0."""

    counted = Counted.REQUESTS

    @initialize(
        limit=st.one_of(st.integers(0, 12), st.integers(0, 60)),
        offsets=st.lists(st.floats(0, 5000), min_size=4, max_size=4),
    )
    def begin(self, limit, offsets):
        self.now = 0.0
        window = (0, 0) if self.counted in {Counted.REQUESTS, Counted.TOKENS} else (UNIX - 9, UNIX + 10**6)
        self.meter = Meter("project:p", self.counted, limit, *window)
        self.table = MeterTable()
        self.gateways = [Gateway(name, offset) for name, offset in zip("abcd", offsets, strict=True)]
        self.uses = []  # [when, how much], of all gateways that ever were
        self.num_dead = 0
        self.excess = 0  # what promises allow beyond the limit

    def moment(self, gateway):
        return Moment(self.now + gateway.offset_s, UNIX + self.now)

    @rule(number=st.integers(0, 3), amount=st.integers(1, 12), many=st.integers(1, 4))
    def take(self, number, amount, many):
        gateway = self.gateways[number]
        for _ in range(many):
            take = gateway.meters.take(self.meter, amount, self.moment(gateway))
            if isinstance(take, Short):
                assert take.remaining < amount
                assert (take.retry_after_s is None) == (amount > self.meter.limit)
                return
            if gateway.is_cut_off(self.now) and self.counted is not Counted.MONTH_MONEY:
                self.excess += amount
            use = [self.now, amount]
            self.uses.append(use)
            gateway.since_told += amount
            gateway.taken.append((take, use))

    @precondition(lambda self: any(gateway.taken for gateway in self.gateways))
    @rule(number=st.integers(0, 3), place=st.integers(0, 50), part=st.floats(0, 1))
    def correct(self, number, place, part):
        gateway = self.gateways[number]
        if not gateway.taken:
            return
        take, use = gateway.taken.pop(place % len(gateway.taken))
        use[1] = int(use[1] * part)
        take.correct(use[1], self.moment(gateway))
        take.undo(self.moment(gateway))  # a second end changes nothing

    @rule(
        number=st.integers(0, 3),
        fate=st.sampled_from(["answered"] * 6 + ["unanswered", "unsent"]),
        called=st.booleans(),
    )
    def report(self, number, fate, called):
        gateway = self.gateways[number]
        if called:
            gateway.meters.press([self.meter.key], is_called=True)
        for keys in gateway.meters.due():
            self.deliver(gateway, gateway.meters.report(keys, self.moment(gateway).now), fate)

    def deliver(self, gateway, report, fate):
        if fate != "unsent":
            gateway.told_at = self.now
            answer = self.table.renew(report, round((UNIX + self.now) * 1000))
            if not any(grant.is_behind for grant in answer.grants):
                gateway.since_told = 0
        if fate == "answered":
            gateway.meters.apply(report, answer)
            gateway.failing_since = None
        else:
            gateway.failing_since = self.now if gateway.failing_since is None else gateway.failing_since
            gateway.meters.fail(report)

    @rule(amount=st.integers(1, 5), numbers=st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
    def rush(self, amount, numbers):
        """Takers as eager as can be, until nothing comes any more."""
        for _ in range(6):
            for number in numbers:
                self.take(number, amount, 20)
                self.report(number, "answered", called=False)
                self.take(number, amount, 20)
            self.holds()

    @rule(number=st.integers(0, 3), before=st.integers(0, 9), after=st.integers(0, 9), is_told=st.booleans())
    def be_silent(self, number, before, after, is_told):
        """One gateway takes and is not heard for longer than a lease; it goes on taking, and the others have a rush."""
        gateway = self.gateways[number]
        self.take(number, 1, before)
        self.report(number, "answered", called=False)
        self.take(number, 1, before)
        if is_told:
            self.report(number, "unanswered", called=False)
        others = [one for one in range(4) if one != number]
        for _ in range(5):
            self.pass_time(0.9)
            self.rush(1, others)
        if gateway is self.gateways[number]:
            self.take(number, 1, after)

    @rule()
    def agree(self):
        """Once everybody has told everything, the store has counted every use once, at its time or just after."""
        for gateway in self.gateways:
            for _ in range(3):
                self.report(self.gateways.index(gateway), "answered", called=True)
        if self.num_dead or self.meter.limit == 0:
            return
        idle = LeasedMeters("idle")
        idle.take(self.meter, 1, Moment(self.now, UNIX + self.now))
        self.table.renew(idle.report(next(iter(idle.due())), self.now), round((UNIX + self.now) * 1000))
        self.table.leave("idle", self.meter.key)
        counted, _ = self.table.counted(self.meter.key)
        least = self.used(WINDOW_S)
        assert least <= counted <= self.used(WINDOW_S + 3), f"{counted} counted of {least}"

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 1.0]))
    def wait(self, seconds):
        self.pass_time(seconds)

    @rule(seconds=st.sampled_from([5.0, 61.5, 30.0]))
    def wait_long(self, seconds):
        """Everybody says what there is to say meanwhile."""
        for _ in range(round(seconds / 0.5)):
            self.pass_time(0.5)
            for gateway in self.gateways:
                for keys in gateway.meters.due():
                    self.deliver(gateway, gateway.meters.report(keys, self.moment(gateway).now), "answered")

    def pass_time(self, seconds):
        self.now += seconds
        for gateway in self.gateways:
            gateway.meters.expire(self.moment(gateway))
            if self.now > gateway.told_at + LEASE_S * 0.9:
                self.lose(gateway)

    def lose(self, gateway):
        """Its lease ends: what it used and did not tell may be granted again."""
        self.excess += gateway.since_told
        gateway.since_told = 0

    @rule(number=st.integers(0, 3))
    def die(self, number):
        gateway = self.gateways[number]
        self.num_dead += 1
        self.lose(gateway)
        self.gateways[number] = Gateway(f"{number}-{self.now}-{len(self.uses)}", 17.0)

    def used(self, window_s):
        since = self.now - window_s if self.meter.is_sliding else float("-inf")
        return sum(amount for at, amount in self.uses if at >= since)

    @invariant()
    def holds(self):
        if not hasattr(self, "uses"):
            return
        used = self.used(WINDOW_S)
        assert used <= self.meter.limit + self.excess, f"{used} of {self.meter.limit} + {self.excess}"
        for gateway in self.gateways:
            assert gateway.meters.statistics()["takes"] == len(gateway.taken)


class MoneyMachine(MeterMachine):
    """What a silent gateway held stays counted, so nothing exceeds whoever dies."""

    counted = Counted.MONTH_MONEY

    def lose(self, gateway):
        """Nothing."""


TestMinute = MeterMachine.TestCase
TestMinute.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestMoney = MoneyMachine.TestCase
TestMoney.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
