"""What every answer of a surface says beside its content, in the client's language: errors, silence, headers.

The common language is OpenAI's; `languages.py` knows which paths speak another one.
"""

from typing import Protocol

from engines.contract import Headers
from gateway.errors import Problem
from gateway.sse import comment


def keep_alive() -> bytes:
    """What a silent stream says."""
    return comment("keep-alive")


class Language(Protocol):
    """Stateless. `request_id`: ours; empty where a request was refused before it had one."""

    def problem(self, problem: Problem, request_id: str) -> bytes:
        """The body of an error."""
        ...

    def failure(self, problem: Problem, request_id: str) -> bytes:
        """The same as the last event of a stream that had begun."""
        ...

    def silence(self) -> bytes:
        """What a stream says that has nothing to say."""
        ...

    def headers(self, request_id: str) -> Headers:
        """Headers of every answer beside `x-request-id`."""
        ...


class _OpenAI:
    """Of chats, and of everything that has no language of its own."""

    def problem(self, problem: Problem, request_id: str) -> bytes:  # noqa: ARG002  (the contract's signature)
        return problem.body()

    def failure(self, problem: Problem, request_id: str) -> bytes:  # noqa: ARG002
        return problem.event()

    def silence(self) -> bytes:
        return keep_alive()

    def headers(self, request_id: str) -> Headers:  # noqa: ARG002
        return []


OPENAI: Language = _OpenAI()
