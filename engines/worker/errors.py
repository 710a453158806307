"""How a worker says no: one exception that carries an HTTP status and OpenAI's error body.

Only this module knows the shape of an error. Messages are ours and fixed: no prompt text, no exception of a library.
"""

from typing import Any

import msgspec

_TYPES = {500: "server_error", 501: "server_error", 503: "service_unavailable", 504: "timeout"}


class ApiError(Exception):
    """A request ends without an answer. `param` names the field at fault, `retry_after_s` is whole seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self, *, in_stream: bool = False) -> bytes:
        """OpenAI's JSON error object. Inside a stream, where no status line can come any more, `code` is the status."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": _TYPES.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.status if in_stream else self.code,
        }
        return msgspec.json.encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of an answer that is this error."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        return headers


def invalid(param: str | None, message: str, *, code: str | None = None) -> ApiError:
    """400: the client's fault, never worth a retry."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str) -> ApiError:
    """400: a documented field that this worker cannot honour, refused rather than ignored."""
    return ApiError(400, f"`{param}` is not supported by this worker", param=param, code="unsupported_parameter")


def unavailable(message: str, *, code: str, retry_after_s: int = 1) -> ApiError:
    """503: not now. The same request may succeed here later, or elsewhere at once."""
    return ApiError(503, message, code=code, retry_after_s=retry_after_s)


def stopping() -> ApiError:
    """503: the worker ends before the answer does."""
    return unavailable("the worker is stopping", code="stopping")
