"""Splits an answer's text into content and tool calls while it is written. Pure; the split of the input never matters.

Only what could still become a mark is held back, and white space, which next to calls is layout. What begins like a
call and is none becomes content as it was written.
"""

from collections.abc import Mapping
from typing import Any

from engines.worker.output.calls import CallSink, NoCall, Reader, take_parts
from engines.worker.output.json_scan import WHITESPACE
from engines.worker.output.parts import CallBroken, Content, Part
from engines.worker.output.tool_formats import ToolFormat, read_bare
from engines.worker.stops import StopMatcher, StopScanner


class ToolText:
    """One answer. `tools`: the parameters' schema of each tool offered; `has_broken`: a call had begun and failed."""

    def __init__(self, style: ToolFormat, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._style = style
        self._matcher = StopMatcher(style.all_marks) if style.all_marks else None
        self._sink = CallSink(tools)
        self._scanner = self._new_scanner()
        self._reader: Reader | None = None
        self._layout = ""  # white space and layout marks that are content unless a call is next to them
        self._touches_call = False  # nothing but layout has come since a call ended
        self._raw: list[str] = []  # of what is being read as a call, since the last call ended, layout before it too
        self._may_be_bare = style.reads_bare
        self.has_broken = False

    @property
    def num_complete(self) -> int:
        """Calls that have ended well or ill."""
        return self._sink.num_ended

    @property
    def num_calls(self) -> int:
        """Calls announced."""
        return self._sink.num_calls

    def feed(self, text: str) -> list[Part]:
        """What `text` brings."""
        parts: list[Part] = []
        for char in text:
            self._feed(char, parts)
        return parts

    def finish(self, *, is_cut: bool) -> list[Part]:
        """What is left at the end. `is_cut`: the model was stopped, so an unfinished call is what it is."""
        parts: list[Part] = []
        if self._reader is not None:
            if not (is_cut and self._sink.has_open):
                self._fail(parts)
            self._reader = None
        elif self._scanner is not None:
            tail = self._scanner.flush()
            is_layout = self._touches_call and any(mark.startswith(tail) for mark in self._style.layout)
            self._content("" if is_layout else tail, parts)
        if self._layout and not self._touches_call:
            parts.append(Content(self._layout))
        self._layout = ""
        return parts

    def _feed(self, char: str, parts: list[Part]) -> None:
        if self._reader is not None:
            self._read(char, parts)
            return
        if self._may_be_bare and char not in WHITESPACE:
            self._may_be_bare = False
            if char in "{[":
                self._begin(read_bare(self._sink, char), char, parts)
                return
        if self._scanner is None:
            self._content(char, parts)
            return
        self._content(self._scanner.feed(char), parts)
        mark = self._scanner.matched
        if mark is not None:
            self._scanner = self._new_scanner()
            self._marked(mark, parts)

    def _marked(self, mark: str, parts: list[Part]) -> None:
        read = self._style.marks.get(mark)
        if read is not None:
            self._begin(read(self._sink), mark, parts)
        elif self._touches_call:
            self._layout = ""
        else:
            self._layout += mark

    def _begin(self, reader: Reader, mark: str, parts: list[Part]) -> None:
        self._reader, self._raw, self._layout = reader, [self._layout, mark], ""
        try:
            next(reader)
        except NoCall:
            self._fail(parts)

    def _read(self, char: str, parts: list[Part]) -> None:
        assert self._reader is not None, "called while a call is read"
        num_before = self._sink.num_settled
        self._raw.append(char)
        rest = None
        try:
            self._reader.send(char)
        except StopIteration as stop:
            rest = str(stop.value)
        except NoCall:
            parts.extend(take_parts(self._sink))
            self._fail(parts)
            return
        parts.extend(take_parts(self._sink))
        if self._sink.num_settled > num_before:
            self._raw, self._touches_call = [], True
        if rest is not None:
            self._reader, self._raw = None, []
            for left in rest:
                self._feed(left, parts)

    def _fail(self, parts: list[Part]) -> None:
        """What was being read is no call: it becomes content."""
        raw, self._reader, self._raw = "".join(self._raw), None, []
        index = self._sink.give_up()
        if index is not None:
            self.has_broken = True
            parts.append(CallBroken(index, raw))
        elif raw.strip(WHITESPACE + ";,`") or not self._touches_call:
            self._content(raw, parts)

    def _content(self, text: str, parts: list[Part]) -> None:
        """Release text but for white space at its end, which stays until it is known what follows."""
        solid = text.rstrip(WHITESPACE)
        if solid:
            parts.append(Content(solid.lstrip(WHITESPACE) if self._touches_call else self._layout + solid))
            self._layout, self._touches_call = "", False
        self._layout += text[len(solid) :]

    def _new_scanner(self) -> StopScanner | None:
        return StopScanner(self._matcher) if self._matcher is not None else None
