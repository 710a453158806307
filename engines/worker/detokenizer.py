"""Token bytes to text, piece by piece: holds back characters whose bytes are not all there yet. Pure."""

import codecs
from collections.abc import Iterable


class Detokenizer:
    """One growing text. Bytes that can never become UTF-8 turn into U+FFFD, as when decoding the whole at once."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._has_rest = False  # of an incomplete character

    def feed(self, pieces: Iterable[bytes]) -> str:
        """The text completed by these tokens; empty while a character is incomplete."""
        new = b"".join(pieces)
        if not self._has_rest and new.isascii():
            return new.decode("ascii")
        text = self._decoder.decode(new)
        self._has_rest = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """The incomplete rest as U+FFFD, when no more tokens come. Empty a second time."""
        self._has_rest = False
        return self._decoder.decode(b"", final=True)
