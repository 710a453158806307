"""A GGUF file's vocabulary and chat template, read without llama.cpp: for whoever must make tokens and runs no model.

Reads the metadata only, every step checked against the end of the file; arrays that are not asked for are skipped.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from cache_affinity.tokens import Tokenizer
from cache_affinity.vocabulary import UnknownVocabulary, Vocabulary
from cache_affinity.word_patterns import BEGINS
from engines.gguf.long_text import cut_long_text

_STRING, _ARRAY = 8, 9
_LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_KEYS = 1 << 16
_MAX_ITEMS = 1 << 22
_CONTROL_TYPES = frozenset({2, 3})  # unknown, control
_USER_DEFINED = 4
_WANTED = frozenset({"tokens", "merges", "token_type", "pre", "model", "bos_token_id", "eos_token_id", "add_bos_token"})
_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_CONTEXT = "context_length"


class GgufText:
    """Vocabulary and template of one file, as the `TextModel` of engines/core/plan.py. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises `UnknownVocabulary` for a file that cannot be read or whose tokens cannot be made here."""
        try:
            found = _metadata(path)
        except (OSError, ValueError, struct.error, IndexError) as error:
            raise UnknownVocabulary(f"the vocabulary of {path.name} cannot be read: {error}") from error
        if found.get(f"{_PREFIX}model") != "gpt2":
            raise UnknownVocabulary(f"the vocabulary of {path.name} is no byte-level BPE")
        vocabulary = _vocabulary(found)
        self.name = path.stem
        self.vocab_size = len(vocabulary.texts)
        self.special_texts = frozenset(vocabulary.texts[token] for token in vocabulary.special) - {""}
        template = found.get(_TEMPLATE)
        self.chat_template = template if isinstance(template, str) else None
        self.adds_bos = found.get(f"{_PREFIX}add_bos_token", vocabulary.pre in BEGINS) is True
        self.bos_text = _text_of(vocabulary, found.get(f"{_PREFIX}bos_token_id"))
        self.eos_text = _text_of(vocabulary, found.get(f"{_PREFIX}eos_token_id"))
        self.eos_ids: frozenset[int] = frozenset()  # whoever only reads prompts ends nothing
        self.context_tokens = next((one for key, one in found.items() if key.endswith(_CONTEXT)), 0)
        defined = {vocabulary.texts[token] for token in vocabulary.defined}
        markers = sorted((self.special_texts | defined) - {""}, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, markers))) if markers else None
        longest = len(markers[0]) if markers else 0
        self._texts = vocabulary.texts
        self._special = vocabulary.special
        self._tokenizer = Tokenizer(vocabulary, lambda text: cut_long_text(text, pattern, longest))

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids. With `special` the texts of control tokens become control tokens; without, never."""
        return self._tokenizer.encode(text, special=special)

    def piece(self, token: int) -> bytes:
        """About the bytes of one token (control tokens: empty): never fewer than it stands for."""
        return b"" if token in self._special else self._texts[token].encode()


def _vocabulary(found: dict[str, object]) -> Vocabulary:
    texts, types, merges = (found.get(_PREFIX + key) for key in ("tokens", "token_type", "merges"))
    if not isinstance(texts, list) or not isinstance(types, list) or not isinstance(merges, list):
        raise UnknownVocabulary("the file lacks tokens, their types or merges")
    pairs = [merge.split(" ") for merge in merges]
    if any(len(pair) != 2 for pair in pairs) or len(types) != len(texts):
        raise UnknownVocabulary("its merges are no pairs, or its types are not those of its tokens")
    return Vocabulary(
        pre=str(found.get(f"{_PREFIX}pre")),
        texts=tuple(texts),
        merges=tuple((left, right) for left, right in pairs),
        special=frozenset(token for token, kind in enumerate(types) if kind in _CONTROL_TYPES),
        defined=frozenset(token for token, kind in enumerate(types) if kind == _USER_DEFINED),
    )


def _text_of(vocabulary: Vocabulary, token: object) -> str:
    return vocabulary.texts[token] if isinstance(token, int) and 0 <= token < len(vocabulary.texts) else ""


def _metadata(path: Path) -> dict[str, object]:
    """The entries that are wanted. Raises `ValueError` and what reading past the end raises."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        magic, version, _, num_keys = struct.unpack_from("<4sIQQ", content, 0)
        if magic != b"GGUF" or version not in {2, 3} or num_keys > _MAX_KEYS:
            raise ValueError("it is no GGUF file")
        return dict(_entries(content, 24, num_keys))


def _entries(content: mmap.mmap, at: int, num_keys: int) -> Iterator[tuple[str, object]]:
    for _ in range(num_keys):
        key, at = _string(content, at)
        kind = struct.unpack_from("<I", content, at)[0]
        is_wanted = key == _TEMPLATE or key.removeprefix(_PREFIX) in _WANTED or key.endswith(f".{_CONTEXT}")
        if kind == _ARRAY:
            value, at = _array(content, at + 4, is_wanted=is_wanted)
        else:
            value, at = _scalar(content, at + 4, kind)
        if is_wanted:
            yield key, value


def _array(content: mmap.mmap, at: int, *, is_wanted: bool) -> tuple[object, int]:
    kind, length = struct.unpack_from("<IQ", content, at)
    at += 12
    if length > _MAX_ITEMS:
        raise ValueError("one of its lists is too long")
    if kind != _STRING:
        form = struct.Struct(f"<{length}{_letter(kind)}")
        if at + form.size > len(content):
            raise ValueError("it is cut off")
        return (list(form.unpack_from(content, at)) if is_wanted else None), at + form.size
    items: list[str] = []
    for _ in range(length):
        item, at = _string(content, at)
        if is_wanted:
            items.append(item)
    return items, at


def _scalar(content: mmap.mmap, at: int, kind: int) -> tuple[object, int]:
    if kind == _STRING:
        return _string(content, at)
    form = struct.Struct("<" + _letter(kind))
    return form.unpack_from(content, at)[0], at + form.size


def _letter(kind: int) -> str:
    letter = _LETTERS.get(kind)
    if letter is None:
        raise ValueError("one of its entries is of an unknown kind")
    return letter


def _string(content: mmap.mmap, at: int) -> tuple[str, int]:
    end = at + 8 + int(struct.unpack_from("<Q", content, at)[0])
    if end > len(content):
        raise ValueError("it is cut off")
    return content[at + 8 : end].decode(errors="replace"), end
