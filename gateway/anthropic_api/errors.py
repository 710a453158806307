"""Errors as Anthropic has them, for whoever asked on `/v1/messages`; and what a silent stream says there.

Which limit refused (`code`) and which field is wrong (`param`) stand beside the type: its clients keep what they do
not know.
"""

import msgspec

from engines.contract import Headers
from gateway.errors import Problem
from gateway.language import Language

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",  # Anthropic's own status for it is 529; the status stays ours
    504: "timeout_error",
}
NO_THREADS = "thread_unsupported_request"  # of its `details`: a client's tool runner then sends the whole conversation
_encode = msgspec.json.Encoder().encode
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class _Anthropic:
    """The language of messages."""

    def problem(self, problem: Problem, request_id: str) -> bytes:
        error: dict[str, object] = {"type": _type(problem.status), "message": problem.message}
        more = (("code", problem.code), ("param", problem.param))
        error |= {name: value for name, value in more if value is not None}
        if problem.code == NO_THREADS:
            error["details"] = {"error_code": NO_THREADS, "unsupported": ["thread"]}
        return _encode({"type": "error", "error": error, "request_id": request_id or None})

    def failure(self, problem: Problem, request_id: str) -> bytes:
        return b"event: error\ndata: " + self.problem(problem, request_id) + b"\n\n"

    def silence(self) -> bytes:
        return _PING

    def headers(self, request_id: str) -> Headers:
        return [(b"request-id", request_id.encode())]


ANTHROPIC: Language = _Anthropic()


def _type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
