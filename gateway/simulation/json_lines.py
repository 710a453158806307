"""JSON lines of a trace: one object a line, blank lines skipped."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from gateway.simulation.trace_error import TraceError

Line = TypeVar("Line", bound=msgspec.Struct)


def decoded(lines: Iterable[bytes], kind: type[Line]) -> Iterator[tuple[int, Line]]:
    """(number of the line, what it says). Raises `TraceError` for a line that is not of the kind."""
    decode = msgspec.json.Decoder(kind).decode
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decode(text)
        except msgspec.DecodeError as error:
            raise TraceError(f"line {number}: {error}") from None
        yield number, line
