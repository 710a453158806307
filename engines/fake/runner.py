"""A runner without a model: deterministic logits from simulated KV cells, and time by the step-cost model.

Logits are a function of all tokens that a slot can see, and of nothing else, so any mistake in sharing, truncation or
position changes the output. A prompt that contains `[[say TEXT]]` is answered with TEXT and an end token.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from engines.core.plan import EngineFault, Logits, Row, StepPlan
from engines.fake.cells import Cells, Ints, PagedCells, SlotCells
from engines.fake.model import FIRST_WORD, IM_END, IM_START, SCRIPT_CLOSE, SCRIPT_OPEN, VOCAB_SIZE, WORDS
from engines.step_cost import StepCost

_OPEN = FIRST_WORD + WORDS.index(SCRIPT_OPEN)
_CLOSE = FIRST_WORD + WORDS.index(SCRIPT_CLOSE)
_ASSISTANT = FIRST_WORD + WORDS.index("assistant\n")
_SPREAD = 4.0  # logits of words lie in [0, 4); chosen so that temperature 1 picks among many
_NOISE_SIZE = 1 << 16
_NOISE: npt.NDArray[np.float32] = np.random.Generator(np.random.PCG64(5)).random(
    _NOISE_SIZE + VOCAB_SIZE, dtype=np.float32
)


def _never(seconds: float) -> None:
    """Spend no time."""


class FakeRunner:
    """A `Runner` over simulated cells.

    `pages_by` None: KV by slot, told by Fork and Truncate (give the scheduler `SlotHolders`); else by block table, with
    blocks of that many tokens. `cost`: a step lasts that long, spent through `sleep` (given `time.sleep` it is real;
    by default none passes). `eos_every`: about one context in so many ends the sequence (0: none does).
    `failing_steps`: plan numbers that raise `EngineFault`; `stalls`: extra seconds by plan number.
    """

    vocab_size = VOCAB_SIZE

    def __init__(
        self,
        *,
        num_slots: int = 16,
        kv_tokens: int = 16384,
        max_step_tokens: int = 512,
        pages_by: int | None = None,
        cost: StepCost | None = None,
        sleep: Callable[[float], object] = _never,
        eos_every: int = 97,
        failing_steps: frozenset[int] = frozenset(),
        stalls: Mapping[int, float] | None = None,
        host_bytes_per_token: int = 0,
    ) -> None:
        self.num_slots = num_slots
        self.kv_tokens = kv_tokens
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_step_tokens
        self.host_bytes_per_token = host_bytes_per_token
        self.is_closed = False
        self._pages_by = pages_by
        self._cost = cost if cost is not None else StepCost()
        self._sleep = sleep
        self._eos_every = eos_every
        self._failing_steps = failing_steps
        self._stalls = dict(stalls) if stalls is not None else {}
        self._cells = self._new_cells()

    @property
    def num_host_tokens(self) -> int:
        """Tokens saved in host memory, all handles together."""
        return self._cells.host.num_tokens

    def kv_state(self) -> object:
        """All KV, device and host: equal for two runners that hold the same."""
        return self._cells.contents(), self._cells.host.contents()

    @property
    def num_used_cells(self) -> int | None:
        """Distinct cells held by slots; None when paged, where the scheduler alone knows."""
        return self._cells.num_used if isinstance(self._cells, SlotCells) else None

    def execute(self, plan: StepPlan) -> Logits:
        """Logits, (plan.num_samples, 512) float32.

        Raises `EngineFault` in the steps scripted to fail and for plans that no device could do.
        """
        self._check(plan)
        seconds = self._cost.seconds(plan.num_decode_rows, plan.num_prefill_tokens) if plan.rows else 0.0
        self._sleep(seconds + self._stalls.get(plan.number, 0))
        if plan.number in self._failing_steps:
            raise EngineFault(f"step {plan.number} was scripted to fail")
        for operation in plan.memory:
            self._cells.apply(operation)
        for row in plan.rows:
            self._cells.write(row)
        rows = [self._logits(seen) for row in plan.rows for seen in self._seen(row)]
        return np.stack(rows) if rows else np.zeros((0, VOCAB_SIZE), dtype=np.float32)

    def clear(self) -> None:
        """Forget all KV."""
        self._cells = self._new_cells()

    def close(self) -> None:
        """Refuse further steps. May be repeated."""
        self.is_closed = True

    def _seen(self, row: Row) -> Iterator[Ints]:
        """What each of the row's sampling positions sees."""
        if not row.samples:
            return
        visible = self._cells.visible(row)
        for end in range(len(visible) - row.num_samples + 1, len(visible) + 1):
            yield visible[:end]

    def _new_cells(self) -> Cells:
        if self._pages_by is None:
            return SlotCells(self.num_slots, self.kv_tokens)
        return PagedCells(self.kv_tokens, self._pages_by)

    def _check(self, plan: StepPlan) -> None:
        assert not self.is_closed, "a step after close"
        if plan.num_tokens > self.max_step_tokens:
            raise EngineFault(f"a step of {plan.num_tokens} tokens, but at most {self.max_step_tokens} fit")
        slots = [row.slot for row in plan.rows]
        if len(set(slots)) < len(slots) or not all(0 <= slot < self.num_slots for slot in slots):
            raise EngineFault(f"rows in slots {slots}")

    def _logits(self, visible: Ints) -> Logits:
        forced = scripted_token(visible.tolist()) if (visible == _OPEN).any() else None
        digest = zlib.crc32(visible.tobytes())
        if forced is None and self._eos_every and (digest >> 16) % self._eos_every == 0:
            forced = IM_END
        offset = digest % _NOISE_SIZE
        logits = _NOISE[offset : offset + VOCAB_SIZE] * np.float32(_SPREAD)
        logits[:FIRST_WORD] -= 2 * _SPREAD  # control tokens and bare bytes are not said by chance
        logits[[_OPEN, _CLOSE]] -= 2 * _SPREAD
        if forced is not None:
            logits[forced] = 8 * _SPREAD
        return logits


def scripted_token(visible: list[int]) -> int | None:
    """What the script of a prompt says next; None without a script.

    The last `[[say TEXT]]` counts. The answer starts after the last `<|im_start|>assistant` line behind it or, in a
    prompt without one, right behind the script.
    """
    if _OPEN not in visible:
        return None
    start = len(visible) - visible[::-1].index(_OPEN)
    if _CLOSE not in visible[start:]:
        return None
    close = visible.index(_CLOSE, start)
    script, rest = visible[start:close], visible[close + 1 :]
    said = len(rest)
    for index in range(len(rest) - 1, 0, -1):
        if rest[index - 1] == IM_START and rest[index] == _ASSISTANT:
            said = len(rest) - index - 1
            break
    return script[said] if said < len(script) else IM_END
