"""How one answer is told to a client whose language is not the engine's: the contract of whoever translates. Pure.

A request in another language becomes a chat at the edge (`request.py`); its answer is turned back on its way out, by
relays that hold a `Translation`. A chat itself has none.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.chunks import Usage
from gateway.errors import Problem
from gateway.vector_answers import AnswerHead


class Translation(Protocol):
    """One attempt's answer, either whole or streamed. Every method raises `ReplicaError` (PROTOCOL) for no answer."""

    def whole(self, body: bytes, usage: Usage | None) -> bytes:
        """The client's body for an engine's whole answer, which `chunks.read_answer` took for one with this usage."""
        ...

    def chunk(self, payload: bytes) -> bytes:
        """Whole events for one chunk of an engine's stream, in order; empty where it has nothing to say."""
        ...

    def end(self, usage: Usage | None) -> bytes:
        """The last events of a stream that is complete. `usage`: as the engine reported it, None if it did not."""
        ...

    def failure(self, problem: Problem) -> bytes | None:
        """The last event of a stream that had content and broke off; None: as the client's language has it."""
        ...


Translate = Callable[[AnswerHead], Translation]
