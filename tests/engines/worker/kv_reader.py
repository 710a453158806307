"""A cache to publish, and a plain reader of the stream by vLLM's protocol."""

import zmq

from engines.core.events import BlockRemoved, BlockStored, Medium
from engines.kv_event_wire import END_SEQUENCE, read_batch, read_end, read_sequence, write_sequence

PATIENCE_MS = 10_000


class Cache:
    """Blocks of one token that are stored and removed by number; tells a publisher like an engine does."""

    def __init__(self):
        self.held = {}
        self.publisher = None
        self.failures = []

    def store(self, *numbers):
        event = tuple(block(number) for number in numbers)
        self.held |= dict(zip(numbers, event, strict=True))
        self.publisher.offer(event)

    def remove(self, *numbers):
        for number in numbers:
            self.held.pop(number, None)
        self.publisher.offer((BlockRemoved(tuple(map(name, numbers)), Medium.DEVICE),))

    def snapshot(self):
        if self.failures:
            raise self.failures.pop()
        return tuple(self.held.values())


def name(number):
    return number.to_bytes(32, "big")


def block(number, num=1, salt=""):
    hashes = tuple(name(number + one) for one in range(num))
    return BlockStored(hashes, None, tuple(range(num)), 1, salt, Medium.DEVICE)


class Reader:
    """One subscriber with blocking sockets; every wait ends."""

    def __init__(self, publisher, *, context=None, max_unread=1000):
        self._context = context or zmq.Context()
        self._sockets = []
        self._stream = self._socket(zmq.SUB)
        self._stream.setsockopt(zmq.RCVHWM, max_unread)
        self._stream.setsockopt_string(zmq.SUBSCRIBE, publisher.settings.topic)
        self._stream.connect(publisher.endpoint)
        self._replay = publisher.replay_endpoint

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self._sockets:
            one.close(linger=0)
        self._context.destroy(linger=0)

    def _socket(self, kind):
        made = self._context.socket(kind)
        made.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        made.setsockopt(zmq.LINGER, 0)
        self._sockets.append(made)
        return made

    def next(self):
        """The next batch of the stream."""
        topic, sequence, payload = self._stream.recv_multipart()
        assert topic == b"kv-events"
        return read_batch(read_sequence(sequence), payload)

    def joined(self, cache, number=10**6):
        """Wait until the subscription works: publish until something comes, and drop it."""
        while not self._stream.poll(20):
            cache.store(number)
        while self._stream.poll(100):
            self._stream.recv_multipart()

    def again(self, wanted):
        """(batches, end) of an answer, asked as a REQ socket asks."""
        asking = self.ask(b"", write_sequence(wanted))
        batches = []
        while True:
            empty, topic, sequence, payload = asking.recv_multipart()
            assert (empty, topic) == (b"", b"kv-events")
            number = read_sequence(sequence)
            if number == END_SEQUENCE:
                return batches, read_end(payload)
            batches.append(read_batch(number, payload))

    def ask(self, *frames):
        """A socket that has asked with these frames."""
        asking = self._socket(zmq.DEALER)
        asking.connect(self._replay)
        asking.send_multipart(frames)
        return asking


def held_after(batches):
    """Folded names of the blocks that these batches leave."""
    from cache_affinity.kv_events import AllCleared, BlocksStored

    held = set()
    for batch in batches:
        for event in batch.events:
            if isinstance(event, AllCleared):
                held.clear()
            elif isinstance(event, BlocksStored):
                held |= set(event.hashes)
            else:
                held -= set(event.hashes)
    return held
