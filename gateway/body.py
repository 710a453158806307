"""The body of a request while it comes: one buffer, bounded by itself and by all others that come at the same time."""

from gateway.errors import ClientError, Problem
from gateway.sink import Incoming

MAX_COMING_BYTES = 256 * 1024 * 1024  # chosen: of all bodies not yet whole; whole ones are bounded by the queues


class Bodies:
    """What bodies may take, in bytes: `max_bytes` each, `max_total_bytes` all that are not whole yet."""

    def __init__(self, max_bytes: int, max_total_bytes: int = MAX_COMING_BYTES) -> None:
        self.max_bytes = max_bytes
        self.max_total_bytes = max(max_total_bytes, max_bytes)
        self.held_bytes = 0

    def too_large(self) -> Problem:
        """413, with the limit."""
        message = f"the body is larger than {self.max_bytes} bytes, which is the limit here"
        return Problem(413, message, "invalid_request_error", "body_too_large")


FULL = Problem(
    503,
    "too many large requests are being sent to this gateway at once; try again",
    "service_unavailable_error",
    "bodies_full",
    retry_after_s=1,
)


class Body:
    """One body. Ended by `take` or `drop`; both may come twice."""

    __slots__ = ("_bodies", "_buffer", "_first", "_size")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._first = b""
        self._buffer: bytearray | None = None  # only for a body in pieces; a list of tiny ones would cost 30 times more
        self._size = 0

    def add(self, data: bytes) -> Problem | None:
        """A piece of it. The problem if it is too much: then nothing is kept."""
        bodies, size = self._bodies, self._size + len(data)
        if size > bodies.max_bytes:
            self.drop()
            return bodies.too_large()
        if bodies.held_bytes + len(data) > bodies.max_total_bytes:
            self.drop()
            return FULL
        if self._buffer is not None:
            self._buffer += data
        elif self._size:
            self._buffer = bytearray(self._first)
            self._buffer += data
        else:
            self._first = data
        bodies.held_bytes += len(data)
        self._size = size
        return None

    def take(self) -> bytes:
        """The whole of it, once."""
        whole = self._first if self._buffer is None else bytes(self._buffer)
        self.drop()
        return whole

    def drop(self) -> None:
        """Keep nothing."""
        self._bodies.held_bytes -= self._size
        self._first, self._buffer, self._size = b"", None, 0


def refuse_packed(incoming: Incoming) -> None:
    """Raises `ClientError` (415) for a body that says it is compressed: only plain JSON is read."""
    coding = incoming.header(b"content-encoding")
    if coding is not None and coding.strip().lower() not in (b"", b"identity"):
        raise ClientError("send the body without a content-encoding", status=415, code="unsupported_content_encoding")
