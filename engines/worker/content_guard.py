"""Keeps the texts of control tokens, where a client wrote them, from becoming control tokens. Pure but for one secret.

A special text inside a message is replaced by a marker nobody can guess before the template runs. Afterwards the
prompt is cut at the markers: what stands for a marker is tokenised as plain text, everything else as the template
meant it. A message without special texts is left alone, so its tokens do not depend on any of this.
"""

import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple


class PromptPiece(NamedTuple):
    """A stretch of a rendered prompt. `special`: control-token texts in it are the template's own."""

    text: str
    special: bool


def special_pattern(special_texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches the longest special text at a place; None if the vocabulary has none."""
    texts = sorted(filter(None, special_texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None


class ContentGuard:
    """The markers of one prompt. Letters and digits only, so that a template's JSON or HTML filters keep them whole."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self._pattern = pattern
        self._secret = f"m{secrets.token_hex(16)}x"
        self._hidden: list[str] = []

    @property
    def end_marker(self) -> str:
        """Stands where the text that the model continues ends; cut away by `until_end_marker`."""
        return f"{self._secret}end"

    def hide(self, text: str) -> str:
        """`text` with each special text in it replaced by a marker."""
        return text if self._pattern is None else self._pattern.sub(self._hide_one, text)

    def hide_all(self, value: object) -> object:
        """A JSON value with every string of it, keys too, hidden."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, list):
            return [self.hide_all(item) for item in value]
        if isinstance(value, dict):
            return {self.hide(str(key)): self.hide_all(item) for key, item in value.items()}
        return value

    def until_end_marker(self, rendered: str) -> str | None:
        """The prompt up to the last end marker; None if the template dropped it."""
        head, marker, _ = rendered.rpartition(self.end_marker)
        return head if marker else None

    def pieces(self, rendered: str) -> list[PromptPiece]:
        """The rendered prompt, hidden texts restored. Concatenated they are the prompt a person would read."""
        if not self._hidden:
            return [PromptPiece(rendered, special=True)]
        parts = re.split(f"{self._secret}([0-9]+)z", rendered)
        pieces = [
            PromptPiece(self._hidden[int(part)], special=False) if index % 2 else PromptPiece(part, special=True)
            for index, part in enumerate(parts)
        ]
        return [piece for piece in pieces if piece.text]

    def _hide_one(self, match: re.Match[str]) -> str:
        self._hidden.append(match[0])
        return f"{self._secret}{len(self._hidden) - 1}z"
