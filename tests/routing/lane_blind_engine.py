"""An engine that knows no lanes, in virtual time, behind the real router, pool and seat control.

Every row in the batch slows all rows; prompts are read in the order they came, in chunks; nothing is left out. One
replica, people who come at random, and as much unstreamed bulk as the gateway lets in.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from engines.contract import Capabilities
from engines.step_cost import StepCost
from policies.bulk_controller import BulkSettings
from policies.lane import Lane
from policies.preemption import BulkRun, PreemptionSettings
from routing.decision import RouteDecision
from routing.lease import Lease
from routing.pool_settings import PoolSettings
from routing.seat_control import REFRESH_EVERY_S, SeatControl
from routing.step_model import Gaps
from tests.routing.fleet import Fleet

CHUNK_TOKENS = 512


@dataclass(eq=False)
class Sequence:
    """A request in the engine. `arrived_at`: at the gateway."""

    lane: Lane
    prompt_tokens: int
    answer_tokens: int
    arrived_at: float
    lease: Lease | None = None
    unread: int = 0
    token_times: list[float] = field(default_factory=list)
    times_preempted: int = 0


@dataclass
class Outcome:
    """What people saw and what bulk got. Tokens: prompt and answer of finished bulk requests."""

    ttfts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    bulk_tokens: int = 0
    wasted_tokens: int = 0
    urgent_s: float = 0.0
    end_s: float = 0.0

    def p95(self, name: str) -> float:
        """Of `ttfts` or `gaps`."""
        values = sorted(getattr(self, name))
        return values[int(0.95 * len(values))]


class Simulation:
    """`control` None: bulk takes what is not reserved, as without a controller."""

    def __init__(self, cost: StepCost, *, seats: int, seed: int = 1, settings: BulkSettings | None = None,
                 controlled: bool = True, preemption: PreemptionSettings | None = None, priority: bool = False) -> None:  # fmt: skip
        self.random = random.Random(seed)
        self.cost = cost
        capabilities = Capabilities(priority=priority)
        self.fleet = Fleet(1, PoolSettings(reserved_seats={Lane.INTERACTIVE: 1}), seats=seats, engine="llama-server",
                           capabilities=capabilities)  # fmt: skip
        self.has_priority = priority
        self.control = None
        if controlled:
            self.control = SeatControl(self.fleet.pool, lambda: self.fleet.now, settings, preemption)
        self.waiting: deque[Sequence] = deque()
        self.requeued: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.outcome = Outcome()
        self.num_texts = 0

    def run(self, seconds: float, *, people_every_s: float | None, bulk: tuple[int, int] | None,
            people: tuple[int, int] = (200, 100)) -> Outcome:  # fmt: skip
        """`people_every_s`: mean time between arrivals, None for nobody. `bulk`, `people`: prompt and answer tokens."""
        fleet, end = self.fleet, self.fleet.now + seconds
        start = fleet.now
        arrives_at = fleet.now + (self._pause(people_every_s) if people_every_s else seconds * 2)
        refresh_at = fleet.now
        while fleet.now < end:
            while arrives_at <= fleet.now and people_every_s:
                self.waiting.append(
                    Sequence(Lane.INTERACTIVE, self._size(people[0]), self._size(people[1]), arrives_at)
                )
                arrives_at += self._pause(people_every_s)
            if self.control and fleet.now >= refresh_at:
                self.control.refresh()
                refresh_at = fleet.now + REFRESH_EVERY_S
            self._dispatch(bulk)
            self._preempt()
            began = fleet.now
            if not self._step():
                fleet.now = min(arrives_at, fleet.now + REFRESH_EVERY_S)
            elif any(one.lane is not Lane.BULK for one in self.running):
                self.outcome.urgent_s += fleet.now - began
        self.outcome.end_s = fleet.now - start
        return self.outcome

    def _pause(self, mean_s: float) -> float:
        return self.random.expovariate(1 / mean_s)

    def _size(self, mean: int) -> int:
        return max(2, round(mean * self.random.uniform(0.5, 1.5)))

    def _dispatch(self, bulk: tuple[int, int] | None) -> None:
        while self.waiting and self._lease(self.waiting[0]):
            self.waiting.popleft()
        if self.waiting or bulk is None:
            return
        while True:
            again = self.requeued[0] if self.requeued else None
            one = again or Sequence(Lane.BULK, self._size(bulk[0]), self._size(bulk[1]), self.fleet.now)
            if not self._lease(one):
                return
            if again:
                self.requeued.popleft()

    def _lease(self, one: Sequence) -> bool:
        if not self.fleet.pool.get("r1").has_seat(one.lane):
            return False
        self.num_texts += 1
        decision = self.fleet.route(f"{self.num_texts:08}" + "x" * (4 * one.prompt_tokens - 8), lane=one.lane)
        if not isinstance(decision, RouteDecision):
            return False
        one.lease = self.fleet.pool.lease(decision, self.fleet.now)
        one.unread = one.prompt_tokens
        self.running.append(one)
        return one.lease is not None

    def _preempt(self) -> None:
        if self.control is None or not self.control.excess("r1"):
            return
        by_id = {str(number): one for number, one in enumerate(self.running) if one.lane is Lane.BULK}
        runs = [
            BulkRun(name, one.lease.begun_at, self.control.computed_tokens(one.lease, None, self.fleet.now),
                    times_preempted=one.times_preempted)
            for name, one in by_id.items()
        ]  # fmt: skip
        for run in self.control.preempt("r1", runs):
            one = by_id[run.request_id]
            self.running.remove(one)
            one.lease.end()
            self.outcome.wasted_tokens += one.prompt_tokens - one.unread + len(one.token_times)
            one.times_preempted += 1
            one.token_times.clear()
            self.requeued.append(one)

    def _step(self) -> bool:
        """One step of the engine; False if it has nothing to do."""
        if not self.running:
            return False
        left, rows, readers = CHUNK_TOKENS, [], []
        order = sorted(self.running, key=lambda one: one.lane.rank) if self.has_priority else self.running
        for one in order:
            if not one.unread:
                rows.append(one)
            elif left:
                taken = min(left, one.unread)
                left -= taken
                one.unread -= taken
                readers.append(one)
        seconds = self.cost.seconds(len(rows), CHUNK_TOKENS - left) * self.random.uniform(0.95, 1.05)
        self.fleet.now += seconds
        for one in rows + [one for one in readers if not one.unread]:
            self._token(one)
        return True

    def _token(self, one: Sequence) -> None:
        now, times = self.fleet.now, one.token_times
        times.append(now)
        is_streamed = one.lane is not Lane.BULK
        if is_streamed and len(times) == 1:
            self.fleet.router.pool.learn_ttft(one.lease, one.prompt_tokens, now - one.lease.begun_at)
            one.lease.prefilled()
        if len(times) < one.answer_tokens:
            return
        self.running.remove(one)
        if is_streamed:
            gaps = [after - before for before, after in pairwise(times)]
            self.outcome.ttfts.append(times[0] - one.arrived_at)
            self.outcome.gaps.extend(gaps)
            if self.control:
                self.control.observe(one.lease, Gaps.between(times[0], now, len(times), gaps[::4]), now)
        else:
            self.outcome.bulk_tokens += one.prompt_tokens + one.answer_tokens
            if self.control:
                self.control.observe_whole(one.lease, one.answer_tokens, now)
                self.control.budget.earn(one.prompt_tokens + one.answer_tokens)
        one.lease.end()
