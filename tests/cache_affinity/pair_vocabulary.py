"""A vocabulary in which every cut between two words shows, and texts full of places where tokenizers cut differently."""

import random
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from cache_affinity.vocabulary import Vocabulary, spelled
from tests.cache_affinity.corpus import TEXTS

CONTROL = "<|end|>"
PARTS = (
    "a", "B", " ", "  ", "\n", "\t", "1", "23", "'", "'s", "'LL", "é", "日本", "!", "?!", "_", "-", "😀", "\u00a0", "\u3000",
    "٣", "Ⅷ", "\r", "\u200b", "\u0301", "the", " of", "0x", "\x00", "Ab", "aB", "/", "ſ", "ǅ", "123456", "'ſ", "'S", "\r\n",
    "\u2028", "क़", "ʰ", CONTROL,
)  # fmt: skip


@lru_cache(1)
def mixtures() -> tuple[str, ...]:
    """The corpus but for its longest texts, and random mixtures."""
    rng = random.Random(3)
    return (
        *(text for text in TEXTS if len(text) < 4000),
        *("".join(rng.choices(PARTS, k=rng.randrange(1, 14))) for _ in range(1500)),
    )


@lru_cache(1)
def pair_vocabulary() -> Vocabulary:
    """Every byte, and every pair of neighbours in `mixtures`, the most frequent merged first.

    A pair that lies across a cut is one token where the cut is missing: so nearly every difference shows.
    """
    seen: Counter[tuple[int, int]] = Counter()
    for text in mixtures():
        content = text.encode(errors="replace")
        seen.update(pairwise(content))
    pairs = sorted(seen, key=lambda pair: (-seen[pair], pair))
    letters = [spelled(bytes((byte,))) for byte in range(256)]
    merges = tuple((letters[left], letters[right]) for left, right in pairs)
    texts = (CONTROL, *letters, *(left + right for left, right in merges))
    return Vocabulary(pre="gpt-2", texts=texts, merges=merges, special=frozenset({0}))
