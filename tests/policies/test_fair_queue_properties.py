"""The promises of the fair queue over random traffic: the service-gap bound, passes, work conservation, order, endings."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.entry import Entry, Picked
from policies.fair_queue import FairQueue
from policies.fair_settings import FairSettings, LaneRule
from policies.lane import Lane
from policies.offer import NoRoom, Offer

BOUND = 1000


def lanes(bound=BOUND) -> dict[Lane, LaneRule]:
    return {lane: LaneRule(bound=bound) for lane in Lane}


randoms = st.integers(0, 2**32 - 1).map(Random)  # long runs: a seed is quick to draw, and what fails is replayed by it


@st.composite
def fair_settings(draw) -> FairSettings:
    heads = draw(st.integers(1, 6))
    return FairSettings(
        quantum_tokens=draw(st.sampled_from([0.0, 50.0, 500.0, 5000.0])),
        skips=draw(st.integers(0, 4)),
        window=draw(st.integers(1, 5)),
        flows=draw(st.integers(1, 6)),
        heads=heads,
        asks=draw(st.integers(heads, 12)),
        output_weight=1.0,
        lift_after_s=draw(st.sampled_from([None, 3.0])),
        lanes=lanes(),
    )


@dataclass
class Account:
    """What one flow was given, and what the bound needs to know of it."""

    weight: float
    service: float = 0.0
    most_charged: float = 0.0
    under: float = 0.0  # what its requests in flight will cost more than they were charged
    over: float = 0.0
    most_under: float = 0.0
    most_over: float = 0.0

    def opened(self, charged: float, actual: float) -> None:
        self.service += charged
        self.most_charged = max(self.most_charged, charged)
        self.under += max(0.0, actual - charged)
        self.over += max(0.0, charged - actual)
        self.most_under = max(self.most_under, self.under)
        self.most_over = max(self.most_over, self.over)

    def settled(self, charged: float, actual: float) -> None:
        self.service += actual - charged
        self.under -= max(0.0, actual - charged)
        self.over -= max(0.0, charged - actual)


@dataclass
class Gaps:
    """The range of every pair's difference in weighted service: the widest gap of any interval."""

    accounts: dict[str, Account]
    low: dict = field(default_factory=dict)
    high: dict = field(default_factory=dict)

    def note(self) -> None:
        names = sorted(self.accounts)
        for one in names:
            for other in names:
                gap = self.accounts[one].service / self.accounts[one].weight
                gap -= self.accounts[other].service / self.accounts[other].weight
                self.low[one, other] = min(gap, self.low.get((one, other), gap))
                self.high[one, other] = max(gap, self.high.get((one, other), gap))

    @property
    def widest(self) -> float:
        return max(self.high[pair] - self.low[pair] for pair in self.high)

    @property
    def unit(self) -> float:
        """U of the bound: one charge, and the errors of either sign in flight, by weight."""
        return sum(
            max(getattr(account, name) / account.weight for account in self.accounts.values())
            for name in ("most_charged", "most_under", "most_over")
        )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_service_gap_of_flows_that_wait_throughout_is_within_the_bound(data):
    """|S_f/w_f - S_g/w_g| <= 2(Q + U) over every interval, whatever hits, costs, errors, neighbours and caps there are."""
    rules = data.draw(fair_settings())
    fair = FairQueue(rules)
    number = data.draw(st.integers(2, 5))
    random = data.draw(randoms)
    accounts = {f"flow{i}": Account(random.choice([0.5, 1.0, 2.0, 5.0])) for i in range(number)}
    gaps, open_picks = Gaps(accounts), []
    favourite = random.choice(sorted(accounts))
    for _ in range(data.draw(st.integers(20, 150))):
        for tenant, account in accounts.items():  # these wait throughout
            while sum(one.tenant == tenant for one in waiting_of(fair)) < random.choice([1, 3, 6]):
                fair.push(Entry(tenant, Lane.STANDARD, weight=account.weight, home=home_of(random)), 0.0)
        if random.random() < 0.3:  # others come, some of which are barred
            fair.push(Entry(f"guest{random.randrange(4)}", Lane.STANDARD, weight=random.choice([0.3, 4.0])), 0.0)
        if random.random() < 0.2:
            fair.wake(with_capped=random.random() < 0.5)
        is_full = random.random() < 0.1

        def chooser(one, *, is_full=is_full):
            if is_full:
                return NoRoom.LANE
            if one.tenant.startswith("guest") and random.random() < 0.5:
                return random.choice([NoRoom.FLOW, NoRoom.CAPPED, NoRoom.ENTRY])
            gain = random.random() + (one.tenant == favourite)
            return Offer(gain, random.choice([1, 20, 300]) if one.tenant != favourite else 100)

        picked = fair.pick(chooser, 0.0, near_of(random))
        if is_full:
            fair.wake()
        if picked is not None:
            actual = picked.charged * random.choice([0.0, 0.5, 1.0, 1.0, 2.0])
            open_picks.append((picked, actual))
            if picked.entry.tenant in accounts:
                accounts[picked.entry.tenant].opened(picked.charged, actual)
            gaps.note()
        while open_picks and random.random() < 0.4:
            picked, actual = open_picks.pop(random.randrange(len(open_picks)))
            fair.settle(picked, actual, 0.0)
            if picked.entry.tenant in accounts:
                accounts[picked.entry.tenant].settled(picked.charged, actual)
            gaps.note()
    if gaps.high:
        assert gaps.widest <= 2 * (rules.quantum_tokens + gaps.unit) + 1e-6


