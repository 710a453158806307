"""The live workers, told to the gateways."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.launch.ready_line import ready_line
from engines.launch.supervised import Started
from engines.launch.worker_command import WorkerSpec
from gateway.admin.control_client import ControlError
from gateway.fleet_publisher import FleetPublisher

SPECS = tuple(
    WorkerSpec(f"worker-{number}", "m", "gguf", Path("/m"), 8, 4096, 1, (("zone", "a"),)) for number in (1, 2)
)


class Gateway:
    """A gateway that remembers what it was told, and refuses the first `refusals` orders."""

    def __init__(self, refusals=0):
        self.told = []
        self.draining = []
        self.refusals = refusals

    async def send(self, document):
        """PUT /fleet."""
        await asyncio.sleep(0)
        if self.refusals:
            self.refusals -= 1
            raise ControlError("not yet")
        self.told.append(json.loads(document)["replicas"])
        self.draining.append(json.loads(document)["draining"])


def started(number, generation=1):
    """A worker that became ready."""
    line = ready_line(url=f"http://127.0.0.1:{9000 + number}/v1")
    return Started(f"worker-{number}", line.base_url, generation, line)


@contextlib.asynccontextmanager
async def running(gateway):
    """A publisher at work."""
    refused = []
    publisher = FleetPublisher(SPECS, gateway.send, refused.append)
    publisher.refused = refused
    task = asyncio.ensure_future(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_gateway_is_told_the_live_workers():
    """All fields of the control contract."""
    gateway = Gateway()
    async with running(gateway) as publisher:
        publisher.worker_started(started(2))
        publisher.gateway_started()
        await publisher.until_current(frozenset({"worker-2"}))
    assert gateway.told[-1] == [
        {
            "name": "worker-2",
            "model": "m",
            "engine": "warmlane",
            "url": "http://127.0.0.1:9002",
            "upstream_model": "m",
            "seats": 8,
            "bulk_seats": 8,
            "kv_tokens": 4096,
            "labels": {"zone": "a"},
            "generation": 1,
            "tokenizer": "/m",
        }
    ]


async def test_a_lost_worker_is_taken_out_and_its_next_life_has_a_new_generation():
    """The gateway must not take the new process for the old."""
    gateway = Gateway()
    async with running(gateway) as publisher:
        publisher.gateway_started()
        publisher.worker_started(started(1))
        await publisher.until_current(frozenset({"worker-1"}))
        publisher.worker_lost("worker-1")
        await publisher.until_current(frozenset())
        assert gateway.told[-1] == []
        publisher.worker_started(started(1, generation=2))
        await publisher.until_current(frozenset({"worker-1"}))
    assert gateway.told[-1][0]["generation"] == 2


async def test_a_restarted_gateway_is_told_again():
    """It knows nothing."""
    gateway = Gateway()
    async with running(gateway) as publisher:
        publisher.gateway_started()
        publisher.worker_started(started(1))
        await publisher.until_current(frozenset({"worker-1"}))
        publisher.gateway_lost()
        assert not publisher.is_current
        count = len(gateway.told)
        publisher.gateway_started()
        await publisher.until_current(frozenset({"worker-1"}))
    assert len(gateway.told) > count


async def test_a_drain_outlives_the_gateway_and_the_worker():
    """It is the operator's wish; a resume ends it. Names of other machines' replicas are kept too."""
    gateway = Gateway()
    async with running(gateway) as publisher:
        publisher.gateway_started()
        publisher.worker_started(started(1))
        publisher.drained("worker-1")
        publisher.drained("configured")
        publisher.gateway_lost()
        publisher.worker_lost("worker-1")
        publisher.gateway_started()
        publisher.worker_started(started(1, generation=2))
        await publisher.until_current(frozenset({"worker-1"}))
        assert gateway.draining[-1] == ["configured", "worker-1"]
        publisher.resumed("worker-1")
        await publisher.until_current(frozenset({"worker-1"}))
        publisher.resumed("worker-1")
        assert publisher.is_current
    assert gateway.draining[-1] == ["configured"]


async def test_an_order_that_does_not_arrive_is_repeated(monkeypatch):
    """A gateway may be ready a moment before its control socket, or die in between."""
    monkeypatch.setattr("gateway.fleet_publisher._RETRY_S", 0)
    gateway = Gateway(refusals=3)
    async with running(gateway) as publisher:
        publisher.gateway_started()
        publisher.worker_started(started(1))
        await publisher.until_current(frozenset({"worker-1"}))
        assert len(publisher.refused) == 3
    assert len(gateway.told[-1]) == 1


async def test_without_a_gateway_nothing_is_sent_and_nothing_is_current():
    """Workers may be ready first."""
    gateway = Gateway()
    async with running(gateway) as publisher:
        publisher.worker_started(started(1))
        await asyncio.sleep(0)
        assert not publisher.is_current
    assert gateway.told == []


def test_losing_a_worker_that_was_not_ready_changes_nothing():
    """A failed start is no change of the fleet."""
    publisher = FleetPublisher(SPECS, Gateway().send, lambda _error: None)
    before = repr(publisher)
    publisher.worker_lost("worker-1")
    assert repr(publisher) == before


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["start1", "start2", "lose1", "lose2", "gateway", "yield"]), max_size=30))
def test_after_any_history_the_last_word_is_the_truth(history):
    """However changes and sends interleave, the gateways end up with the live workers."""

    async def scenario():
        gateway = Gateway()
        async with running(gateway) as publisher:
            live = {}
            publisher.gateway_started()
            for generation, step in enumerate(history):
                number = int(step[-1]) if step[-1].isdigit() else 0
                if step.startswith("start"):
                    live[f"worker-{number}"] = generation
                    publisher.worker_started(started(number, generation))
                elif step.startswith("lose"):
                    live.pop(f"worker-{number}", None)
                    publisher.worker_lost(f"worker-{number}")
                elif step == "gateway":
                    publisher.gateway_lost()
                    publisher.gateway_started()
                else:
                    await asyncio.sleep(0)
            await publisher.until_current(frozenset(live))
            assert {one["name"]: one["generation"] for one in gateway.told[-1]} == live

    asyncio.run(scenario())
