"""Bytes from a pipe cut into lines, within a bound. Pure."""


class LineSplitter:
    """Collects bytes and gives back whole lines, without their ends.

    A line longer than `limit_bytes` comes in pieces of that size, so that a process that never ends its line costs a
    bounded amount of memory.
    """

    def __init__(self, limit_bytes: int = 65_536) -> None:
        assert limit_bytes > 0, "a line has at least one byte"
        self._limit_bytes = limit_bytes
        self._rest = b""

    def feed(self, received: bytes) -> list[bytes]:
        """The lines that `received` completes, in order."""
        *whole, rest = (self._rest + received).split(b"\n")
        lines = [piece for line in whole for piece in self._pieces(line.removesuffix(b"\r"))]
        *full, self._rest = self._pieces(rest)
        return lines + full

    def end(self) -> list[bytes]:
        """The last line, if the stream ended without a line end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def _pieces(self, line: bytes) -> list[bytes]:
        limit = self._limit_bytes
        return [line[start : start + limit] for start in range(0, len(line), limit)] or [b""]
