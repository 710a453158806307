"""When keys were last used: once a minute at most each, in batches, and never lost while the store is away."""

import asyncio

import pytest
import structlog

from gateway import key_uses as module
from gateway.key_uses import KeyUses, following
from policies.store import StoreError


class Store:
    """Remembers each batch; fails while it is told to."""

    def __init__(self):
        self.batches = []
        self.is_down = False
        self.asked = asyncio.Event()

    async def note_uses(self, used_at):
        self.asked.set()
        if self.is_down:
            raise StoreError("gone")
        self.batches.append(dict(used_at))


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def uses(store, clock):
    return KeyUses(store, clock)


async def test_a_busy_key_is_written_once_a_minute(uses, store, clock):
    """A thousand requests cost one write."""
    for _ in range(1000):
        uses.note("key_a")
    assert await uses.tell() == 1
    clock.now += 59
    uses.note("key_a")
    uses.note("key_b")
    assert await uses.tell() == 1
    clock.now += 1
    assert await uses.tell() == 1
    assert await uses.tell() == 0
    assert store.batches == [{"key_a": 1000}, {"key_b": 1059}, {"key_a": 1059}]
    assert len(uses) == 0


async def test_a_clock_that_stepped_back_does_not_silence_a_key(uses, store, clock):
    """What was told of in the future is told of again."""
    uses.note("key_a")
    await uses.tell()
    clock.now = 500
    uses.note("key_a")
    assert await uses.tell() == 1


async def test_what_a_store_did_not_take_is_told_later(uses, store):
    """An outage loses nothing; a key takes one place however often it is used."""
    store.is_down = True
    for _ in range(10):
        uses.note("key_a")
    with pytest.raises(StoreError):
        await uses.tell()
    assert len(uses) == 1
    store.is_down = False
    assert await uses.tell() == 1


async def test_it_follows_and_tells_the_rest_at_the_end(uses, store, monkeypatch):
    """An outage is logged once; a kind end writes what is left, also of keys that were told of just now."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0)
    store.is_down = True
    with structlog.testing.capture_logs() as logs:
        async with following(uses):
            uses.note("key_a")
            for _ in range(3):
                store.asked.clear()
                await store.asked.wait()
            store.is_down = False
            store.asked.clear()
            await store.asked.wait()
            uses.note("key_a")
    assert [one["event"] for one in logs] == ["key_uses.not_written"]
    assert len(store.batches) == 2
    assert len(uses) == 0
