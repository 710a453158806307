"""The only place that knows HTTP statuses: what went wrong, in the shape of OpenAI's errors.

`ClientError` is the caller's fault, `Refused` our policy, `ReplicaError` (engines/contract.py) an engine's. Anything
else is a bug and becomes a 500.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import msgspec

from engines.contract import Fault, ReplicaError
from gateway.outcome import Outcome

MAX_RETRY_AFTER_S = 3600  # chosen: longer advice is as good as none


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as the client sees it. `retry_after_s`: whole seconds, or None when waiting is no use."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    retry_after_s: int | None = None
    outcome: Outcome = Outcome.CLIENT_ERROR

    def body(self) -> bytes:
        """OpenAI's error body."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The same as a stream event; `code` carries the status as text, which can no longer be sent as one."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": str(self.status),
            "reason": self.code,
        }
        return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers that belong to this problem alone."""
        headers = [(b"www-authenticate", b"Bearer")] if self.status == 401 else []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        return headers


class ClientError(Exception):
    """The caller's fault. `param` names the field."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        outcome: Outcome = Outcome.CLIENT_ERROR,
    ) -> None:
        super().__init__(message)
        self.problem = Problem(status, message, _TYPES.get(status, "invalid_request_error"), code, param, None, outcome)


class Refused(Exception):
    """Our policy said no, for now. `code` names the limit."""

    def __init__(
        self, message: str, *, code: str, status: int, retry_after_s: float | None, outcome: Outcome = Outcome.REFUSED
    ) -> None:
        super().__init__(message)
        kind = "rate_limit_error" if status == 429 else "service_unavailable_error"
        self.problem = Problem(status, message, kind, code, None, whole_seconds(retry_after_s), outcome)


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
}

REPLICA_PROBLEMS: dict[Fault, tuple[int, str, str, Outcome]] = {
    Fault.CONNECT: (502, "replica_unreachable", "the engine could not be reached", Outcome.REPLICA_ERROR),
    Fault.STALE: (502, "replica_reset", "the engine closed the connection before answering", Outcome.REPLICA_ERROR),
    Fault.RESET: (502, "replica_reset", "the engine's answer broke off", Outcome.REPLICA_ERROR),
    Fault.PROTOCOL: (502, "replica_protocol", "the engine's answer could not be read", Outcome.REPLICA_ERROR),
    Fault.STATUS: (502, "replica_error", "the engine failed", Outcome.REPLICA_ERROR),
    Fault.TIMEOUT: (504, "replica_timeout", "the engine did not answer in time", Outcome.TIMED_OUT),
    Fault.BACKPRESSURE: (503, "replica_busy", "every engine for this model is busy", Outcome.SHED),
    Fault.UNSERVED: (400, "unsupported_model", "no engine of this model has this endpoint", Outcome.CLIENT_ERROR),
}


def whole_seconds(seconds: float | None) -> int | None:
    """What `retry-after` may say: at least 1, at most `MAX_RETRY_AFTER_S`, rounded up."""
    if seconds is None or math.isnan(seconds):
        return None
    return math.ceil(max(1.0, min(MAX_RETRY_AFTER_S, seconds)))


def of_replica(error: ReplicaError) -> Problem:
    """What the client is told of a failed engine: never the engine's address or its stack."""
    if error.fault is Fault.CLIENT:
        return _of_engine_refusal(error)
    status, code, message, outcome = REPLICA_PROBLEMS[error.fault]
    if error.fault is Fault.UNSERVED:
        return Problem(status, message, "invalid_request_error", code, "model", None, outcome)
    retry_after_s = None
    if error.fault is Fault.BACKPRESSURE:
        status = 429 if error.status == 429 else 503
        retry_after_s = whole_seconds(error.retry_after_s or 1.0)
    elif status in (502, 503):
        retry_after_s = 1
    return Problem(status, message, "server_error", code, None, retry_after_s, outcome)


class _EngineError(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: str | int | None = None


class _Nested(msgspec.Struct):
    error: _EngineError | str


class _Finding(msgspec.Struct):
    msg: str
    loc: list[str | int] = []

    def as_error(self) -> _EngineError:
        """`loc` begins with where FastAPI looked (`body`) and goes down from the field."""
        field = next((part for part in self.loc if isinstance(part, str) and part != "body"), None)
        return _EngineError(message=self.msg, param=field)


class _FastApi(msgspec.Struct):
    detail: Annotated[list[_Finding], msgspec.Meta(min_length=1)] | str


_ENGINE_SHAPES = tuple(msgspec.json.Decoder(shape) for shape in (_Nested, _FastApi, _EngineError))


def _read_engine_error(body: bytes) -> _EngineError:
    for shape in _ENGINE_SHAPES:
        try:
            match shape.decode(body):
                case _Nested(str(message)) | _FastApi(str(message)):
                    return _EngineError(message=message)
                case _Nested(_EngineError() as error) | (_EngineError() as error):
                    return error
                case _FastApi([_Finding() as finding, *_]):
                    return finding.as_error()
        except (msgspec.MsgspecError, RecursionError):
            continue
    return _EngineError()


def _of_engine_refusal(error: ReplicaError) -> Problem:
    """An engine's own 4xx in one of its shapes (nested, flat, FastAPI's): its words are kept, they name the field."""
    status = error.status if error.status in (400, 404, 413, 422) else 400
    found = _read_engine_error(error.body)
    message = found.message or f"the engine refused the request with status {error.status}"
    code = found.code if isinstance(found.code, str) else None
    return Problem(status, message, _TYPES.get(status, "invalid_request_error"), code, found.param)


BUG = Problem(500, "the gateway failed; the error is in its log", "server_error", "internal_error", outcome=Outcome.BUG)
STOPPING = Problem(
    503, "the gateway is shutting down", "service_unavailable_error", "shutting_down", None, 1, Outcome.STOPPED
)
