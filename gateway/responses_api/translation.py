"""Turns a chat's answer into a response, whole or streamed, for one attempt. Pure."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from engines.contract import Fault, ReplicaError
from gateway.chunks import Usage
from gateway.errors import Problem
from gateway.responses_api.events import ResponseEvents
from gateway.responses_api.ids import response_id
from gateway.responses_api.response import Asked, response_of
from gateway.responses_api.state import Answered, Keep
from gateway.vector_answers import AnswerHead


class ResponseTranslation:
    """See `gateway.translation.Translation`. `items`: the conversation, of which the last `given` came now.

    `keep`: who is told of the response once it is whole, before the client is.
    """

    def __init__(self, head: AnswerHead, *, asked: Asked, items: Sequence[Raw], given: int, keep: Keep | None) -> None:
        self._head = head
        self._asked = asked
        self._items = items
        self._given = given
        self._keep = keep
        self._events = ResponseEvents(head, asked)

    def whole(self, body: bytes, usage: Usage | None) -> bytes:
        """A response."""
        try:
            told = response_of(body, usage, self._head, self._asked)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _unreadable(error) from None
        self._is_told(told)
        return told

    def chunk(self, payload: bytes) -> bytes:
        """`response.created` and `response.in_progress` before the first, then what each adds."""
        try:
            return self._events.chunk(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _unreadable(error) from None

    def end(self, usage: Usage | None) -> bytes:
        """What ends the last item, and `response.completed` or `response.incomplete`."""
        events, told = self._events.end(usage)
        self._is_told(told)
        return events

    def failure(self, problem: Problem) -> bytes:
        """`response.failed`."""
        return self._events.failure(problem)

    def _is_told(self, told: bytes) -> None:
        if self._keep is not None:
            self._keep(Answered(response_id(self._head.request_id), self._items, self._given, told))


def _unreadable(error: Exception) -> ReplicaError:
    return ReplicaError(Fault.PROTOCOL, f"the engine's answer is none of a chat: {error}")
