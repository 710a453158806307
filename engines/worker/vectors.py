"""An embedding or rerank model behind the event loop: texts read into tokens, tokens into rows, in shared batches."""

from collections.abc import Sequence

import numpy as np

from engines.core.embedding import EmbeddingModel, Floats
from engines.worker.batcher import Batcher
from engines.worker.errors import invalid

MAX_INPUTS = 2048  # of one request; OpenAI's
_BYTES_A_TOKEN = 64  # no text with more bytes for each token of the bound is even tokenised; chosen
Inputs = list[list[int]]


class VectorSource:
    """One model's. Reading is slow, so it is called off the loop; the rest on it."""

    def __init__(self, model: EmbeddingModel, vocab_size: int) -> None:
        self.model = model
        self._vocab_size = vocab_size
        call = model.rank if model.can_rank else model.embed
        self._batcher = Batcher(call, max_batch_tokens=model.max_input_tokens)

    def __repr__(self) -> str:
        return f"<VectorSource {self._batcher!r}>"

    def read_inputs(self, asked: str | list[str | int | list[int]]) -> Inputs:
        """The texts of `input`, one or several, as tokens. Raises `ApiError` 400."""
        texts: list[str | int | list[int]] = [asked] if isinstance(asked, str) else list(asked)
        numbers = [item for item in texts if isinstance(item, int)]
        if numbers and len(numbers) != len(texts):
            raise invalid("input", "`input` must be text, token ids, or a list of one of them")
        several = [numbers] if numbers else [item for item in texts if not isinstance(item, int)]
        if not 1 <= len(several) <= MAX_INPUTS:
            raise invalid("input", f"`input` must hold 1 to {MAX_INPUTS} texts")
        return [self._checked(self._tokens(item), "input") for item in several]

    def read_pairs(self, pairs: Sequence[tuple[str, str]], param: str) -> Inputs:
        """Pairs as tokens: one input each for a model that ranks, else the first texts, then the second ones."""
        for pair in pairs:
            for text in pair:
                self._check_size(text, param)
        if self.model.can_rank:
            return [self._checked(self.model.pair_tokens(first, second), param) for first, second in pairs]
        texts = [*(first for first, _ in pairs), *(second for _, second in pairs)]
        return [self._checked(self.model.text_tokens(text), param) for text in texts]

    async def vectors(self, inputs: Inputs) -> Floats:
        """(number of inputs, dimensions). Raises `ApiError`."""
        return await self._batcher.rows(inputs)

    async def scores(self, inputs: Inputs) -> Floats:
        """One a pair of `read_pairs`: the model's own, or the cosine of two vectors. Raises `ApiError`."""
        rows = await self._batcher.rows(inputs)
        if self.model.can_rank:
            return rows
        cosines: Floats = np.einsum("ij,ij->i", rows[: len(rows) // 2], rows[len(rows) // 2 :])
        return cosines

    def close(self) -> None:
        """Give the model back, after the call at work."""
        self._batcher.close()
        self.model.close()

    def _tokens(self, item: str | list[int]) -> list[int]:
        if isinstance(item, str):
            self._check_size(item, "input")
            return self.model.text_tokens(item)
        if any(not 0 <= token < self._vocab_size for token in item):
            raise invalid("input", f"each token of `input` must be at least 0 and below {self._vocab_size}")
        return item

    def _check_size(self, text: str, param: str) -> None:
        if len(text) > self.model.max_input_tokens * _BYTES_A_TOKEN:
            raise self._too_long(param)

    def _checked(self, tokens: list[int], param: str) -> list[int]:
        if not tokens:
            raise invalid(param, f"`{param}` holds a text without tokens")
        if len(tokens) > self.model.max_input_tokens:
            raise self._too_long(param)
        return tokens

    def _too_long(self, param: str) -> Exception:
        most = self.model.max_input_tokens
        return invalid(param, f"this model reads {most} tokens at most", code="context_length_exceeded")
