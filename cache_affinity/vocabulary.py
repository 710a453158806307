"""What a model's file says of its tokens, and whether tiktoken's engine makes the same of them. Pure."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import tiktoken

from cache_affinity.word_patterns import WHOLE_WORDS


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


def ranks_of(vocabulary: Vocabulary) -> dict[bytes, int]:
    """Each byte and each merge's result, ranked by when it is merged. Raises `UnknownVocabulary`."""
    ranks = {bytes((byte,)): byte for byte in range(256)}
    for left, right in vocabulary.merges:
        whole = _bytes_of(left) + _bytes_of(right)
        if ranks.setdefault(whole, len(ranks)) != len(ranks) - 1:  # one merge after the other for all its halves: fine
            raise UnknownVocabulary("two merges far apart make the same token, which cannot be told apart here")
    return ranks


def check_merges(vocabulary: Vocabulary, ranks: dict[bytes, int]) -> None:
    """That it makes no difference whether two neighbours are merged that are a token together but no listed merge.

    tiktoken's engine merges them, others do not. Both do the same if every token that could be made of an unlisted pair
    is made of its bytes by listed ones: whatever leads to that pair in a text also does so in the token alone.
    Raises `UnknownVocabulary`.
    """
    pairs: dict[tuple[bytes, bytes], int] = {}
    for left, right in vocabulary.merges:
        pairs.setdefault((_bytes_of(left), _bytes_of(right)), len(pairs))
    for content in ranks:
        halves = ((content[:cut], content[cut:]) for cut in range(1, len(content)))
        has_unlisted = any(left in ranks and right in ranks and (left, right) not in pairs for left, right in halves)
        if has_unlisted and not _is_merged(content, pairs):
            raise UnknownVocabulary(f"the token {content[:40]!r} does not come about by its merges")


def _is_merged(content: bytes, pairs: dict[tuple[bytes, bytes], int]) -> bool:
    """Whether the listed merges, best first, make one token of these bytes."""
    parts, none = [content[at : at + 1] for at in range(len(content))], len(pairs)
    while len(parts) > 1:
        rank, at = min((pairs.get(pair, none), at) for at, pair in enumerate(pairwise(parts)))
        if rank == none:
            return False
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return True


def check_words(engine: tiktoken.Encoding, ranks: dict[bytes, int]) -> None:
    """That merges make each token, since the engine here takes a word that is a token for that token.

    A byte that no merge has keeps each from being a whole word. Raises `UnknownVocabulary`.
    """
    used = {byte for content in ranks if len(content) > 1 for byte in content}
    apart = next((bytes((byte,)) for byte in range(256) if byte not in used), None)
    if apart is None:
        raise UnknownVocabulary("its merges hold every byte: it cannot be seen whether all its tokens come of them")
    for content, rank in ranks.items():
        if len(content) > 1 and engine._encode_single_piece(content + apart) != [rank, apart[0]]:  # noqa: SLF001
            raise UnknownVocabulary(f"the token {content[:40]!r} does not come about by merges")


def ids_by_rank(vocabulary: Vocabulary, ranks: dict[bytes, int]) -> list[int]:
    """The token id of each rank, -1 for a byte that the vocabulary lacks: the engine leaves it out, too."""
    ids = [-1] * len(ranks)
    apart = vocabulary.special | vocabulary.defined
    for token, text in enumerate(vocabulary.texts):
        if token not in apart:
            rank = ranks.get(_bytes_of(text))
            if rank is not None:
                ids[rank] = token
            elif vocabulary.pre in WHOLE_WORDS:
                raise UnknownVocabulary(f"the token {text[:40]!r} is a word that no merge makes")
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


def spelled(content: bytes) -> str:
    """Bytes in GPT-2's spelling, as vocabularies have them."""
    letters = {byte: letter for letter, byte in _spelled_bytes().items()}
    return "".join(letters[byte] for byte in content)


def _bytes_of(text: str) -> bytes:
    """The bytes that a spelled token stands for. Raises `UnknownVocabulary`."""
    spelled = _spelled_bytes()
    try:
        return bytes(spelled[letter] for letter in text)
    except KeyError:
        raise UnknownVocabulary(f"the token {text[:40]!r} is not spelled in bytes") from None
