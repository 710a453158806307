"""A chat's chunks, made the events of Anthropic's stream: one block after another, each begun, told and ended. Pure.

Texts and arguments keep the engine's own bytes: a JSON string is the same in both languages.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.anthropic_api.ending import Finish, begun_usage, stop_of, tool_id, usage_of
from gateway.anthropic_api.message import opening
from gateway.chunks import Usage
from gateway.vector_answers import AnswerHead

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


class _Choice(Finish, kw_only=True):
    index: int = 0
    delta: _Delta | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode
_MEMBERS = {"text_delta": b"text", "thinking_delta": b"thinking", "input_json_delta": b"partial_json"}
_TEXT: dict[str, Any] = {"type": "text", "text": ""}
_THINKING: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}


class MessageEvents:
    """One stream. Its methods return whole events and raise `msgspec.MsgspecError` for what is no chat's chunk."""

    def __init__(self, head: AnswerHead, stops: frozenset[str], *, hides_thinking: bool) -> None:
        self._head = head
        self._stops = stops
        self._hides_thinking = hides_thinking
        self._has_begun = False
        self._num_blocks = 0
        self._open: str | int | None = None  # the block being told: a kind of delta, or the index of a call
        self._calls: set[int] = set()
        self._finish = Finish()
        self._has_refused = False
        self._text_bytes = 0

    def chunk(self, payload: bytes) -> bytes:
        """What a chunk adds."""
        out = self._begin()
        for choice in _decode(payload).choices or ():
            if choice.index != 0:
                continue
            if choice.delta is not None:
                self._tell(choice.delta, out)
            if choice.finish_reason is not None:
                self._finish = choice
        return b"".join(out)

    def end(self, usage: Usage | None) -> bytes:
        """The last events."""
        out = self._begin()
        self._close(out)
        stop_reason, stop_sequence = stop_of(
            self._finish, self._stops, has_tools=bool(self._calls), has_refused=self._has_refused
        )
        told = usage_of(usage, self._head.estimated_tokens, self._text_bytes)
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        out.append(_event("message_delta", {"delta": delta, "usage": told}))
        out.append(_event("message_stop", {}))
        return b"".join(out)

    def _begin(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        ending = {"stop_reason": None, "stop_sequence": None, "usage": begun_usage(self._head.estimated_tokens)}
        return [_event("message_start", {"message": {**opening(self._head), "content": [], **ending}})]

    def _tell(self, delta: _Delta, out: list[bytes]) -> None:
        thought = delta.reasoning_content if bytes(delta.reasoning_content) not in _NOTHING else delta.reasoning
        if bytes(thought) not in _NOTHING and not self._hides_thinking:
            self._say("thinking_delta", _THINKING, thought, out)
        if bytes(delta.content) not in _NOTHING:
            self._say("text_delta", _TEXT, delta.content, out)
        if bytes(delta.refusal) not in _NOTHING:
            self._has_refused = True
            self._say("text_delta", _TEXT, delta.refusal, out)
        for call in delta.tool_calls or ():
            self._call(call, out)

    def _say(self, kind: str, block: dict[str, Any], text: Raw, out: list[bytes]) -> None:
        if self._open != kind:
            self._start(kind, block, out)
        out.append(self._delta(kind, text))

    def _call(self, call: _Call, out: list[bytes]) -> None:
        function = call.function or _Function()
        if call.index not in self._calls:
            if function.name is None:
                raise msgspec.ValidationError("a tool call that begins without a name")
            id_ = call.id or tool_id(self._head.request_id, len(self._calls))
            self._calls.add(call.index)
            self._start(call.index, {"type": "tool_use", "id": id_, "name": function.name, "input": {}}, out)
        arguments = bytes(function.arguments)
        if arguments in _NOTHING:
            return
        if self._open != call.index:
            raise msgspec.ValidationError("a tool call goes on that another block has ended")
        is_text = arguments.startswith(b'"')
        out.append(self._delta("input_json_delta", function.arguments if is_text else Raw(_encode(arguments.decode()))))

    def _delta(self, kind: str, text: Raw) -> bytes:
        said = bytes(text)
        if not said.startswith(b'"'):
            raise msgspec.ValidationError("a text that is none")
        self._text_bytes += len(said) - 2
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":%b}}\n\n' % (self._num_blocks - 1, kind.encode(), _MEMBERS[kind], said)
        )

    def _start(self, kind: str | int, block: dict[str, Any], out: list[bytes]) -> None:
        self._close(out)
        self._open = kind
        out.append(_event("content_block_start", {"index": self._num_blocks, "content_block": block}))
        self._num_blocks += 1

    def _close(self, out: list[bytes]) -> None:
        if self._open is not None:
            out.append(_event("content_block_stop", {"index": self._num_blocks - 1}))
            self._open = None


def _event(kind: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **members}))
