"""Embeddings and rerank scores on llama.cpp: a context that pools each sequence's vectors into one.

Every input goes in whole, several to a call, as many as the step's tokens hold; nothing is kept between calls.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engines.core.embedding import Floats
from engines.core.plan import EngineFault, Row
from engines.gguf.batch import StepBatch
from engines.gguf.context import open_context
from engines.gguf.model import RANK_POOLING, GgufModel

_MEAN_POOLING = 1
_MIN_LENGTH = 1e-12  # of a vector; a shorter one has no direction


@dataclass(frozen=True, slots=True)
class EmbedderSettings:
    """The sizes of an embedder; raises `ValueError` for such as cannot be.

    `max_input_tokens`: the longest input, cut to the model's context. `max_batch_inputs`: inputs of one call of the
    library, 1 to 64: their tokens share the step of `max_input_tokens`.
    """

    max_input_tokens: int = 2048
    max_batch_inputs: int = 16
    threads: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.max_input_tokens <= 1 << 17:
            raise ValueError(f"an input has 1 to {1 << 17} tokens, not {self.max_input_tokens}")
        if not 1 <= self.max_batch_inputs <= 64:
            raise ValueError(f"a batch has 1 to 64 inputs, not {self.max_batch_inputs}")
        if not 1 <= self.threads <= 512:
            raise ValueError("an embedder has 1 to 512 threads")


class GgufEmbedder:
    """One llama.cpp context over `model`, as `EmbeddingModel` of engines/core/embedding.py.

    A model whose file names no pooling (one that generates) gives the mean of its tokens' vectors.
    """

    def __init__(self, model: GgufModel, settings: EmbedderSettings) -> None:
        """Open a pooling context. Raises `EngineFault` if the memory does not suffice."""
        self._library = model.library
        self._model = model  # NOTE: the weights must outlive the context
        self._pooling = model.pooling or _MEAN_POOLING
        self.name = model.name
        self.max_input_tokens = min(settings.max_input_tokens, model.context_tokens)
        self._most_inputs = min(settings.max_batch_inputs, self.max_input_tokens)
        self.can_rank = self._pooling == RANK_POOLING
        c = self._library.c
        self.dimensions: int = (
            c.llama_model_n_cls_out(model.pointer) if self.can_rank else c.llama_model_n_embd_out(model.pointer)
        )
        self.threads = settings.threads
        self._context: Any = self._open(settings.threads)
        self._memory: Any = c.llama_get_memory(self._context)
        self._batch = StepBatch(self._library, self.max_input_tokens)

    def text_tokens(self, text: str) -> list[int]:
        """A text as the model wants it, with the special tokens around it."""
        return self._model.encode_as_input(text)

    def pair_tokens(self, query: str, document: str) -> list[int]:
        """A query and a document as one input of a rerank model."""
        return self._model.encode_pair(query, document)

    def embed(self, inputs: Sequence[Sequence[int]]) -> Floats:
        """Vectors of length 1; `EmbeddingModel.embed` says the rest."""
        if self.can_rank:
            raise ValueError(f"the model {self.name} ranks documents and gives no embeddings")
        vectors = self._pooled(inputs)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all():
            raise EngineFault(f"The model {self.name} gave no numbers for an input.")
        unit: Floats = vectors / np.maximum(lengths, _MIN_LENGTH)
        return unit

    def rank(self, inputs: Sequence[Sequence[int]]) -> Floats:
        """Scores; `EmbeddingModel.rank` says the rest. Of a model with several outputs the first is the relevance."""
        if not self.can_rank:
            raise ValueError(f"the model {self.name} gives embeddings and ranks no documents")
        scores: Floats = self._pooled(inputs)[:, 0]
        return scores

    def close(self) -> None:
        """Give the context's memory back. Harmless a second time."""
        context, self._context, self._memory = self._context, None, None
        if context is not None:
            self._library.ffi.release(context)

    def __repr__(self) -> str:
        state = "closed" if self._context is None else "open"
        return f"<GgufEmbedder {state}, {self.dimensions} dimensions, inputs of at most {self.max_input_tokens} tokens>"

    def _open(self, threads: int) -> Any:
        params = self._library.c.llama_context_default_params()
        num_inputs = self._most_inputs
        # The library ends the process if a pooled input does not fit into one piece of work, or if the work's tokens
        # are no multiple of its sequences.
        num_tokens = -(-self.max_input_tokens // num_inputs) * num_inputs
        params.n_ctx = params.n_batch = params.n_ubatch = num_tokens
        params.n_seq_max = num_inputs
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = True
        params.embeddings = True
        params.pooling_type = self._pooling
        return open_context(self._model, params, num_tokens)

    def _pooled(self, inputs: Sequence[Sequence[int]]) -> Floats:
        assert self._context is not None, "the embedder is closed"
        for tokens in inputs:
            self._check(tokens)
        pooled = np.empty((len(inputs), self.dimensions), np.float32)
        for first, batch in self._batches(inputs):
            self._run(batch, pooled[first : first + len(batch)])
        return pooled

    def _check(self, tokens: Sequence[int]) -> None:
        if not 1 <= len(tokens) <= self.max_input_tokens:
            raise ValueError(f"an input has 1 to {self.max_input_tokens} tokens, not {len(tokens)}")
        if not 0 <= min(tokens) <= max(tokens) < self._model.vocab_size:
            raise ValueError(f"an input has a token outside the vocabulary of {self._model.vocab_size}")

    def _batches(self, inputs: Sequence[Sequence[int]]) -> Iterator[tuple[int, list[Sequence[int]]]]:
        """Runs of inputs that fit into one call, with the number of the first."""
        first, batch, num_tokens = 0, list[Sequence[int]](), 0
        for index, tokens in enumerate(inputs):
            if batch and (len(batch) == self._most_inputs or num_tokens + len(tokens) > self.max_input_tokens):
                yield first, batch
                first, batch, num_tokens = index, [], 0
            batch.append(tokens)
            num_tokens += len(tokens)
        if batch:
            yield first, batch

    def _run(self, batch: Sequence[Sequence[int]], target: Floats) -> None:
        library = self._library
        library.log.take_errors()
        if self._memory != library.ffi.NULL:
            library.c.llama_memory_clear(self._memory, False)  # a C function
        self._batch.fill([Row(slot, 0, tuple(tokens), len(tokens)) for slot, tokens in enumerate(batch)])
        code = library.c.llama_decode(self._context, self._batch.struct[0])
        if code:
            why = library.log.take_reason()
            raise EngineFault(f"llama.cpp failed with code {code} on a batch of inputs{why}.")
        for slot, row in enumerate(target):
            source = library.c.llama_get_embeddings_seq(self._context, slot)
            if source == library.ffi.NULL:
                raise EngineFault("llama.cpp gave no pooled vector for an input.")
            library.ffi.memmove(row, source, row.nbytes)
