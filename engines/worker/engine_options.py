"""What an engine is started with, and what follows from it. Values only."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from engines.core.eviction import EvictionPolicy
from engines.core.latency_guard import LatencySettings
from engines.hardware import host_kv_mb_per_worker, spare_memory_bytes
from engines.step_cost import StepCost
from engines.worker.kv_events import KvEventSettings

_MAX_RETAINED = 56  # chosen: each slot costs a row of logits
_MAX_DRAFTS, _MAX_STEP_DRAFTS = 8, 32  # chosen
_MAX_SLOTS = 256  # llama.cpp's


class Speculation(Enum):
    """How tokens are guessed ahead. NGRAM: by what followed the same few tokens earlier in the sequence."""

    OFF = "off"
    NGRAM = "ngram"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is started with. `path`: the model file, for engines that have one. Sizes in tokens.

    `latency`: what interactive sequences are promised. `step_log`: a file that gets a line for each step. `kv_events`:
    where to publish what becomes of the cache, None for nowhere. `threads`: at most so many; how many each kind of step
    takes is measured unless `threads_batch` is given too. `home`: the folder with what was built and measured here.
    `speculation`: None: by n-grams, but not for the fake engine, whose scripts would be guessed from their prompts.
    `max_drafts`: tokens guessed ahead for a sequence in a step. `host_kv_mb`: MiB of host memory for KV that is
    evicted; None: some of what is free, for the fake engine none. `serves_embeddings`: gguf answers for vectors too,
    beside what it generates. `checks_when_idle`: all accounting is verified whenever nothing is open.
    """

    engine: str
    path: Path | None
    name: str
    max_seqs: int
    kv_tokens: int
    max_step_tokens: int
    threads: int
    threads_batch: int | None
    block_size: int = 16
    max_waiting: int = 1024
    context_tokens: int | None = None
    home: Path | None = None
    latency: LatencySettings = LatencySettings()  # noqa: RUF009  # frozen
    step_log: Path | None = None
    kv_events: KvEventSettings | None = None
    speculation: Speculation | None = None
    max_drafts: int | None = None
    host_kv_mb: int | None = None
    eviction: EvictionPolicy = EvictionPolicy.LRU
    serves_embeddings: bool = False
    checks_when_idle: bool = False
    fake_cost: StepCost = StepCost()  # noqa: RUF009  # frozen
    fake_eos_every: int = 97

    @property
    def num_drafts(self) -> int:
        """Tokens guessed ahead for one sequence in one step."""
        if self.speculation is Speculation.OFF:
            return 0
        if self.max_drafts is not None:
            return self.max_drafts
        return 0 if self.engine == "fake" and self.speculation is None else _MAX_DRAFTS

    @property
    def num_step_drafts(self) -> int:
        """Of all sequences in one step; each costs a row of logits."""
        return min(_MAX_STEP_DRAFTS, self.max_step_tokens - self.num_slots) if self.num_drafts else 0

    @property
    def num_slots(self) -> int:
        """Sequences whose KV the device tells apart: the seats, and some for finished ones that may be hit again.

        A retained conversation is believed to have 256 tokens; a step must have room for one token of each slot.
        """
        retained = min(self.kv_tokens // 256, _MAX_RETAINED)
        return max(1, min(self.max_seqs + retained, self.max_step_tokens, _MAX_SLOTS))

    @property
    def host_kv_bytes(self) -> int:
        """Host memory for KV that is evicted, as of now where it depends on what is free."""
        megabytes = self.host_kv_mb
        if megabytes is None:
            megabytes = 0 if self.engine == "fake" else host_kv_mb_per_worker(spare_memory_bytes(), 1)
        return megabytes << 20
