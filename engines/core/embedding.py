"""What serves embeddings and rerank scores. No device, no HTTP here."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class EmbeddingModel(Protocol):
    """A loaded embedding or rerank model. Tokenising is thread-safe; `embed` and `rank` are for one thread at a time.

    `dimensions`: of a vector. `max_input_tokens`: the longest input, special tokens included. `can_rank`: whether the
    model scores pairs (then it gives no embeddings) or embeds texts.
    """

    name: str
    dimensions: int
    max_input_tokens: int
    can_rank: bool

    def text_tokens(self, text: str) -> list[int]:
        """A text as the model wants it, with the special tokens around it."""
        ...

    def pair_tokens(self, query: str, document: str) -> list[int]:
        """A query and a document as one input of a rerank model."""
        ...

    def embed(self, inputs: Sequence[Sequence[int]]) -> Floats:
        """(number of inputs, dimensions) float32, each row of length 1, in the order of the inputs.

        Raises `ValueError` for an input that is empty, too long or has unknown tokens, and for a model that ranks;
        `EngineFault` if the device failed, after which it may be called again.
        """
        ...

    def rank(self, inputs: Sequence[Sequence[int]]) -> Floats:
        """(number of inputs,) float32: the model's own scores, the higher the more relevant. Raises as `embed`."""
        ...

    def close(self) -> None:
        """Give the device back. Harmless a second time."""
        ...
