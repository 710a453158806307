"""Whether a request may wait for a seat at all: bounds that hold whatever else is running. Pure."""

import hashlib
from dataclasses import dataclass
from enum import Enum

from engines.core.eviction import EvictionPolicy
from engines.core.host_tier import HostSettings
from engines.core.latency_guard import LatencySettings
from engines.core.sequence import GenerateRequest, Sequence
from policies.lane import Lane


class RefusalReason(Enum):
    """Why a request was not taken. The first three are the caller's fault, the others the moment's."""

    EMPTY_PROMPT = "empty_prompt"
    CONTEXT_EXCEEDED = "context_exceeded"  # prompt + max_tokens is more than the model's context
    KV_EXCEEDED = "kv_exceeded"  # prompt + max_tokens is more than this worker's KV cache
    DUPLICATE_ID = "duplicate_id"
    QUEUE_FULL = "queue_full"
    STOPPING = "stopping"  # draining or stopped

    @property
    def is_callers_fault(self) -> bool:
        """Whether the same request would be refused at any time."""
        return self in _CALLERS_FAULT


_CALLERS_FAULT = frozenset({RefusalReason.EMPTY_PROMPT, RefusalReason.CONTEXT_EXCEEDED, RefusalReason.KV_EXCEEDED})


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request was not taken; nothing of it is kept and no delta will come. `message`: a sentence for people."""

    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Bounds of one scheduler.

    `max_seqs`: sequences in one step, and seats of the urgent lanes and of bulk, each. `max_resident`: sequences that
    hold KV at once; None: twice `max_seqs`, so that bulk that sits takes no seat from urgent ones. `max_step_tokens`:
    the token budget of a step, at least `max_seqs`, so that every urgent sequence that decodes gets its token in every
    step. `latency`: what urgent sequences are promised. `context_tokens`: longest sequence.
    `kv_tokens`: KV cells. `eos_ids`: the model's end tokens. `max_waiting`: requests that may wait for a first
    seat, urgent ones and bulk each, so that no flood of bulk gets an urgent one refused.
    `watermark_ratio`: share of the blocks kept free at admission, so that those running can grow (vLLM's default).
    `max_drafts`: tokens guessed ahead for one sequence in a step (speculation.py), 0: none; `max_step_drafts`: for all.
    `eviction`: which cached blocks go first. `host`: what is kept of them in host memory. `mixes_prompts`: whether
    urgent prompts and urgent decodes go into one step; else they take turns (turns.py).
    """

    max_seqs: int
    max_step_tokens: int
    context_tokens: int
    kv_tokens: int
    eos_ids: frozenset[int] = frozenset()
    block_size: int = 16
    max_waiting: int = 1024
    watermark_ratio: float = 0.01
    max_drafts: int = 0
    max_step_drafts: int = 32
    max_resident: int | None = None
    latency: LatencySettings = LatencySettings()  # noqa: RUF009  # frozen
    eviction: EvictionPolicy = EvictionPolicy.LRU
    host: HostSettings = HostSettings()  # noqa: RUF009  # frozen
    mixes_prompts: bool = True

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that cannot work together."""
        if min(self.max_seqs, self.block_size, self.context_tokens) < 1 or self.max_waiting < 0:
            raise ValueError("max_seqs, block_size and context_tokens must be at least 1, max_waiting at least 0")
        if self.max_step_tokens < self.max_seqs:
            raise ValueError(f"max_step_tokens {self.max_step_tokens} is less than max_seqs {self.max_seqs}")
        if self.num_resident < self.max_seqs:
            raise ValueError(f"max_resident {self.max_resident} is less than max_seqs {self.max_seqs}")
        if self.num_blocks < 1:
            raise ValueError(f"kv_tokens {self.kv_tokens} holds no block of {self.block_size} tokens")
        if min(self.max_drafts, self.max_step_drafts) < 0:
            raise ValueError("max_drafts and max_step_drafts must be at least 0")
        if not 0 <= self.watermark_ratio < 1:
            raise ValueError("watermark_ratio must be in [0, 1)")

    @property
    def num_resident(self) -> int:
        """Sequences that may hold KV at once, if the runner has slots for as many."""
        return 2 * self.max_seqs if self.max_resident is None else self.max_resident

    @property
    def num_blocks(self) -> int:
        """Whole blocks in `kv_tokens`."""
        return self.kv_tokens // self.block_size

    @property
    def max_sequence_tokens(self) -> int:
        """The longest sequence that context and KV allow."""
        return min(self.context_tokens, self.num_blocks * self.block_size)


def check_size(request: GenerateRequest, settings: SchedulerSettings) -> Refusal | None:
    """Why this request could never run here, or None. Depends on nothing that changes: callable from any thread."""
    if not request.prompt:
        return Refusal(RefusalReason.EMPTY_PROMPT, "The prompt holds no tokens.")
    wanted = request.sampling.max_tokens
    total = len(request.prompt) + (1 if wanted is None else wanted)
    parts = f"prompt of {len(request.prompt)} tokens" + ("" if wanted is None else f" plus max_tokens {wanted}")
    if total > settings.context_tokens:
        return Refusal(
            RefusalReason.CONTEXT_EXCEEDED,
            f"This model's context is {settings.context_tokens} tokens; the {parts} is more.",
        )
    if total > settings.num_blocks * settings.block_size:
        return Refusal(
            RefusalReason.KV_EXCEEDED,
            f"This worker's KV cache holds {settings.num_blocks * settings.block_size} tokens; the {parts} is more.",
        )
    return None


def queue_full(num_waiting: int, lane: Lane) -> Refusal:
    """Why a request is not queued: so many of its kind wait for a first seat."""
    kind = "bulk" if lane is Lane.BULK else "interactive and standard"
    return Refusal(RefusalReason.QUEUE_FULL, f"{num_waiting} {kind} requests are waiting already.")


def open_sequence(request: GenerateRequest, settings: SchedulerSettings, now: float, number: int) -> Sequence:
    """A waiting sequence for a request that passed `check_size`. `number` settles the order of equal arrivals."""
    wanted = request.sampling.max_tokens
    limit = settings.max_sequence_tokens
    return Sequence(
        request=request,
        max_length=limit if wanted is None else len(request.prompt) + wanted,
        seed=_seed(request),
        order=(request.lane.rank, request.priority, min(request.arrival, now), number),
        tokens=list(request.prompt),
        takes_best=request.sampling.takes_best,
        grammar=request.grammar.start() if request.grammar is not None else None,
    )


def _seed(request: GenerateRequest) -> int:
    """The request's seed, or one made of its id: a preempted request must draw again what it drew before."""
    if request.sampling.seed is not None:
        return request.sampling.seed % 2**64
    return int.from_bytes(hashlib.sha256(request.id.encode()).digest()[:8], "little")
