"""What the engine needs from a grammar: which tokens may come next, and a state that follows those that came.

Knows no syntax and no library; `engines/worker/grammars.py` compiles what clients ask for. A `Grammar` is immutable and
may be shared by many sequences and threads; a `GrammarState` belongs to one sequence and to one thread at a time.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.uint32]


class GrammarFault(Exception):
    """A grammar can say no longer what may come next (such as by its own bounds); the message is one sentence."""


class GrammarState(Protocol):
    """How far one sequence is in its grammar."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing more may come, so that the sequence is over."""
        ...

    def fill(self, mask: Mask) -> None:
        """Write the tokens that may come next: bit `t % 32` of word `t // 32`, for each token `t`.

        `mask`: (ceil(vocab_size / 32),) uint32, contiguous, overwritten. End tokens are allowed where the grammar may
        end. At least one token is allowed unless the state is finished. Raises `GrammarFault`.
        """
        ...

    def accept(self, token: int) -> None:
        """Go on by an allowed token. Raises `GrammarFault` if it was not allowed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens accepted, also beyond the end."""
        ...

    def allowed_prefix(self, tokens: list[int]) -> int:
        """How many of `tokens` could come next, one after the other. Changes nothing."""
        ...

    def forced(self) -> list[int]:
        """Tokens that most likely come next because the grammar leaves no choice. A guess; changes nothing."""
        ...


class Grammar(Protocol):
    """A compiled grammar."""

    def start(self) -> GrammarState:
        """A state before the first output token."""
        ...


def mask_words(vocab_size: int) -> int:
    """Words of a mask."""
    return -(-vocab_size // 32)
