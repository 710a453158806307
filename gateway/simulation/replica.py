"""A worker in virtual time: the real scheduler and KV memory, with a step's modelled time in place of a device.

What a sequence says is fixed by its request (as the fake engine's script does it), so no logits are made; which tokens
are computed, cached, evicted and preempted is the scheduler's own doing. Like a worker's engine thread it takes new
requests and aborts between steps.
"""

from dataclasses import dataclass

from engines.fake import (
    GenerateRequest,
    Sampled,
    SamplingParams,
    Scheduler,
    SchedulerSettings,
    SequenceDelta,
    SlotHolders,
    StepPlan,
)
from engines.step_cost import StepCost, StepCostFitter
from gateway.simulation.prompts import tokens_of
from gateway.simulation.workload import SimulatedRequest

_SAMPLED = tuple((Sampled(token),) for token in range(256))  # passages have no other tokens


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One kind of worker. `cost`: the true time of its steps.

    `prior`: what the worker believes of them before it has seen any; None: the truth. `num_slots`: KV by slot, as
    llama.cpp has it; None: by block table.
    """

    scheduler: SchedulerSettings
    cost: StepCost
    prior: StepCost | None = None
    num_slots: int | None = None


class SimulatedReplica:
    """One worker. Steps are begun and ended by the caller, who owns the time. `speed`: factor on every step's time."""

    def __init__(self, name: str, settings: EngineSettings, *, speed: float = 1.0) -> None:
        holders = SlotHolders(settings.num_slots, settings.scheduler.block_size) if settings.num_slots else None
        self.name = name
        self.settings = settings
        self.scheduler = Scheduler(settings.scheduler, holders)
        self.num_steps = 0
        self.busy_s = 0.0
        self._speed = speed
        self._fitter = StepCostFitter(settings.prior or settings.cost)
        self._seconds = 0.0  # of the step being computed
        self._plan: StepPlan | None = None
        self._answers: dict[str, tuple[int, ...]] = {}

    def __repr__(self) -> str:
        return f"<SimulatedReplica {self.name} open={len(self._answers)} {self.scheduler!r}>"

    @property
    def is_stepping(self) -> bool:
        """Whether a step is being computed."""
        return self._plan is not None

    def submit(self, request: SimulatedRequest, salt: str, now: float) -> None:
        """Take a request. Raises ValueError for one that this worker could never run or not queue."""
        sampling = SamplingParams(temperature=0, seed=0, max_tokens=request.answer.num_tokens, ignore_eos=True)
        generate = GenerateRequest(request.id, tokens_of(request.prompt), sampling, request.lane, 0, salt, now)
        refusal = self.scheduler.add(generate, now)
        if refusal is not None:
            raise ValueError(f"{self.name} refused {request.id}: {refusal.message}")
        self._answers[request.id] = tokens_of((request.answer,))

    def abort(self, request_id: str) -> None:
        """Let a request end at the next border between steps. Nothing is reported of it any more but its last delta."""
        if self.scheduler.abort(request_id) is not None:
            del self._answers[request_id]

    def begin_step(self, now: float) -> float | None:
        """Plan a step; how long it takes, or None when nothing is open. Not while another is computed."""
        plan = self._plan = self.scheduler.schedule(now, self._fitter.cost)
        if plan is None:
            return None
        seconds = self.settings.cost.seconds(plan.num_decode_rows, plan.num_prefill_tokens) * self._speed
        self._seconds = seconds
        self.num_steps += 1
        self.busy_s += seconds
        return seconds

    def end_step(self, now: float) -> list[SequenceDelta]:
        """Book the step that was begun: what each sequence got."""
        plan = self._plan
        assert plan is not None, "a step ends that was not begun"
        self._plan = None
        self._fitter.observe(plan.num_decode_rows, plan.num_prefill_tokens, self._seconds)
        answers = self._answers
        sequences = (row.sequence for row in self.scheduler.sampling_rows(plan))
        sampled = [_SAMPLED[answers[sequence.id][sequence.num_output]] for sequence in sequences]
        deltas = self.scheduler.complete(plan, sampled, now)
        for delta in deltas:
            if delta.finish_reason is not None:
                del answers[delta.request_id]
        return deltas
