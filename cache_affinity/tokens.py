"""A model's byte-level BPE vocabulary run by tiktoken's engine: the tokens that its engines make, without asking one.

Only for vocabularies whose way of cutting text into words is known to give the same (`WORD_PATTERNS`); this is
tested over a corpus. Special tokens are hard borders: what lies between two is tokenised by itself and
remembered, so that a conversation's next turn costs only what is new. Pure, thread-safe.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import tiktoken

from cache_affinity.vocabulary import UnknownVocabulary, Vocabulary, check_merges, check_words, ids_by_rank, ranks_of
from cache_affinity.word_patterns import WHOLE_WORDS, WORD_PATTERNS

SEGMENT_BYTES = 8 << 20  # of text whose tokens are remembered, about; as much again and more for the tokens
_LONGEST_KEPT = 256 << 10  # characters: one document must not push out all conversations
_SHORTEST_KEPT = 16  # below, making the tokens costs no more than finding them

Cut = Callable[[str], Iterable[str]]


class Tokenizer:
    """Text to token ids. `cut`: how the engine cuts long texts before it tokenises them; each piece stands alone."""

    def __init__(self, vocabulary: Vocabulary, cut: Cut = lambda text: (text,)) -> None:
        """Raises `UnknownVocabulary`."""
        pattern = WORD_PATTERNS.get(vocabulary.pre)
        if pattern is None:
            raise UnknownVocabulary(f"vocabularies of the kind {vocabulary.pre!r} are not known to be equal here")
        ranks = ranks_of(vocabulary)
        self._engine = tiktoken.Encoding(vocabulary.pre, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        self._ids = ids_by_rank(vocabulary, ranks)
        check_merges(vocabulary, ranks)
        if vocabulary.pre not in WHOLE_WORDS:
            check_words(self._engine, ranks)
        self._cut = cut
        self._control = {vocabulary.texts[token]: token for token in vocabulary.special}
        self._defined = {vocabulary.texts[token]: token for token in vocabulary.defined}
        self._always = _pattern(self._defined)
        self._any = _pattern(self._control | self._defined)
        self._kept: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._kept_chars = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Tokenizer {self._engine.name} {len(self._kept)} segments, {self._kept_chars} characters>"

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids. With `special` the texts of control tokens become them; without, never."""
        ids: list[int] = []
        pattern, known = (self._any, self._control | self._defined) if special else (self._always, self._defined)
        for piece in self._cut(text):
            if pattern is None:
                ids += self._segment(piece)
                continue
            for number, part in enumerate(pattern.split(piece)):
                if number % 2:
                    ids.append(known[part])
                elif part:
                    ids += self._segment(part)
        return ids

    def _segment(self, text: str) -> Sequence[int]:
        """Tokens of text without special ones, remembered if it is long enough to be worth it."""
        if not _SHORTEST_KEPT <= len(text) <= _LONGEST_KEPT:
            return self._made(text)
        with self._lock:
            found = self._kept.get(text)
            if found is not None:
                self._kept.move_to_end(text)
                return found
        made = self._made(text)
        with self._lock:
            if text not in self._kept:
                self._kept[text] = made
                self._kept_chars += len(text)
            while self._kept_chars > SEGMENT_BYTES:
                self._kept_chars -= len(self._kept.popitem(last=False)[0])
        return made

    def _made(self, text: str) -> tuple[int, ...]:
        ids = self._ids
        plain = text.encode(errors="replace").decode()  # half surrogate pairs become question marks, as in the engine
        return tuple(token for rank in self._engine.encode_ordinary(plain) if (token := ids[rank]) >= 0)


def _pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    found = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, found)) + ")") if found else None
