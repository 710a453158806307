"""What an engine's refusal means: its status, its advice on waiting, an error event in its stream."""

import email.utils
import time

import msgspec

from engines.contract import Fault, Headers, ReplicaError


def refusal(status: int, headers: Headers, body: bytes) -> ReplicaError:
    """What an engine's status means: busy (429, 503, 529), broken (other 5xx), or the client's fault (other 4xx)."""
    if status in (429, 503, 529):
        wait_s = retry_after_s(headers)
        return ReplicaError(Fault.BACKPRESSURE, "the engine is busy", status=status, retry_after_s=wait_s, body=body)
    if 400 <= status < 500 and status not in (401, 403, 404, 407, 408):
        return ReplicaError(Fault.CLIENT, "the engine refused the request", status=status, body=body)
    return ReplicaError(Fault.STATUS, f"the engine answered {status}", status=status, body=body)


def retry_after_s(headers: Headers) -> float | None:
    """Seconds of a `retry-after` header, given in seconds or as an HTTP date."""
    for name, value in headers:
        if name == b"retry-after":
            value = value.strip()  # noqa: PLW2901  # the same value, bare
            if value.isdigit():
                return float(value)
            try:
                moment = email.utils.parsedate_to_datetime(value.decode("latin-1"))
                return max(0.0, moment.timestamp() - time.time())
            except (ValueError, OverflowError):
                return None
    return None


class _InStream(msgspec.Struct):
    class Inner(msgspec.Struct):
        code: int | str | None = None

    error: Inner | str | None = None


def in_stream_error(payload: bytes) -> ReplicaError:
    """An error event in the engine's stream: the status it carries says what kind."""
    try:
        error = msgspec.json.decode(payload, type=_InStream).error
    except (msgspec.MsgspecError, RecursionError):
        error = None
    code = error.code if isinstance(error, _InStream.Inner) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return refusal(status, [], payload)
