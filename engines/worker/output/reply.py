"""Reads one answer of a chat model: first its reasoning, then content and tool calls. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.worker.output.parts import Content, Part, Reasoning, merged
from engines.worker.output.reasoning import ReasoningText, ThinkTags
from engines.worker.output.tool_formats import ToolFormat
from engines.worker.output.tool_text import ToolText


@dataclass(frozen=True, slots=True)
class ReplyStyle:
    """How an answer is to be read. Immutable, shared by all choices of a request.

    `tags` None: reasoning is not told from content; `is_open`: the prompt has begun it; `shows_reasoning`: it is part
    of the answer. `tool_format` None: no calls are looked for. `tools`: the parameters' schema of each tool that may be
    called; `max_calls`: the answer ends after so many.
    """

    tags: ThinkTags | None = None
    is_open: bool = False
    shows_reasoning: bool = True
    tool_format: ToolFormat | None = None
    tools: Mapping[str, Mapping[str, Any]] | None = None
    max_calls: int | None = None

    def reader(self) -> "ReplyReader | None":
        """A reader of one answer; None when all of it is content."""
        return ReplyReader(self) if self.tags is not None or self.tool_format is not None else None


class ReplyReader:
    """One answer while it is written."""

    def __init__(self, style: ReplyStyle) -> None:
        self._style = style
        self._reasoning = ReasoningText(style.tags, is_open=style.is_open) if style.tags is not None else None
        self._calls = ToolText(style.tool_format, style.tools or {}) if style.tool_format is not None else None

    @property
    def reads_reasoning(self) -> bool:
        """Whether reasoning is told from content."""
        return self._reasoning is not None

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._reasoning is not None and self._reasoning.is_reasoning

    @property
    def has_all_calls(self) -> bool:
        """Whether as many calls are complete as there may be."""
        calls, limit = self._calls, self._style.max_calls
        return calls is not None and limit is not None and calls.num_complete >= limit and not calls.has_broken

    @property
    def ends_in_calls(self) -> bool:
        """Whether the answer holds calls, and each of them is whole."""
        calls = self._calls
        return calls is not None and 0 < calls.num_calls == calls.num_complete and not calls.has_broken

    def feed(self, text: str) -> tuple[Part, ...]:
        """What `text` brings; empty while all of it is held back."""
        if not text:
            return ()
        return self._sorted([Content(text)] if self._reasoning is None else self._reasoning.feed(text))

    def finish(self, *, is_cut: bool) -> tuple[Part, ...]:
        """What is left at the end. `is_cut`: the answer was stopped by its length."""
        parts = list(self._sorted(self._reasoning.finish() if self._reasoning is not None else []))
        if self._calls is not None:
            parts += self._calls.finish(is_cut=is_cut)
        return merged(parts)

    def _sorted(self, parts: list[Part]) -> tuple[Part, ...]:
        result: list[Part] = []
        for part in parts:
            if isinstance(part, Content) and self._calls is not None:
                result += self._calls.feed(part.text)
            elif self._style.shows_reasoning or not isinstance(part, Reasoning):
                result.append(part)
        return merged(result)
