"""Splits what a model wrote for itself from its answer, by the tags of its family, while it is written. Pure.

The split of the input never matters. White space next to the tags is layout and left out.
"""

from dataclasses import dataclass
from enum import Enum, auto

from engines.worker.output.json_scan import WHITESPACE
from engines.worker.output.parts import Content, Part, Reasoning
from engines.worker.stops import StopMatcher, StopScanner


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """A family's tags around its reasoning."""

    begin: str
    end: str


THINK = ThinkTags("<think>", "</think>")
FAMILIES = {
    "think": THINK,
    "think-brackets": ThinkTags("[THINK]", "[/THINK]"),
    "seed-think": ThinkTags("<seed:think>", "</seed:think>"),
}


def tags_of(template: str) -> ThinkTags | None:
    """The tags of the model with this template; None if it shows none."""
    return next((tags for tags in FAMILIES.values() if tags.begin in template or tags.end in template), None)


class _Place(Enum):
    BEGINNING = auto()
    REASONING = auto()
    BEHIND = auto()  # between the reasoning's end and the answer's first character
    ANSWER = auto()


class ReasoningText:
    """One answer. `is_open`: the prompt has begun the reasoning."""

    def __init__(self, tags: ThinkTags, *, is_open: bool) -> None:
        self._tags = tags
        self._scanner = StopScanner(StopMatcher([tags.end]))
        self._place = _Place.REASONING if is_open else _Place.BEGINNING
        self._held = ""  # at the beginning: what may become the tag; in reasoning: white space that may be its end
        self._has_reasoned = False
        self._may_repeat_tag = is_open

    @property
    def is_reasoning(self) -> bool:
        """Whether the next character belongs to the reasoning."""
        return self._place is _Place.REASONING

    def feed(self, text: str) -> list[Part]:
        """What `text` brings, answer text still as it is."""
        parts: list[Part] = []
        for index, char in enumerate(text):
            if self._place is _Place.ANSWER:
                parts.append(Content(text[index:]))
                break
            self._feed(char, parts)
        return parts

    def finish(self) -> list[Part]:
        """What is left at the end."""
        held, self._held = self._held, ""
        if self._place is _Place.BEGINNING:
            return [Content(held)] if held else []
        if self._place is not _Place.REASONING:
            return []
        rest = (held + self._scanner.flush()).rstrip(WHITESPACE)
        if not self._has_reasoned:
            rest = rest.lstrip(WHITESPACE)
        return [Reasoning(rest)] if rest else []

    def _feed(self, char: str, parts: list[Part]) -> None:
        if self._place is _Place.BEGINNING:
            self._begin(char, parts)
        elif self._place is _Place.REASONING:
            self._reason(char, parts)
        elif char not in WHITESPACE:
            self._place = _Place.ANSWER
            parts.append(Content(char))

    def _begin(self, char: str, parts: list[Part]) -> None:
        self._held += char
        start = self._held.lstrip(WHITESPACE)
        if start == self._tags.begin:
            self._held, self._place = "", _Place.REASONING
        elif not self._tags.begin.startswith(start):
            parts.append(Content(self._held))
            self._held, self._place = "", _Place.ANSWER

    def _reason(self, char: str, parts: list[Part]) -> None:
        text = self._held + self._scanner.feed(char)
        if self._scanner.matched is not None:
            self._held, self._place = "", _Place.BEHIND
            rest = text.rstrip(WHITESPACE) if self._has_reasoned else text.strip(WHITESPACE)
            parts.extend([Reasoning(rest)] if rest else [])
            return
        if not self._has_reasoned:
            text = self._without_tag(text.lstrip(WHITESPACE))
        solid = text.rstrip(WHITESPACE)
        self._held = text[len(solid) :]
        if self._may_repeat_tag and not self._has_reasoned and solid and self._tags.begin.startswith(solid):
            self._held = text
        elif solid:
            self._has_reasoned = True
            parts.append(Reasoning(solid))

    def _without_tag(self, text: str) -> str:
        """Some models write the tag although the prompt has done so."""
        if self._may_repeat_tag and text.startswith(self._tags.begin):
            self._may_repeat_tag = False
            return text[len(self._tags.begin) :].lstrip(WHITESPACE)
        return text
