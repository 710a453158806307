"""JSON log lines on stderr: events with a constant dotted name and fields, and one line a request from its record.

Processes log; pure packages do not. No prompt, completion, header or key at any level: secrets are cut out of the
finished line, so it does not matter how a call was spelled. Nobody waits for the log: see `log_writer`.
"""

import atexit
import functools
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, BinaryIO, TextIO

import msgspec
import structlog

from observability.log_writer import LogWriter
from observability.records import RequestRecord

STDERR = 2
AT_EXIT_S = 2.0  # chosen: how long a process that ends waits for a reader of its last lines
_SECRET = re.compile(
    r"""(wl-[a-z0-9]{4})[a-z0-9_-]{8,}  # our own keys
    | (\bsk-)[a-z0-9_-]{8,}  # providers' keys
    | (\bbearer(?:\s|\\[tnr]|%20|\+)+)[^\s"'\\]{8,}
    | (\b(?:x-api-key|authorization)\\?["']?\s*[:,=]\s*\\?["']?)[^\s"'\\,]{8,}""",
    re.IGNORECASE | re.VERBOSE,
)


def configure(level: str, process: str) -> None:
    """Set up logging for this process, the standard library's included. `process` stands on every line."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            *shared,
            _named(process),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_dumps),
            _redacted,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=functools.partial(_Lines, sys.stderr),
        cache_logger_on_first_use=False,
    )
    _process_log.lost_line = functools.partial(_lost_line, process)
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[_Bridge()], force=True)


def get() -> structlog.typing.FilteringBoundLogger:
    """The process's logger: `get().info("thing.phase", field=…)`."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def record_line(record: RequestRecord) -> bytes:
    """The one INFO line of a request."""
    return b'{"level":"info","event":"request.finished",' + msgspec.json.encode(record)[1:] + b"\n"


def write_records(records: list[RequestRecord], stream: BinaryIO | None = None) -> None:
    """The lines of several requests in one write. `stream`: instead of the process's log, for tests."""
    lines = b"".join(map(record_line, records))
    lowered = lines.lower()
    if b"wl-" in lowered or b'"sk-' in lowered:  # a caller may give a key as a model or an id; the search costs 30 µs
        lines = redact(lines.decode()).encode()
    if stream is not None:
        stream.write(lines)
    else:
        write_lines(lines)


def write_lines(lines: bytes) -> None:
    """Whole lines on stderr, in the order of the calls. Never waits: what a reader leaves unread is dropped at last."""
    _write(lines, sys.stderr)


def write_sentence(sentence: str) -> None:
    """A last word for a person on stderr, in its place among the log lines."""
    write_lines(sentence.encode(errors="backslashreplace") + b"\n")


@atexit.register
def flush() -> None:
    """Wait until the log is written, at most `AT_EXIT_S`."""
    _process_log.flush(AT_EXIT_S)


def redact(text: str) -> str:
    """The text without the secret part of any key in it."""
    return _SECRET.sub(lambda found: found.group(found.lastindex or 0) + "…", text)


def _lost_line(process: str, number: int) -> bytes:
    stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    fields = {"level": "warning", "event": "log.lines_dropped", "number": number, "timestamp": stamp}
    return msgspec.json.encode({**fields, "process": process}) + b"\n"


_process_log = LogWriter(STDERR, functools.partial(_lost_line, "warmlane"))


class _Lines:
    """What structlog hands a finished line to: every level is the same here."""

    def __init__(self, stream: TextIO | None, *_names: Any) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        _write(line.encode(errors="backslashreplace") + b"\n", self._stream)

    log = debug = info = warn = warning = error = critical = fatal = failure = err = exception = msg


def _write(lines: bytes, stream: TextIO | None) -> None:
    if stream is None:  # the process was started without one
        return
    if stream is sys.__stderr__:
        _process_log.write(lines)
    else:  # replaced, so it is in memory and keeps nobody waiting
        stream.write(lines.decode(errors="replace"))
        stream.flush()


def _named(process: str) -> structlog.typing.Processor:
    def add(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["process"] = process
        return event

    return add


def _dumps(event: Any, **_options: Any) -> str:
    return msgspec.json.encode(_plain(event), enc_hook=str).decode()


def _plain(value: Any) -> Any:
    """The value in what JSON can say: bytes as text, so that secrets in them are seen; half characters escaped."""
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case bytes():
            return value.decode("latin-1")
        case dict():
            return {_plain(str(key)): _plain(one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(one) for one in value]
        case _:
            return value


def _redacted(_logger: Any, _method: str, line: Any) -> str:
    return redact(str(line))


class _Bridge(logging.Handler):
    """Lines of libraries, in our form."""

    def emit(self, record: logging.LogRecord) -> None:
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)  # libraries have levels in between
        get().log(level, "library.message", logger=record.name, message=_message(record), exc_info=exc_info)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # a library's slip must not break its caller
        return str(record.msg)