@settings(max_examples=60, deadline=None)
@given(fair_settings(), randoms)
def test_who_could_not_be_served_for_a_while_gets_no_more_than_its_share_afterwards(rules, random):
    """A flow that is barred at times never gets ahead of one that waits throughout by more than 2(Q + U) + Q."""
    fair = FairQueue(rules)
    accounts = {"steady": Account(1.0), "barred": Account(1.0)}
    highest = lead = 0.0
    lowest = 0.0
    is_barred = False
    for _ in range(200):
        for tenant in accounts:
            while sum(one.tenant == tenant for one in waiting_of(fair)) < 3:
                fair.push(Entry(tenant, Lane.STANDARD), 0.0)
        if random.random() < 0.1:
            is_barred = not is_barred
            fair.wake(with_capped=True)

        def chooser(one, *, is_barred=is_barred):
            is_it = one.tenant == "barred"
            return NoRoom.CAPPED if is_barred and is_it else Offer(random.random() + is_it, 100)

        picked = next_of(fair, chooser)
        accounts[picked.entry.tenant].opened(picked.charged, picked.charged)
        fair.settle(picked, picked.charged, 0.0)
        lead = accounts["barred"].service - accounts["steady"].service
        lowest = min(lowest, lead)
        highest = max(highest, lead - lowest)  # the most it gained on the other in any interval
    assert highest <= 2 * (rules.quantum_tokens + 100) + rules.quantum_tokens


def next_of(fair, chooser, now=0.0) -> Picked | None:
    """The next pick, over as many calls as its scan takes."""
    picked = fair.pick(chooser, now)
    while picked is None and fair.is_scan_unfinished:
        picked = fair.pick(chooser, now)
    return picked


def home_of(random) -> str | None:
    return random.choice([None, "r1", "r2", "r3"])


def near_of(random) -> list[str]:
    return random.choice([[], ["r1"], ["r2", "r3"]])


def waiting_of(fair) -> list[Entry]:
    return [one for lane in fair._lanes for one in lane.arrivals]


