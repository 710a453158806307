"""Trace files: which format a file is of, and its requests. The only module of the simulator that opens a file."""

import gzip
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from gateway.simulation import conversations, ledger_trace, mooncake
from gateway.simulation.recording import Recording
from gateway.simulation.trace_error import TraceError

_GZIP = b"\x1f\x8b"
Record = Callable[[Iterable[bytes]], Recording]
_FORMATS: tuple[tuple[str, Record], ...] = (
    ("hash_ids", mooncake.record),
    ("messages", conversations.record),
)


def read_recording(path: Path) -> Recording:
    """The requests of a trace, which may be gzipped. Raises `TraceError`, with the file's name."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
        with gzip.open(path, "rb") if is_packed else path.open("rb") as lines:
            return read_lines(lines)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{path} cannot be read: {reason}") from None


def read_lines(lines: Iterable[bytes]) -> Recording:
    """The requests of a trace in whichever format its first line is of. Raises `TraceError`."""
    stream = iter(lines)
    first = next((line for line in stream if line.strip()), None)
    if first is None:
        raise TraceError("there is no request in it")
    everything = _after(first, stream)
    if first.lstrip(b"\xef\xbb\xbf").startswith(b"request_id,"):
        return ledger_trace.record(everything)
    fields: dict[str, msgspec.Raw] = {}
    with suppress(msgspec.DecodeError):
        fields = msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    for field, record in _FORMATS:
        if field in fields:
            return record(everything)
    raise TraceError(
        "it is no trace that is known: JSON lines with hash_ids (Mooncake) or messages (conversations), or a CSV file "
        "of `warmlane usage export`"
    )


def _after(first: bytes, rest: Iterable[bytes]) -> Iterable[bytes]:
    yield first
    yield from rest
