"""Finished requests: counted and logged once, a moment later, and remembered up to a bound."""

import asyncio
import io
import json

import pytest

from gateway import recorder as module
from gateway.recorder import Recorder
from observability.metrics import Metrics
from observability.records import RequestRecord
from tests.scripted_engine import within_patience


def record(number=0, **changes):
    """A finished request."""
    values = {"request_id": f"req_{number}", "started_at": 1.0, "surface": "/v1/chat/completions", "model": "m"}
    return RequestRecord(**values, lane="bulk", outcome="finished", status=200, duration_s=1.0, **changes)


class Log(io.BytesIO):
    """A log that says when something was written."""

    def __init__(self):
        super().__init__()
        self.written = asyncio.Event()

    def write(self, data):
        self.written.set()
        return super().write(data)

    @property
    def lines(self):
        """The records in it."""
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def metrics():
    """Metrics of one model."""
    return Metrics(lambda: frozenset({"m"}), list)


def counted(metrics):
    """Requests counted."""
    lines = metrics.text().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("warmlane_requests_total{"))


async def test_many_records_become_one_write_a_moment_later(metrics, monkeypatch):
    """The hot path only appends."""
    monkeypatch.setattr(module, "FLUSH_AFTER_S", 0.001)
    log = Log()
    recorder = Recorder(metrics, log)
    for number in range(3):
        recorder.add(record(number), None)
    assert log.lines == []
    await within_patience(log.written.wait())
    assert [line["request_id"] for line in log.lines] == ["req_0", "req_1", "req_2"]
    assert counted(metrics) == 3


async def test_flushing_by_hand_counts_once(metrics):
    """A scrape flushes; the timer finds nothing then."""
    log = Log()
    recorder = Recorder(metrics, log)
    recorder.flush()
    recorder.add(record(1), None)
    recorder.flush()
    recorder.flush()
    assert counted(metrics) == 1
    assert len(log.lines) == 1
    recorder.add(record(2), None)
    recorder.flush()
    assert counted(metrics) == 2


async def test_memory_is_bounded_and_the_oldest_is_forgotten(metrics):
    """The bound, reached."""
    recorder = Recorder(metrics, Log(), max_remembered=3)
    for number in range(5):
        recorder.add(record(number), None)
    recorder.flush()
    assert len(recorder) == 3
    assert recorder.find("req_1") is None
    assert recorder.find("req_4")[0].request_id == "req_4"
    assert recorder.find("") is None
    assert counted(metrics) == 5


async def test_the_records_of_a_deleted_project_are_dropped(metrics):
    """Its receipts too; what was not counted yet is counted first."""
    recorder = Recorder(metrics, Log())
    for number, project in enumerate(("proj_a", "proj_b", "proj_a")):
        recorder.add(record(number, project=project), None)
    assert recorder.forget(frozenset({"proj_a"})) == 2
    assert [recorder.find(f"req_{number}") is None for number in range(3)] == [True, False, True]
    assert counted(metrics) == 3
    assert recorder.forget(frozenset({"proj_a"})) == 0


async def test_the_key_of_each_request_is_told_with_the_batch(metrics):
    """Not on the request's path; a request without a key tells nothing."""
    used = []
    recorder = Recorder(metrics, Log(), on_key_used=used.append)
    recorder.add(record(1, key="key_a"), None)
    recorder.add(record(2), None)
    assert used == []
    recorder.flush()
    assert used == ["key_a"]