@settings(max_examples=150, deadline=None)
@given(fair_settings(), randoms)
def test_nobody_with_room_is_passed_or_overtaken_more_often_than_the_settings_say(rules, random):
    """Counted here from outside: whose turn came first by counter and arrival, had room, and saw another go."""
    fair = FairQueue(rules)
    passed, overtaken, has_room, gains = Counter(), Counter(), {}, {}
    for step in range(random.randrange(20, 200)):
        for _ in range(random.randrange(3)):
            one = Entry(
                f"t{random.randrange(5)}", Lane.STANDARD, step, weight=random.choice([1.0, 3.0]), home=home_of(random)
            )
            has_room[one] = random.random() < 0.8
            gains[one] = random.random()
            fair.push(one, float(step))
        if random.random() < 0.1:
            for one in waiting_of(fair):
                has_room[one] = random.random() < 0.8
            fair.wake()
        turns = defaultdict(list)  # by tenant: whom the queue may ask now, and who has room
        for one in waiting_of(fair):
            if one.flow.item is not None and one in one.flow.waiting:
                turns[one.tenant].append(one)
        counters = {tenant: entries[0].flow.counter for tenant, entries in turns.items()}
        picked = fair.pick(
            lambda one: Offer(gains[one], 100 + one.request % 7) if has_room[one] else NoRoom.ENTRY,
            float(step),
            near_of(random),
        )
        if picked is None or picked.entry.tenant not in turns:  # set aside before: the pick began its scan anew
            continue
        for tenant, entries in turns.items():
            if tenant == picked.entry.tenant:
                overtaken.update(one for one in entries if has_room[one] and one.number < picked.entry.number)
            elif counters[tenant] < counters[picked.entry.tenant]:
                passed.update(one for one in entries[:1] if has_room[one])
        if random.random() < 0.7:
            fair.settle(picked, picked.charged, float(step))
    assert all(count <= rules.skips for count in passed.values())
    assert all(count < rules.window for count in overtaken.values())


@settings(max_examples=150, deadline=None)
@given(fair_settings(), randoms)
def test_whoever_has_room_is_found(rules, random):
    """Work conservation: after picks until there is none, nobody waits who could have gone."""
    fair = FairQueue(rules)
    answers = {}
    barred_flows = {f"t{number}": random.choice([NoRoom.FLOW, NoRoom.CAPPED]) for number in random.sample(range(9), 4)}
    full = random.sample(sorted(Lane, key=lambda lane: lane.rank), random.randrange(3))

    def chooser(one):
        if one.served_as in full:
            return NoRoom.LANE
        return barred_flows.get(one.tenant) or answers[one]

    for _ in range(random.randrange(1, 80)):
        one = Entry(f"t{random.randrange(9)}", random.choice(list(Lane)))
        answers[one] = Offer(random.random(), 10) if random.random() < 0.5 else NoRoom.ENTRY
        fair.push(one, 0.0)
    num_calls = 0
    while fair.pick(chooser, 1.0) is not None or fair.is_scan_unfinished:
        num_calls += 1
        assert num_calls < 1000
        if num_calls in {3, 20, 50}:
            fair.wake()
    fair.wake(with_capped=True)
    while fair.pick(chooser, 1.0) is not None or fair.is_scan_unfinished:
        pass
    assert not [one for one in waiting_of(fair) if isinstance(chooser(one), Offer)]


@settings(max_examples=100, deadline=None)
@given(fair_settings(), randoms)
def test_interactive_is_never_passed_by_a_lower_lane_that_could_have_let_it_go(rules, random):
    """Strict order: no standard or bulk pick while an interactive entry has room."""
    fair = FairQueue(rules)
    has_room = {}
    for step in range(100):
        one = Entry(f"t{random.randrange(4)}", random.choice(list(Lane)))
        has_room[one] = random.random() < 0.7
        fair.push(one, step * 0.1)
        if random.random() < 0.3:
            has_room.update({one: random.random() < 0.7 for one in waiting_of(fair)})
            fair.wake()
        picked = fair.pick(lambda one: Offer(random.random(), 10) if has_room[one] else NoRoom.ENTRY, step * 0.1)
        if picked is not None and picked.entry.lane is not Lane.INTERACTIVE:
            left = [one for one in waiting_of(fair) if one.lane is Lane.INTERACTIVE and has_room[one]]
            assert not [one for one in left if one in one.flow.waiting]
            assert picked.entry.served_as is not Lane.INTERACTIVE


