"""The fake engine's vocabulary: special tokens, every byte, and common words, so that any text round-trips.

Token ids: specials first, then the 256 bytes, then word pieces. `[[say ` and `]]` are ordinary words that the fake
runner understands as a script (see `runner.py`).
"""

import re

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS, IM_START, IM_END = range(3)
FIRST_BYTE = len(SPECIALS)
FIRST_WORD = FIRST_BYTE + 256

SCRIPT_OPEN, SCRIPT_CLOSE = "[[say ", "]]"

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_NOUNS = (
    "time people way day thing world life hand part place case week company system program question work number "
    "night point home water room area money story fact month lot right study book eye job word business issue side "
    "kind head house service friend father power hour game line end member law car city name team minute idea body"
)
_REST = (
    "the of and to in is that for it was on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see could no make than first been its who now did get come made may"
)
_JOINTS = (SCRIPT_OPEN, SCRIPT_CLOSE, "system\n", "user\n", "assistant\n", ". ", ", ", "? ", "! ", "\n\n", ": ")
VOCAB_SIZE = 512


def _words() -> tuple[str, ...]:
    pieces = [*_JOINTS, *(f" {word}" for word in f"{_NOUNS} {_REST}".split()), *f"{_REST} {_NOUNS}".split()]
    return tuple(dict.fromkeys(pieces))[: VOCAB_SIZE - FIRST_WORD]


WORDS = _words()
assert len(WORDS) == VOCAB_SIZE - FIRST_WORD, "the word list does not fill the vocabulary"


class FakeModel:
    """A `TextModel` of 512 tokens with a ChatML template. Immutable, hence thread-safe."""

    vocab_size = VOCAB_SIZE

    def __init__(self, name: str = "fake", context_tokens: int = 8192) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self.chat_template: str | None = CHATML
        self.bos_text = ""  # ChatML prompts start with <|im_start|>, not with a token of their own
        self.eos_text = SPECIALS[IM_END]
        self.eos_ids = frozenset({BOS, IM_END})
        self.special_texts = frozenset(SPECIALS)
        self._ids = {word: FIRST_WORD + index for index, word in enumerate(WORDS)}
        self._pattern = re.compile("|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True)))
        self._special_pattern = re.compile("(" + "|".join(re.escape(text) for text in SPECIALS) + ")")

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids. With `special` the texts of control tokens become control tokens; without, never.

        Longest word first, bytes where no word fits. An unpaired surrogate becomes a question mark.
        """
        if not special:
            return self._encode_plain(text)
        ids: list[int] = []
        for index, part in enumerate(self._special_pattern.split(text)):
            if index % 2:
                ids.append(SPECIALS.index(part))
            else:
                ids.extend(self._encode_plain(part))
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes of one token (control tokens: empty)."""
        if not 0 <= token < VOCAB_SIZE:
            raise IndexError(f"token {token} is not in the vocabulary")
        if token < FIRST_BYTE:
            return b""
        if token < FIRST_WORD:
            return bytes((token - FIRST_BYTE,))
        return WORDS[token - FIRST_WORD].encode()

    def _encode_plain(self, text: str) -> list[int]:
        ids: list[int] = []
        start = 0
        for match in self._pattern.finditer(text):
            ids.extend(_byte_ids(text[start : match.start()]))
            ids.append(self._ids[match[0]])
            start = match.end()
        ids.extend(_byte_ids(text[start:]))
        return ids


def _byte_ids(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode(errors="replace")]
