"""An embedding or rerank model behind the event loop: texts read into tokens, tokens into rows, in shared batches."""

from collections.abc import Sequence

import numpy as np

from engines.core.embedding import EmbeddingModel, Floats
from engines.worker.batcher import Batcher
from engines.worker.errors import ApiError, invalid
from engines.worker.prompts import split_prompts

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
        several = split_prompts(asked, "input")
        if not 1 <= len(several) <= MAX_INPUTS:
            raise invalid("input", f"`input` must hold 1 to {MAX_INPUTS} texts")
        return [self._checked(self._tokens(item), "input") for item in several]

    def read_pairs(self, pairs: Sequence[tuple[str, str]], fields: tuple[str, str]) -> Inputs:
        """Pairs as tokens: one input each for a model that ranks, else the first texts, then the second ones.

        `fields`: those of the first and of the second texts. Raises `ApiError` 400 naming the one at fault; a pair that
        is too long only together counts as its second text's fault.
        """
        for pair in pairs:
            for text, field in zip(pair, fields, strict=True):
                self._check_size(text, field)
        if self.model.can_rank:
            return [self._checked(self.model.pair_tokens(*pair), fields[1]) for pair in pairs]
        inputs: Inputs = []
        for side, field in enumerate(fields):
            texts = [pair[side] for pair in pairs]
            read = {text: self._checked(self.model.text_tokens(text), field) for text in dict.fromkeys(texts)}
            inputs += [read[text] for text in texts]
        return inputs

    async def vectors(self, inputs: Inputs) -> Floats:
        """(number of inputs, dimensions). Raises `ApiError`."""
        return await self._batcher.rows(inputs)

    async def scores(self, inputs: Inputs) -> Floats:
        """One a pair of `read_pairs`: the model's own, or the cosine of two vectors. Raises `ApiError`."""
        if self.model.can_rank:
            return await self._batcher.rows(inputs)
        firsts, seconds = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]
        if all(tokens is firsts[0] for tokens in firsts):  # one text against all, embedded once
            firsts = firsts[:1]
        rows = await self._batcher.rows([*firsts, *seconds])
        cosines: Floats = np.einsum("ij,ij->i", rows[: len(firsts)], rows[len(firsts) :])
        return cosines

    def stop(self) -> None:
        """End what is open with an error, and what comes after; the worker stops."""
        self._batcher.stop()

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

    def _too_long(self, param: str) -> ApiError:
        most = self.model.max_input_tokens
        return invalid(param, f"this model reads {most} tokens at most", code="context_length_exceeded")
