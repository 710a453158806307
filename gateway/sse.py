"""Server-sent events, read exactly under every split: bytes in, event payloads out. No I/O, no JSON.

Follows the event-stream format of the HTML standard: lines end in LF, CR LF or CR; comments and other fields are
dropped; several data lines are one payload. An event that is still open at the end of the stream is not an event.
"""

from engines.contract import Fault, ReplicaError

DONE = b"[DONE]"
_BOM = b"\xef\xbb\xbf"
MAX_EVENT_BYTES = 8 * 1024 * 1024  # chosen: far above any chunk seen, far below what would hurt


class EventReader:
    """Reads one stream. Memory is bounded by `MAX_EVENT_BYTES` and the size of one read."""

    __slots__ = ("_after_cr", "_at_start", "_bom", "_num_pending", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the event that is not complete; joined once, when it is
        self._num_pending = 0  # bytes in them
        self._bom = b""  # what may be the beginning of a byte-order mark
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads of the events that `data` completes. Raises `ReplicaError` (PROTOCOL) for an endless event."""
        if self._after_cr or self._at_start or b"\r" in data:
            data = self._normal(data)
        if self._pieces:
            if b"\n\n" not in data and not (data.startswith(b"\n") and self._pieces[-1].endswith(b"\n")):
                self._keep(data)
                return []
            data = b"".join([*self._pieces, data])
            self._pieces, self._num_pending = [], 0
        elif data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and data.endswith(b"\n\n"):
            return [data[6:-2]]  # one whole event in one read: the common case at token rate
        if not data.endswith(b"\n\n"):
            cut = data.rfind(b"\n\n")
            self._keep(data[cut + 2 :] if cut >= 0 else data)
            data = data[: cut + 2] if cut >= 0 else b""
        return [payload for block in data.split(b"\n\n") if (payload := _payload(block)) is not None]

    def left_open(self) -> bytes | None:
        """The payload of an event that the end of the stream left without its closing blank line."""
        return _payload(b"".join(self._pieces).rstrip(b"\n"))

    def _normal(self, data: bytes) -> bytes:
        """With LF as the only line end and without a byte-order mark."""
        is_rest_of_crlf = self._after_cr and data.startswith(b"\n")
        self._after_cr = data.endswith(b"\r") if data else self._after_cr
        data = data[1:] if is_rest_of_crlf else data
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._at_start:
            data = self._bom + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._bom = data
                return b""
            self._at_start = False
            data = data.removeprefix(_BOM)
        return data

    def _keep(self, rest: bytes) -> None:
        self._num_pending += len(rest)
        if self._num_pending > MAX_EVENT_BYTES:
            raise ReplicaError(Fault.PROTOCOL, f"an event of the engine's stream passed {MAX_EVENT_BYTES} bytes")
        if rest:
            self._pieces.append(rest)


def _payload(block: bytes) -> bytes | None:
    """The data of one event's lines, None if it has none. Lines of one payload are joined by LF."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = []
    for line in block.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None


def event(payload: bytes) -> bytes:
    """One event. A payload of several lines is JSON broken at white space: a space does as well."""
    if b"\n" in payload:
        payload = payload.replace(b"\n", b" ")
    return b"data: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """One comment: clients ignore it, proxies see a live connection."""
    return f": {text}\n\n".encode()
