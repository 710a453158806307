"""A chat's chunks, made the events of a response's stream: one item after another, each begun, told and ended. Pure.

Texts and arguments keep the engine's own bytes: a JSON string is the same in both languages.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.chunks import Usage
from gateway.errors import Problem
from gateway.responses_api import response as objects
from gateway.responses_api.ids import item_id
from gateway.responses_api.items import encode
from gateway.responses_api.open_item import MESSAGE, REASONING, REFUSAL, TEXT, THOUGHT, OpenItem, PartKind
from gateway.responses_api.response import COMPLETED, INCOMPLETE, Asked, Logprobs, as_text
from gateway.vector_answers import AnswerHead

MAX_TOLD_BYTES = 64 << 20  # as of an answer that is not streamed: all of it is told again at the end
_NOTHING = (b"", b'""', b"null")


class _Function(Struct):
    name: str | None = None
    arguments: Raw = Raw()


class _Call(Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: Raw = Raw()
    reasoning_content: Raw = Raw()
    reasoning: Raw = Raw()
    refusal: Raw = Raw()
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ResponseEvents:
    """One stream. Its methods return whole events and raise `msgspec.MsgspecError` for what is no chat's chunk."""

    def __init__(self, head: AnswerHead, asked: Asked) -> None:
        self._head = head
        self._asked = asked
        self._number = 0  # of the next event
        self._has_begun = False
        self._output: list[dict[str, Any]] = []  # items that are told
        self._open: OpenItem | None = None
        self._calls: set[int] = set()
        self._finish_reason: str | None = None
        self._told_bytes = 0

    def chunk(self, payload: bytes) -> bytes:
        """What a chunk adds."""
        out = self._begin()
        for choice in _decode(payload).choices or ():
            if choice.index != 0:
                continue
            if choice.delta is not None:
                self._tell(choice.delta, choice.logprobs, out)
            if choice.finish_reason is not None:
                self._finish_reason = choice.finish_reason
        return b"".join(out)

    def end(self, usage: Usage | None) -> tuple[bytes, bytes]:
        """The last events, and the response as they tell it."""
        out = self._begin()
        if self._open is None and not self._output:
            self._item(OpenItem(MESSAGE, item_id("msg", self._head.request_id, 0), 0), out)
            self._part(TEXT, out)
        status = objects.status_of(self._finish_reason)
        self._close(status, out)
        whole = encode(objects.ended(self._head, self._asked, self._output, self._finish_reason, usage))
        out.append(self._event(f"response.{status}", {"response": Raw(whole)}))
        return b"".join(out), whole

    def failure(self, problem: Problem) -> bytes:
        """The last event of a stream that broke off."""
        output = [*self._output, *([] if self._open is None else [self._open.told(INCOMPLETE)])]
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        error = {"code": code, "message": problem.message, "reason": problem.code}
        failed = objects.response(self._head, self._asked, "failed", output, error=error)
        return self._event("response.failed", {"response": failed})

    def _begin(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        begun = Raw(encode(objects.response(self._head, self._asked, "in_progress", [])))
        return [self._event(f"response.{word}", {"response": begun}) for word in ("created", "in_progress")]

    def _tell(self, delta: _Delta, logprobs: Logprobs | None, out: list[bytes]) -> None:
        thought = delta.reasoning_content if bytes(delta.reasoning_content) not in _NOTHING else delta.reasoning
        if bytes(thought) not in _NOTHING:
            self._say(REASONING, THOUGHT, thought, [], out)
        if bytes(delta.content) not in _NOTHING:
            found = (logprobs.content or []) if self._asked.wants_logprobs and logprobs is not None else []
            self._say(MESSAGE, TEXT, delta.content, found, out)
        if bytes(delta.refusal) not in _NOTHING:
            self._say(MESSAGE, REFUSAL, delta.refusal, [], out)
        for call in delta.tool_calls or ():
            self._call(call, out)

    def _say(self, kind: str, part: PartKind, text: Raw, logprobs: list[Raw], out: list[bytes]) -> None:
        item = self._open
        if item is None or item.kind != kind:
            place = len(self._output) + (item is not None)
            short = "rs" if kind == REASONING else "msg"
            item = self._item(OpenItem(kind, item_id(short, self._head.request_id, place), place), out)
        if item.part is not part:
            self._part(part, out)
        out.append(self._delta(item, text, logprobs))

    def _call(self, call: _Call, out: list[bytes]) -> None:
        function = call.function or _Function()
        item = self._open
        if call.index not in self._calls:
            if function.name is None:
                raise msgspec.ValidationError("a tool call that begins without a name")
            place = len(self._output) + (item is not None)
            call_id = call.id or item_id("call", self._head.request_id, len(self._calls))
            self._calls.add(call.index)
            opened = OpenItem.call(
                item_id("fc", self._head.request_id, place), place, call_id, function.name, call.index
            )
            item = self._item(opened, out)
        if bytes(function.arguments) in _NOTHING:
            return
        if item is None or item.call_index != call.index:
            raise msgspec.ValidationError("a tool call goes on that another item has ended")
        out.append(self._delta(item, as_text(function.arguments), []))

    def _delta(self, item: OpenItem, text: Raw, logprobs: list[Raw]) -> bytes:
        said = bytes(text)
        if not said.startswith(b'"'):
            raise msgspec.ValidationError("a text that is none")
        self._told_bytes += len(said)
        if self._told_bytes > MAX_TOLD_BYTES:
            raise msgspec.ValidationError(f"it passed {MAX_TOLD_BYTES} bytes")
        number = self._number
        self._number = number + 1
        return item.delta(number, said, logprobs)

    def _item(self, item: OpenItem, out: list[bytes]) -> OpenItem:
        """The item before is ended, this one begun."""
        self._close(COMPLETED, out)
        self._open = item
        begun = {"output_index": item.place, "item": item.begun()}
        out.append(self._event("response.output_item.added", begun))
        return item

    def _part(self, kind: PartKind, out: list[bytes]) -> None:
        assert self._open is not None, "parts are of items"
        self._close_part(self._open, out)
        out.append(self._event("response.content_part.added", self._open.begin_part(kind)))

    def _close_part(self, item: OpenItem, out: list[bytes]) -> None:
        for name, members in item.end_part():
            out.append(self._event(name, members))

    def _close(self, status: str, out: list[bytes]) -> None:
        item = self._open
        if item is None:
            return
        self._close_part(item, out)
        told = item.told(status)
        out.append(self._event("response.output_item.done", {"output_index": item.place, "item": told}))
        self._output.append(told)
        self._open = None

    def _event(self, kind: str, members: dict[str, Any]) -> bytes:
        number = self._number
        self._number = number + 1
        told = encode({"type": kind, "sequence_number": number, **members})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), told)