@settings(max_examples=50, deadline=None)
@given(fair_settings(), st.lists(st.sampled_from("abc"), min_size=1, max_size=60), randoms)
def test_the_order_of_arrival_changes_nobodys_total(rules, tenants, random):
    """Drained, every permutation of the same entries gave every tenant the same; on the way it was within the bound."""
    totals = []
    for _ in range(2):
        random.shuffle(tenants)
        fair, total = FairQueue(rules), Counter()
        for tenant in tenants:
            fair.push(Entry(tenant, Lane.STANDARD, output_tokens=ord(tenant)), 0.0)
        while (picked := fair.pick(lambda one: Offer(random.random(), 10), 0.0)) is not None:
            total[picked.entry.tenant] += picked.charged
            fair.settle(picked, picked.charged, 0.0)
        totals.append(total)
    assert totals[0] == totals[1]


@settings(max_examples=50, deadline=None)
@given(fair_settings(), randoms)
def test_whoever_idles_and_then_floods_gets_its_share_and_the_bound_at_most(rules, random):
    """Whatever came before, from the flood on the gap to a tenant that waited all along is bounded."""
    fair = FairQueue(rules)
    for _ in range(random.randrange(100)):
        if random.random() < 0.3:
            fair.push(Entry("idler", Lane.BULK), 0.0)
        for _ in range(2):
            fair.push(Entry("worker", Lane.BULK), 0.0)
        picked = fair.pick(lambda one: Offer(random.random(), 100), 0.0)
        fair.settle(picked, picked.charged, 0.0)
    while [one for one in waiting_of(fair) if one.tenant == "idler"]:
        fair.pick(lambda _: Offer(random.random(), 100), 0.0)
        fair.push(Entry("worker", Lane.BULK), 0.0)
    for _ in range(random.randrange(200)):
        fair.pick(lambda _: Offer(random.random(), 100), 0.0)
        fair.push(Entry("worker", Lane.BULK), 0.0)
    for tenant in ("idler", "worker"):
        for _ in range(150):
            fair.push(Entry(tenant, Lane.BULK), 0.0)
    service = Counter()
    for _ in range(100):
        picked = fair.pick(lambda one: Offer(random.random() + (one.tenant == "idler"), 100), 0.0)
        service[picked.entry.tenant] += picked.charged
        assert service["idler"] - service["worker"] <= 2 * (rules.quantum_tokens + 100)


