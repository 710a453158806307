"""A model's byte-level BPE vocabulary run by tiktoken's engine: the tokens that its engines make, without asking one.

Only for vocabularies whose way of cutting text into words is known to give the same (`WORD_PATTERNS`); this is
tested over a corpus. Special tokens are hard borders: what lies between two is tokenised by itself and
remembered, so that a conversation's next turn costs only what is new. Pure, thread-safe.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tiktoken

# How llama.cpp cuts words, by the vocabulary's `pre` name. It applies several patterns one after the other, of which
# the later see only what lies between matches of the earlier: there text ends before a digit, hence `\s+(?=\p{N})`.
WORD_PATTERNS = {
    "smollm": r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+",
}
SEGMENT_BYTES = 8 << 20  # of text whose tokens are remembered, about; as much again and more for the tokens
_LONGEST_KEPT = 256 << 10  # characters: one document must not push out all conversations
_SHORTEST_KEPT = 16  # below, making the tokens costs no more than finding them

Cut = Callable[[str], Iterable[str]]


class UnknownVocabulary(Exception):
    """The vocabulary is of a kind whose tokens cannot be made here; the message says which."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a model's file says of its tokens.

    `texts`: of each token, bytes spelled as GPT-2 spells them but for special ones. `merges`: pairs, best first.
    `special`: ids of control tokens, which never come of text. `defined`: of tokens that always count as one.
    """

    pre: str
    texts: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    special: frozenset[int]
    defined: frozenset[int] = frozenset()


class Tokenizer:
    """Text to token ids. `cut`: how the engine cuts long texts before it tokenises them; each piece stands alone."""

    def __init__(self, vocabulary: Vocabulary, cut: Cut = lambda text: (text,)) -> None:
        """Raises `UnknownVocabulary`."""
        pattern = WORD_PATTERNS.get(vocabulary.pre)
        if pattern is None:
            raise UnknownVocabulary(f"vocabularies of the kind {vocabulary.pre!r} are not known to be equal here")
        ranks = _ranks(vocabulary)
        self._engine = tiktoken.Encoding(vocabulary.pre, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        self._ids = _ids_by_rank(vocabulary, ranks)
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


def _ranks(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Each byte and each merge's result, ranked by when it is merged. Raises `UnknownVocabulary`."""
    ranks = {bytes((byte,)): byte for byte in range(256)}
    for left, right in vocabulary.merges:
        ranks.setdefault(_bytes_of(left) + _bytes_of(right), len(ranks))
    return ranks


def _ids_by_rank(vocabulary: Vocabulary, ranks: dict[bytes, int]) -> list[int]:
    """The token id of each rank, -1 for a byte that the vocabulary lacks: the engine leaves it out, too."""
    ids = [-1] * len(ranks)
    apart = vocabulary.special | vocabulary.defined
    for token, text in enumerate(vocabulary.texts):
        if token not in apart:
            rank = ranks.get(_bytes_of(text))
            if rank is not None:
                ids[rank] = token
    if any(token < 0 for token in ids[256:]):
        raise UnknownVocabulary("the vocabulary lacks the result of one of its merges")
    return ids


@lru_cache(1)
def _spelled_bytes() -> dict[str, int]:
    """GPT-2's spelling: printable bytes stand for themselves, the others for the characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelled = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return spelled | {chr(256 + number): byte for number, byte in enumerate(rest)}


def _bytes_of(text: str) -> bytes:
    """The bytes that a spelled token stands for. Raises `UnknownVocabulary`."""
    spelled = _spelled_bytes()
    try:
        return bytes(spelled[letter] for letter in text)
    except KeyError:
        raise UnknownVocabulary(f"the token {text[:40]!r} is not spelled in bytes") from None
