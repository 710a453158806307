"""What a response's stream says that broke off before anything was told of the response itself."""

import msgspec

from engines.contract import Headers
from gateway.errors import Problem
from gateway.language import OPENAI, Language

_encode = msgspec.json.Encoder().encode


class _Responses:
    """OpenAI's language but for the last event: it has a type and a number, as all events of such a stream."""

    def problem(self, problem: Problem, request_id: str) -> bytes:
        return OPENAI.problem(problem, request_id)

    def failure(self, problem: Problem, request_id: str) -> bytes:  # noqa: ARG002  (the contract's signature)
        error = {"code": problem.code, "message": problem.message, "param": problem.param}
        # `error` is what makes OpenAI's own clients raise it.
        told = {"type": "error", "sequence_number": 0, **error, "error": {"type": problem.type, **error}}
        return b"event: error\ndata: %b\n\n" % _encode(told)

    def silence(self) -> bytes:
        return OPENAI.silence()

    def headers(self, request_id: str) -> Headers:
        return OPENAI.headers(request_id)


RESPONSES_LANGUAGE: Language = _Responses()
