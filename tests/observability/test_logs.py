"""Log lines: one JSON object a line whatever is in it, and no secret however it is spelled."""

import io
import json
import logging
import sys

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from observability import logs
from observability.records import RequestRecord

RANDOM = "Zk3vQ8xW1yB5nT7aM2cR9dF4gH6jL0pS-_uEoIiKqXw"
OURS = f"wl-3f0c1a2b-{RANDOM}"


@pytest.fixture
def log(monkeypatch):
    """A configured process; gives what stands in its log so far."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def configure(level):
        monkeypatch.setattr(sys, "stderr", stream)
        logs.configure(level, "gateway")

    def lines():
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    lines.text = stream.getvalue
    lines.configure = configure
    configure("debug")
    yield lines
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


def record(**changes):
    """A finished request."""
    values = {"request_id": "req_1", "started_at": 1.0, "surface": "/v1/chat/completions", "model": "m", "outcome": "x"}
    return RequestRecord(**{**values, "status": 200, "duration_s": 1.0, **changes})


def test_an_event_is_one_line_of_json_with_its_process(log):
    """For machines first."""
    logs.get().info("thing.started", number=1, ratio=0.5)
    [line] = log()
    assert (line["event"], line["level"], line["process"], line["number"]) == ("thing.started", "info", "gateway", 1)
    assert line["timestamp"].endswith("Z")


def test_what_is_bound_once_stands_on_every_line(log):
    """The request id, for one."""
    with structlog.contextvars.bound_contextvars(request_id="req_1"):
        logs.get().info("a.b")
        logs.get().info("a.c")
    assert [line["request_id"] for line in log()] == ["req_1", "req_1"]


def test_lower_levels_are_left_out(log):
    """`log_level` of the configuration."""
    log.configure("warning")
    logs.get().info("a.b")
    logs.get().warning("a.c")
    assert [line["event"] for line in log()] == ["a.c"]


def test_an_exceptions_trace_is_part_of_its_line(log):
    """One record, not forty lines."""
    try:
        int(f"with {OURS}")
    except ValueError:
        logs.get().exception("thing.failed")
    [line] = log()
    assert "ValueError" in line["exception"]
    assert RANDOM[:6] not in log.text()


@pytest.mark.parametrize(
    "text",
    [
        OURS,
        OURS.upper(),
        f"Authorization: Bearer {OURS}",
        f"authorization: bearer   {RANDOM}",
        f"BEARER\t{RANDOM}",
        f"bearer%20{RANDOM}",
        f"/v1?key={OURS}",
        f"x-api-key: {RANDOM}",
        f"{{'x-api-key': '{RANDOM}'}}",
        f'{{"X-Api-Key":"{RANDOM}"}}',
        f"authorization={RANDOM}",
        f"sk-{RANDOM}",
        f"sk-proj-{RANDOM}",
        f"one {OURS} two {OURS}",
        f"({OURS})",
    ],
)
@pytest.mark.parametrize(
    "wrap", [str, str.encode, lambda text: [text], lambda text: {"h": (b"k", text.encode())}, Exception]
)
def test_no_secret_is_in_a_line_however_it_is_spelled(log, text, wrap):
    """P41: redaction works on the finished line; a short prefix may stay."""
    logs.get().warning("thing.failed", value=wrap(text))
    logs.get().warning(text)
    for start in range(len(RANDOM) - 5):
        assert RANDOM[start : start + 6].lower() not in log.text().lower()
    assert len(log()) == 2


def test_what_is_no_secret_stays(log):
    """A log that hides everything helps nobody."""
    text = "the bearer of bad news; wl-fi; task-force-alpha-bravo; key key_0123456789abcdef0123; sk-8"
    logs.get().info("a.b", value=text)
    assert log()[0]["value"] == text


def test_half_characters_and_odd_values_are_written(log):
    """What a file name or an engine's text may hold must not lose the line."""
    logs.get().info("a.b", **{"k\ud83d": "\udcff"}, nan=float("nan"), big=10**40, key={1: {2}}, thing=object())
    [line] = log()
    assert line["k\\ud83d"] == "\\udcff"
    assert line["nan"] is None


@settings(deadline=None, max_examples=100)
@given(
    st.dictionaries(
        st.text(max_size=5).map("f_".__add__), st.text(max_size=20) | st.binary(max_size=8) | st.floats(), max_size=4
    )
)
def test_any_fields_make_one_valid_line(fields):
    """Line ends, control codes and all."""
    line = logs._redacted(None, "info", logs._dumps({"event": "a.b", **fields}))
    assert "\n" not in line
    assert json.loads(line)["event"] == "a.b"


# The standard library's.


@pytest.mark.parametrize(
    ("level", "name"),
    [
        (10, "debug"),
        (15, "debug"),
        (20, "info"),
        (25, "info"),
        (30, "warning"),
        (35, "warning"),
        (40, "error"),
        (99, "critical"),
    ],
)
def test_lines_of_libraries_come_in_our_form_at_any_level(log, level, name):
    """Some have levels in between, which must not break them."""
    logger = logging.getLogger("some.library")
    logger.setLevel(1)
    logging.getLogger().setLevel(1)
    logger.log(level, "said %s", OURS)
    [line] = log()
    assert (line["event"], line["level"], line["logger"]) == ("library.message", name, "some.library")
    assert RANDOM not in log.text()


def test_a_librarys_bad_format_is_written_as_it_is(log):
    """Its slip is not its caller's."""
    [ours] = [handler for handler in logging.getLogger().handlers if type(handler).__module__ == "observability.logs"]
    lib = logging.getLogger("lib.with.a.slip")
    lib.propagate = False  # pytest's own handler fails on purpose
    lib.addHandler(ours)
    lib.warning("%d pieces", "many")
    lib.warning("%(x)s", {"y": 1})
    lib.removeHandler(ours)
    assert [line["message"] for line in log()] == ["%d pieces", "%(x)s"]


def test_a_librarys_exception_keeps_its_trace(log):
    """With `exc_info`."""
    try:
        int("why")
    except ValueError:
        logging.getLogger("lib").exception("broke")
    assert "ValueError: invalid" in log()[0]["exception"]


# Records.


def test_a_record_is_one_info_line_without_what_is_absent():
    """And many are one write."""
    out = io.BytesIO()
    logs.write_records([record(), record(request_id="req_2", reason='odd "\n\u2028')], out)
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], first["event"], first["request_id"]) == ("info", "request.finished", "req_1")
    assert "reason" not in first
    assert second["reason"] == 'odd "\n\u2028'


@pytest.mark.parametrize("value", [OURS, OURS.upper(), f"sk-{RANDOM}"])
@pytest.mark.parametrize("name", ["requested_model", "client_request_id"])
def test_a_key_given_as_something_else_is_not_written(name, value):
    """People paste keys into the wrong field."""
    out = io.BytesIO()
    logs.write_records([record(), record(**{name: value})], out)
    assert RANDOM[:6].lower() not in out.getvalue().decode().lower()
    assert [json.loads(line)["request_id"] for line in out.getvalue().splitlines()] == ["req_1", "req_1"]


def test_records_go_to_stderr_by_default(capfdbinary, monkeypatch):
    """Stdout is for the ready line."""
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), write_through=True))
    logs.write_records([record()])
    assert json.loads(sys.stderr.buffer.getvalue())["request_id"] == "req_1"