class Traffic(RuleBasedStateMachine):
    """Every way in and out, in any order, against a model that only counts."""

    @initialize(rules=fair_settings())
    def begin(self, rules):
        self.fair = FairQueue(replace(rules, lanes=lanes(bound=6)))
        self.now = 0.0
        self.waiting: list[Entry] = []
        self.open: list[Picked] = []

    @rule(
        tenant=st.sampled_from("abcd"),
        lane=st.sampled_from(Lane),
        wait_s=st.sampled_from([0.1, 1.0, 5.0, 1e9, None]),
        home=st.sampled_from(["r1", "r2", None]),
    )
    def push(self, tenant, lane, wait_s, home):
        one = Entry(tenant, lane, weight=ord(tenant) - 96.0, home=home)
        if wait_s is not None:
            one.deadline = self.now + wait_s
        self._push(one)

    def _push(self, one):
        self.fair.push(one, self.now)
        self.waiting.append(one)
        overflow = self.fair.overflow(one)
        if overflow is not None:
            assert self.fair.remove(overflow.entry, self.now)
            self.waiting.remove(overflow.entry)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), cost=st.sampled_from([0.0, 500.0]))
    def come_back(self, data, cost):
        picked = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        assert self.fair.settle(picked, cost, self.now)
        old = picked.entry
        self._push(Entry(old.tenant, old.lane, weight=old.weight, home=old.home, since=old.since))

    @rule(data=st.data(), near=st.sampled_from([(), ("r1",), ("r2", "r1")]))
    def pick(self, data, near):
        answers = st.one_of(
            st.tuples(st.floats(0, 9), st.integers(0, 500)).map(lambda offer: Offer(*offer)),
            st.sampled_from(list(NoRoom)[1:]),
        )
        picked = self.fair.pick(lambda _: data.draw(answers), self.now, near)
        if picked is not None:
            self.waiting.remove(picked.entry)
            self.open.append(picked)

    @rule()
    def pick_while_full(self):
        assert self.fair.pick(lambda _: NoRoom.LANE, self.now) is None

    @precondition(lambda self: self.open)
    @rule(data=st.data(), cost=st.floats(0, 2000))
    def settle(self, data, cost):
        picked = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        assert self.fair.settle(picked, cost, self.now)
        assert not self.fair.settle(picked, cost, self.now)
        assert not self.fair.put_back(picked)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def put_back(self, data):
        picked = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        assert self.fair.put_back(picked)
        assert not self.fair.put_back(picked)
        self.waiting.append(picked.entry)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data):
        one = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        assert self.fair.remove(one, self.now)
        assert not self.fair.remove(one, self.now)

    @rule(elapsed_s=st.sampled_from([0.01, 0.3, 2.0, 100.0]))
    def pass_time(self, elapsed_s):
        self.now += elapsed_s
        evicted = self.fair.expire(self.now)
        assert set(evicted) == {one for one in self.waiting if one.deadline <= self.now}
        self.waiting = [one for one in self.waiting if one.deadline > self.now]

    @rule(with_capped=st.booleans())
    def wake(self, with_capped):
        self.fair.wake(with_capped=with_capped)

    @rule(tenant=st.sampled_from("abcd"), lane=st.sampled_from(Lane))
    def wake_flow(self, tenant, lane):
        self.fair.wake_flow(tenant, lane)

    @invariant()
    def flows_are_in_order_of_age(self):
        """By the numbers, too, which say how far each may be overtaken."""
        for flow in {one.flow for one in self.waiting}:
            turns = [(one.number, one.since) for one in flow.waiting]
            assert turns == sorted(turns)
            assert len({number for number, _ in turns}) == len(turns)
            everybody = sorted((one.number, one.since) for one in (*flow.waiting, *flow.aside))
            assert [since for _, since in everybody] == sorted(since for _, since in everybody)
            for home in ("r1", "r2"):
                assert list(flow.at_home.get(home, ())) == [one for one in flow.waiting if one.home == home]

    @invariant()
    def counts_agree(self):
        for lane in Lane:
            assert self.fair.depth(lane) == sum(one.lane is lane for one in self.waiting)
            assert self.fair.in_flight(lane) == sum(picked.entry.lane is lane for picked in self.open)
            statistics = self.fair.statistics()[lane.value]
            with_work = {one.tenant for one in self.waiting if one.lane is lane}
            assert statistics["ready"] + statistics["aside"] + statistics["capped"] == len(with_work)
            in_flight = {picked.entry.tenant for picked in self.open if picked.entry.lane is lane}
            assert statistics["flows"] == len(with_work | in_flight) + statistics["idle"]
        for one in self.waiting:
            place = self.fair.place_of(one)
            assert 1 <= place.in_lane <= self.fair.depth(one.lane)
            assert place.in_lane <= place.position <= len(self.waiting)

    def teardown(self):
        self.now += 1.0
        self.fair.wake(with_capped=True)
        while (picked := self.fair.pick(lambda _: Offer(0, 1), self.now)) is not None or self.fair.is_scan_unfinished:
            if picked is not None:
                self.waiting.remove(picked.entry)
                self.open.append(picked)
        assert self.waiting == []
        for picked in self.open:
            self.fair.settle(picked, 1.0, self.now)
        self.fair.expire(self.now + 1000)
        assert all(not any(lane.values()) for lane in self.fair.statistics().values())


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
