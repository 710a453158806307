"""Turns a chat's answer into Anthropic's, whole or streamed, for one attempt. Pure."""

import msgspec

from engines.contract import Fault, ReplicaError
from gateway.anthropic_api.events import MessageEvents
from gateway.anthropic_api.message import message_of
from gateway.chunks import Usage
from gateway.errors import Problem
from gateway.vector_answers import AnswerHead


class MessageTranslation:
    """See `gateway.translation.Translation`. `stops`: the strings that the client asked to stop at."""

    def __init__(self, head: AnswerHead, *, stops: frozenset[str], hides_thinking: bool) -> None:
        self._head = head
        self._stops = stops
        self._hides_thinking = hides_thinking
        self._events = MessageEvents(head, stops, hides_thinking=hides_thinking)

    def whole(self, body: bytes, usage: Usage | None) -> bytes:
        """A message."""
        try:
            return message_of(body, usage, self._head, self._stops, hides_thinking=self._hides_thinking)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _unreadable(error) from None

    def chunk(self, payload: bytes) -> bytes:
        """`message_start` before the first, then what each adds."""
        try:
            return self._events.chunk(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _unreadable(error) from None

    def end(self, usage: Usage | None) -> bytes:
        """`message_delta` and `message_stop`."""
        return self._events.end(usage)

    def failure(self, problem: Problem) -> None:
        """As everywhere in Anthropic's language."""


def _unreadable(error: Exception) -> ReplicaError:
    return ReplicaError(Fault.PROTOCOL, f"the engine's answer is none of a chat: {error}")
