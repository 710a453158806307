"""A worker in virtual time under a load of two lanes: what each gets, without a device."""

import heapq
import itertools
import random
from dataclasses import dataclass, field

from engines.core.admission import SchedulerSettings
from engines.core.latency_guard import LatencySettings
from engines.core.outlook import StepOutlook
from engines.core.sampling import Sampled
from engines.core.scheduler import Scheduler
from engines.core.sequence import GenerateRequest, SamplingParams
from engines.step_cost import StepCost
from policies.lane import Lane

COST = StepCost(base_s=0.010, per_row_s=0.001, per_prefill_token_s=0.0001)


@dataclass
class Measured:
    """Seconds and tokens. `alone_s`: time of steps without urgent rows and of idling; `bulk_tokens`: of output."""

    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    urgent_s: float = 0.0
    alone_s: float = 0.0
    bulk_tokens: int = 0
    outlooks: list[StepOutlook] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.urgent_s + self.alone_s


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@dataclass(frozen=True)
class Load:
    """Interactive arrivals by chance, `rate` a second; `bulk`: how many bulk requests are kept open."""

    rate: float = 0.0
    bulk: int = 0
    interactive_prompt: tuple[int, int] = (64, 512)
    interactive_output: tuple[int, int] = (32, 128)
    bulk_prompt: tuple[int, int] = (256, 1024)
    bulk_output: tuple[int, int] = (64, 256)
    latency: LatencySettings = field(default_factory=LatencySettings)
    cost: StepCost = COST
    max_seqs: int = 8


def run(load: Load, duration_s: float = 300.0, seed: int = 1) -> Measured:
    """Serve `load` for so long and measure."""
    settings = SchedulerSettings(
        max_seqs=load.max_seqs, max_step_tokens=512, context_tokens=8192, kv_tokens=65536, latency=load.latency
    )
    scheduler, measured = Scheduler(settings), Measured()
    arrivals_chance, bulk_chance = random.Random(seed), random.Random(seed + 1)
    arrivals: list[tuple[float, int]] = []
    at = 0.0
    while load.rate and at < duration_s:
        at += arrivals_chance.expovariate(load.rate)
        heapq.heappush(arrivals, (at, len(arrivals)))
    ids = itertools.count()
    last_at: dict[str, float] = {}
    open_bulk = 0
    now = 0.0

    def add(lane, arrival, prompt, output, chance):
        id_ = f"{lane.value}-{next(ids)}"
        sampling = SamplingParams(temperature=0, max_tokens=chance.randint(*output), ignore_eos=True)
        tokens = tuple(chance.randrange(1 << 30) for _ in range(chance.randint(*prompt)))
        assert scheduler.add(GenerateRequest(id_, tokens, sampling, lane, arrival=arrival), now) is None
        last_at[id_] = arrival

    while now < duration_s:
        while arrivals and arrivals[0][0] <= now:
            arrival, _ = heapq.heappop(arrivals)
            add(Lane.INTERACTIVE, arrival, load.interactive_prompt, load.interactive_output, arrivals_chance)
        while open_bulk < load.bulk:
            add(Lane.BULK, now, load.bulk_prompt, load.bulk_output, bulk_chance)
            open_bulk += 1
        plan = scheduler.schedule(now, load.cost)
        if plan is None:
            until = arrivals[0][0] if arrivals else duration_s
            measured.alone_s += until - now
            now = until
            continue
        outlook = scheduler.outlook(plan)
        measured.outlooks.append(outlook)
        seconds = load.cost.seconds(plan.num_decode_rows, plan.num_prefill_tokens)
        now += seconds
        if outlook.objective_s is None:
            measured.alone_s += seconds
        else:
            measured.urgent_s += seconds
        sampled = [(Sampled(7),)] * sum(row.samples for row in plan.rows)
        open_bulk -= _measure(scheduler.complete(plan, sampled, now), now, last_at, measured)
    return measured


def _measure(deltas, now, last_at, measured):
    """Note the tokens of one step; how many bulk requests ended with it."""
    num_ended = 0
    for delta in deltas:
        is_bulk = delta.request_id.startswith("bulk")
        num_ended += is_bulk and delta.finish_reason is not None
        measured.bulk_tokens += is_bulk
        if not is_bulk:
            gaps = measured.ttft_s if delta.num_output == 1 else measured.itl_s
            gaps.append(now - last_at[delta.request_id])
            last_at[delta.request_id] = now
    return num_ended
