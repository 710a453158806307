"""One request inside a block replica: how much of it is computed, and which blocks it holds."""

from collections.abc import Sequence
from typing import Any

OWN_NAMES = 1 << 62  # names of blocks that hold an answer begin here: no prompt block has one
_NAMES_EACH = 1 << 14  # of one request


class BlockSequence:
    """`length`: tokens known, prompt and output so far. `ticket`: the caller's own.

    `names`: of its full blocks, as far as it is long. `held`: of those, the leading ones it holds by name; behind them
    it holds `num_nameless` blocks. `decoded_from`: (decoded steps of the replica, output) when it began to decode.
    `cached_tokens`: None until it was seated for the first time.
    """

    __slots__ = (
        "awaited", "cached_tokens", "computed", "decoded_from", "held", "is_decoding", "is_running", "last_at",
        "length", "names", "num_nameless", "num_output", "number", "prompt_tokens", "seating", "ticket", "wanted",
    )  # fmt: skip

    def __init__(self, ticket: Any, number: int, names: Sequence[int], prompt_tokens: int, wanted: int) -> None:
        self.ticket = ticket
        self.number = number
        self.names = list(names)
        self.prompt_tokens = self.length = prompt_tokens
        self.wanted = wanted
        self.num_output = 0
        self.computed = 0
        self.held = self.num_nameless = 0
        self.cached_tokens: int | None = None
        self.awaited: int | None = None
        self.decoded_from = (0, 0)
        self.is_running = self.is_decoding = False
        self.last_at: float | None = None  # of its last token, while it waits to go on after a preemption
        self.seating = 0  # how often it was seated

    def __repr__(self) -> str:
        return f"<BlockSequence {self.number} {self.computed}/{self.length} output={self.num_output}/{self.wanted}>"

    @property
    def num_left(self) -> int:
        """Tokens to compute before the next one is made."""
        return self.length - self.computed

    def extend_names(self, num_full: int) -> None:
        """Names for blocks that its answer has filled, unlike any other."""
        for index in range(len(self.names), num_full):
            self.names.append(OWN_NAMES + self.number * _NAMES_EACH + index % _NAMES_EACH)
