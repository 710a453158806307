"""The bodies of a chat answer: content, reasoning and tool calls in OpenAI's shapes, streamed or whole."""

import secrets
import string
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from engines.worker.answers import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Delta,
    FunctionDelta,
    MessageToolCall,
    ToolCallDelta,
    Usage,
    encode_json,
)
from engines.worker.choice import Piece
from engines.worker.logprobs import chat_logprobs
from engines.worker.output.parts import CallArguments, CallBroken, CallStart, Content, Part, Reasoning
from engines.worker.surface import AnswerHead, ChoiceWriter, whole_choices

_LETTERS = string.ascii_letters + string.digits


class ChatWriter(ChoiceWriter):
    """The bodies of one chat answer. `short_ids`: tool call ids as Mistral's templates want them."""

    def __init__(
        self, head: AnswerHead, piece_of: Callable[[int], bytes], *, wants_logprobs: bool, short_ids: bool = False
    ) -> None:
        super().__init__(head, piece_of, wants_logprobs=wants_logprobs)
        self._short_ids = short_ids

    def opening(self, num_choices: int) -> list[bytes]:
        """Each choice's role."""
        delta = Delta(role="assistant", content="")
        return [self._event([ChatChunkChoice(index, delta)]) for index in range(num_choices)]

    def chunk(self, piece: Piece, usage: Usage | None) -> bytes:
        """Text, parts, finish or all of them."""
        choice = ChatChunkChoice(piece.index, self._delta(piece))
        choice.logprobs = self._logprobs(piece)
        if piece.finish is not None:
            choice.finish_reason, choice.stop_reason = piece.finish.reason, piece.finish.stop_reason
        return self._event([choice], usage)

    def usage_chunk(self, usage: Usage) -> bytes:
        """No choices, only the usage."""
        return self._event([], usage)

    def whole(self, pieces: Sequence[Piece], num_choices: int, usage: Usage) -> bytes:
        """All choices with their whole text."""
        choices = []
        for one, finish in whole_choices(pieces, num_choices):
            logprobs = chat_logprobs(one.logprobs, self._piece_of) if self._wants_logprobs else None
            choices.append(ChatChoice(one.index, self._message(one), logprobs, finish.reason, finish.stop_reason))
        head = self._head
        return encode_json(
            ChatCompletion(head.id, "chat.completion", head.created, head.model, choices, head.fingerprint, usage)
        )

    def _delta(self, piece: Piece) -> Delta:
        """One delta of all the parts of a step: they rarely are more than one."""
        gathered = _gather(piece)
        delta = Delta()
        if gathered.content:
            delta.content = gathered.content
        if gathered.reasoning:
            delta.reasoning = delta.reasoning_content = gathered.reasoning
        calls = []
        for index, call in gathered.calls.items():
            function = FunctionDelta(arguments="".join(call.arguments))
            entry = ToolCallDelta(index, function)
            if call.name is not None:
                function.name, entry.id, entry.type = call.name, self._call_id(), "function"
            calls.append(entry)
        if calls:
            delta.tool_calls = calls
        return delta

    def _message(self, piece: Piece) -> AssistantMessage:
        """The whole message, without calls that broke: their text is content."""
        gathered = _gather(piece)
        calls = [
            MessageToolCall(self._call_id(), CalledFunction(call.name or "", "".join(call.arguments)))
            for index, call in gathered.calls.items()
            if index not in gathered.broken
        ]
        message = AssistantMessage(gathered.content if gathered.content or not calls else None)
        if gathered.reasoning:
            message.reasoning = message.reasoning_content = gathered.reasoning
            if not gathered.content:
                message.content = None
        message.tool_calls = calls or UNSET
        return message

    def _call_id(self) -> str:
        if self._short_ids:
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{uuid.uuid4().hex[:24]}"

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        return chat_logprobs(piece.logprobs, self._piece_of) if self._wants_logprobs and piece.logprobs else None

    def _event(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> bytes:
        head = self._head
        body = ChatCompletion(head.id, "chat.completion.chunk", head.created, head.model, choices, head.fingerprint)
        if usage is not None:
            body.usage = usage
        return encode_json(body)


@dataclass(slots=True)
class _Call:
    """What of a call is here: its name if it begins here."""

    name: str | None = None
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Gathered:
    """The parts of a piece by kind."""

    content: str = ""
    reasoning: str = ""
    calls: dict[int, _Call] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)


def _gather(piece: Piece) -> _Gathered:
    gathered = _Gathered(content=piece.text)
    for part in piece.parts:
        _add(gathered, part)
    return gathered


def _add(gathered: _Gathered, part: Part) -> None:
    match part:
        case Content(text):
            gathered.content += text
        case Reasoning(text):
            gathered.reasoning += text
        case CallStart(index, name):
            gathered.calls[index] = _Call(name)
        case CallArguments(index, text):
            gathered.calls.setdefault(index, _Call()).arguments.append(text)
        case CallBroken(index, raw):
            gathered.broken.add(index)
            gathered.content += raw
