"""An `EmbeddingModel` without a model: equal tokens give equal vectors, and texts that share tokens are near."""

from collections.abc import Sequence

import numpy as np

from engines.core.embedding import Floats
from engines.fake.model import VOCAB_SIZE, FakeModel

_DIMENSIONS = 64
_DIRECTIONS = np.random.Generator(np.random.PCG64(11)).standard_normal((VOCAB_SIZE, _DIMENSIONS)).astype(np.float32)
_BETWEEN = 0  # the token between the texts of a pair


class FakeEmbeddings:
    """Sums of a fixed random direction for each token. `calls`: how many inputs each call had."""

    dimensions = _DIMENSIONS
    max_input_tokens = 512

    def __init__(self, *, can_rank: bool = False) -> None:
        self.name = "fake"
        self.can_rank = can_rank
        self.calls: list[int] = []
        self.is_closed = False
        self._model = FakeModel()

    def text_tokens(self, text: str) -> list[int]:
        """A text, control tokens' texts as plain text."""
        return self._model.encode(text, special=False)

    def pair_tokens(self, query: str, document: str) -> list[int]:
        """Both texts with a token between them."""
        return [*self.text_tokens(query), _BETWEEN, *self.text_tokens(document)]

    def embed(self, inputs: Sequence[Sequence[int]]) -> Floats:
        """Unit vectors, (n, 64) float32."""
        assert not self.is_closed, "a call after close"
        self.calls.append(len(inputs))
        sums = np.stack([_DIRECTIONS[list(tokens)].sum(axis=0) for tokens in inputs])
        unit: Floats = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-6)
        return unit

    def rank(self, inputs: Sequence[Sequence[int]]) -> Floats:
        """Cosines of the texts of each pair, (n,) float32."""
        pairs = [(list(tokens), list(tokens).index(_BETWEEN)) for tokens in inputs]
        firsts = self.embed([tokens[:place] or [_BETWEEN] for tokens, place in pairs])
        seconds = self.embed([tokens[place + 1 :] or [_BETWEEN] for tokens, place in pairs])
        cosines: Floats = np.einsum("ij,ij->i", firsts, seconds)
        return cosines

    def close(self) -> None:
        """Refuse further calls. May be repeated."""
        self.is_closed = True
