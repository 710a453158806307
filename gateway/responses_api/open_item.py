"""One item of a stream while it is told: its parts, the pieces of the part that grows, and what is said at its end."""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Raw

from gateway.responses_api.items import encode
from gateway.responses_api.response import (
    call_item,
    message_item,
    reasoning_item,
    refusal_part,
    text_part,
    thought_part,
)

MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"


class PartKind(NamedTuple):
    """`event`: how its own events begin. `member`: what the last of them calls its text."""

    event: str
    member: str
    make: Callable[[Any, list[Raw]], dict[str, Any]]
    has_logprobs: bool = False


TEXT = PartKind("response.output_text", "text", text_part, has_logprobs=True)
REFUSAL = PartKind("response.refusal", "refusal", lambda text, _: refusal_part(text))
THOUGHT = PartKind("response.reasoning_text", "text", lambda text, _: thought_part(text))
_ARGUMENTS = "response.function_call_arguments"


class OpenItem:
    """Mutable. `place`: in the output. `part`: what kind grows now; None of a call, and before the first."""

    def __init__(self, kind: str, item: str, place: int) -> None:
        self.kind = kind
        self.place = place
        self.part: PartKind | None = None
        self.call_index: int | None = None
        self._id = item
        self._call_id = self._name = ""
        self._parts: list[dict[str, Any]] = []  # those that are told
        self._pieces: list[bytes] = []
        self._logprobs: list[Raw] = []
        self._delta_head = self._delta_members = b""

    @classmethod
    def call(cls, item: str, place: int, call_id: str, name: str, index: int) -> "OpenItem":
        """A call. `index`: which of its answer's calls it is to the engine."""
        made = cls(CALL, item, place)
        made._call_id, made._name, made.call_index = call_id, name, index
        made._deltas_of(_ARGUMENTS, b"")
        return made

    def begun(self) -> dict[str, Any]:
        """The item with nothing in it."""
        return self._told("in_progress", [], "")

    def told(self, status: str) -> dict[str, Any]:
        """The item as far as it is told."""
        growing = [] if self.part is None else [self.part.make(self._text(), self._logprobs)]
        return self._told(status, [*self._parts, *growing], self._text())

    def begin_part(self, kind: PartKind) -> dict[str, Any]:
        """Another part; what its first event says."""
        self.part = kind
        place = b'"content_index":%d,' % len(self._parts)
        self._deltas_of(kind.event, place)
        return {**self._where(), "content_index": len(self._parts), "part": kind.make("", [])}

    def end_part(self) -> list[tuple[str, dict[str, Any]]]:
        """The part that grew is told; (kind, members) of its last events. None of an item that has none."""
        text = self._text()
        if self.kind == CALL:
            return [(f"{_ARGUMENTS}.done", {**self._where(), "name": self._name, "arguments": text})]
        if self.part is None:
            return []
        where = {**self._where(), "content_index": len(self._parts)}
        made = self.part.make(text, self._logprobs)
        logprobs = {"logprobs": self._logprobs} if self.part.has_logprobs else {}
        last = (f"{self.part.event}.done", {**where, self.part.member: text, **logprobs})
        self._parts.append(made)
        self.part, self._pieces, self._logprobs = None, [], []
        return [last, ("response.content_part.done", {**where, "part": made})]

    def delta(self, number: int, said: bytes, logprobs: list[Raw]) -> bytes:
        """The event of one piece, a JSON string."""
        self._pieces.append(said[1:-1])
        more = b""
        if self.part is TEXT:
            more = b',"logprobs":[]'
            if logprobs:
                self._logprobs += logprobs
                more = b',"logprobs":' + encode(logprobs)
        return b'%b%d,%b"delta":%b%b}\n\n' % (self._delta_head, number, self._delta_members, said, more)

    def _deltas_of(self, event: str, place: bytes) -> None:
        """What all deltas of a part have in common is made once."""
        kind = f"{event}.delta".encode()
        self._delta_head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind, kind)
        self._delta_members = b'"item_id":"%b","output_index":%d,%b' % (self._id.encode(), self.place, place)

    def _where(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self.place}

    def _text(self) -> Raw:
        return Raw(b'"%b"' % b"".join(self._pieces))

    def _told(self, status: str, parts: list[dict[str, Any]], arguments: Any) -> dict[str, Any]:
        if self.kind == CALL:
            return call_item(self._id, status, self._call_id, self._name, arguments)
        return (reasoning_item if self.kind == REASONING else message_item)(self._id, status, parts)
