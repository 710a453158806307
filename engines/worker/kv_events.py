"""The worker's KV events over ZeroMQ: published in order, kept for who missed some, told anew to who missed more.

vLLM's sockets: PUB for the stream, ROUTER for batches again. A thread of its own does all of it; the engine's thread
only puts events into a queue and never waits. When the queue is full its contents are dropped, and what the cache holds
is published from scratch, after `AllBlocksCleared`. Whoever asks for batches that are no longer kept gets the same.
"""

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq

from engines.core.events import AllBlocksCleared, KvEvent
from engines.kv_event_wire import END_SEQUENCE, MalformedBatch, read_sequence, write_sequence
from engines.worker.kv_event_maps import write_batch, write_end
from observability import logs

_CHUNK_BLOCKS = 1024  # of a snapshot in one message, and about what is joined of a queue: some 100 kB
_MAX_CHUNKS = 10_000  # of a snapshot that may wait for one reader
_SNAPSHOT_S = 1.0  # a snapshot so young answers the next who asks, too
_ASKS_A_TURN = 64  # answered before the stream has its turn again
_STOP_S = 5.0
_RETRY_MS = 1000  # after a failure that left the stream with a gap

Snapshot = Callable[[], Sequence[KvEvent]]


class CannotPublish(Exception):
    """An endpoint cannot be used; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class KvEventSettings:
    """`endpoint`, `replay_endpoint`: where to bind; a TCP port 0 or `*` takes a free one.

    `topic`: the first frame. `max_batches`, `max_bytes`: kept for who missed some. `max_queued`: blocks that wait for
    the thread. `max_unsent`: messages that wait for one slow subscriber; the next are lost to it, and it notices.
    `has_int_hashes`: names as numbers, as some of vLLM's readers want them.
    """

    endpoint: str = "tcp://127.0.0.1:*"
    replay_endpoint: str = "tcp://127.0.0.1:*"
    topic: str = "kv-events"
    max_batches: int = 10_000
    max_bytes: int = 32 << 20
    max_queued: int = 65_536
    max_unsent: int = 10_000
    has_int_hashes: bool = False


@dataclass(frozen=True, slots=True)
class KvEventCounts:
    """`next_sequence`: batches published so far. `num_overflows`: times the queue was full. Counts only grow."""

    next_sequence: int
    num_blocks: int
    num_answers: int
    num_snapshots: int
    num_overflows: int


class KvEventPublisher:
    """Publishes one engine's events. `snapshot`: events that make what the cache holds now out of nothing; any thread.

    `generation`: names this life of the process. `offer` is called from one thread, everything else from any.
    """

    def __init__(
        self,
        settings: KvEventSettings,
        snapshot: Snapshot,
        generation: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind. Raises `CannotPublish`."""
        self.settings = settings
        self.generation = generation
        self._snapshot = snapshot
        self._clock = clock
        self._context = zmq.Context()
        try:
            self._stream = self._bound(zmq.PUB, settings.endpoint, settings.max_unsent)
            self._answers = self._bound(zmq.ROUTER, settings.replay_endpoint, settings.max_batches + _MAX_CHUNKS)
        except CannotPublish:
            self._context.destroy(linger=0)
            raise
        self._answers.setsockopt(zmq.ROUTER_MANDATORY, 1)  # or what is sent to a reader who left would seem to go out
        self.endpoint = self._stream.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._answers.getsockopt_string(zmq.LAST_ENDPOINT)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._queue: deque[tuple[tuple[KvEvent, ...], int]] = deque()
        self._num_offered = self._num_taken = 0  # blocks; each has one writer
        self._is_lossy = False  # set by the engine's thread, cleared by ours
        self._is_stopping = False
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._young: tuple[float, int, list[bytes]] | None = None  # a snapshot, with the batch it includes
        self._next = self._num_blocks = self._num_answers = self._num_snapshots = self._num_overflows = 0
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def __repr__(self) -> str:
        return f"<KvEventPublisher {self.endpoint} next={self._next} kept={len(self._kept)}>"

    def start(self) -> None:
        """Start the thread; the first batch clears whatever readers believe of a worker before this one."""
        self._publish((AllBlocksCleared(),))
        self._thread.start()

    def offer(self, events: tuple[KvEvent, ...]) -> None:
        """Queue events, in the engine's thread; never waits. Without room what is queued is dropped and told anew."""
        if not events or self._is_lossy:
            return
        num_blocks = sum(map(_num_blocks, events))
        if self._num_offered - self._num_taken + num_blocks > self.settings.max_queued and self._queue:
            self._is_lossy = True
            self._num_overflows += 1
        else:
            self._num_offered += num_blocks
            self._queue.append((events, num_blocks))
        self._wake()

    def counts(self) -> KvEventCounts:
        """What was done so far."""
        return KvEventCounts(self._next, self._num_blocks, self._num_answers, self._num_snapshots, self._num_overflows)

    def stop(self) -> None:
        """Publish what is queued, end the thread, close the sockets. May be repeated."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._thread.ident is not None:
            self._wake()
            self._thread.join(_STOP_S)
        if not self._thread.is_alive():  # else it is stuck in the engine, and the process is ending
            self._context.destroy(linger=0)
            self._wake_in.close()
            self._wake_out.close()

    def _bound(self, kind: int, endpoint: str, max_unsent: int) -> zmq.Socket[bytes]:
        bound = self._context.socket(kind)
        bound.setsockopt(zmq.SNDHWM, max_unsent)
        bound.setsockopt(zmq.LINGER, 0)
        bound.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            bound.bind(endpoint[:-2] + ":*" if endpoint.startswith("tcp://") and endpoint.endswith(":0") else endpoint)
        except zmq.ZMQError as error:
            raise CannotPublish(f"KV events cannot be published at {endpoint}: {error.strerror}") from error
        return bound

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it will wake; closed: it is over
            self._wake_in.send(b"\0")

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._answers, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        while not self._is_stopping:
            try:
                poller.poll(_RETRY_MS if self._is_lossy else None)
                with contextlib.suppress(BlockingIOError):
                    self._wake_out.recv(4096)
                self._publish_queued()
                self._answer_asked()
            except Exception as error:  # noqa: BLE001  # what breaks here must not end the stream: readers ask again
                logs.get().error("kv_events.failed", exc_info=error)
                self._is_lossy = True
        with contextlib.suppress(zmq.ZMQError):
            self._publish_queued()

    def _publish_queued(self) -> None:
        while self._queue or self._is_lossy:
            if self._is_lossy:
                self._start_anew()
            events: list[KvEvent] = []
            num_blocks = 0
            while self._queue and num_blocks < _CHUNK_BLOCKS:
                some, num = self._queue.popleft()
                events += some
                num_blocks += num
                self._num_taken += num
            if events:
                self._publish(events)

    def _start_anew(self) -> None:
        """Events were lost: tell what the cache holds. Those that come meanwhile may tell it once more, to no harm."""
        while self._queue:
            self._num_taken += self._queue.popleft()[1]
        self._is_lossy = False
        logs.get().warning("kv_events.overflow", overflows=self._num_overflows)
        for chunk in self._snapshot_chunks():
            self._publish(chunk)

    def _publish(self, events: Sequence[KvEvent]) -> None:
        payload = self._payload(events)
        number, self._next = self._next, self._next + 1
        self._num_blocks += sum(map(_num_blocks, events))
        self._kept.append((number, payload))
        self._kept_bytes += len(payload)
        while len(self._kept) > self.settings.max_batches or (
            self._kept_bytes > self.settings.max_bytes and len(self._kept) > 1
        ):
            self._kept_bytes -= len(self._kept.popleft()[1])
        self._stream.send_multipart((self.settings.topic.encode(), write_sequence(number), payload))

    def _payload(self, events: Sequence[KvEvent]) -> bytes:
        return write_batch(time.time(), events, self.generation, has_int_hashes=self.settings.has_int_hashes)

    def _answer_asked(self) -> None:
        for _ in range(_ASKS_A_TURN):
            try:
                frames = self._answers.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                wanted = read_sequence(frames[-1])
            except MalformedBatch:
                continue  # not one of ours, nor vLLM's
            self._answer(frames[0], wanted)

    def _answer(self, reader: bytes, wanted: int) -> None:
        """The batches from `wanted` on; what the cache holds before them where the oldest are no longer kept.

        Ends early where the reader has left: who asks again meanwhile would wait for the end of an answer to nobody.
        """
        self._num_answers += 1
        parts: list[tuple[int, bytes]] = []
        if wanted < self._kept[0][0]:
            try:
                included, chunks = self._snapshot_now()
            except TimeoutError:
                return  # the engine is in a long step: who asks hears nothing and asks again
            parts = [(included, payload) for payload in chunks]
            wanted = included + 1
        parts += [(number, payload) for number, payload in self._kept if number >= wanted]
        for number, payload in (*parts, (END_SEQUENCE, write_end(self.generation, self._next))):
            if not self._reply(reader, number, payload):
                return

    def _reply(self, reader: bytes, number: int, payload: bytes) -> bool:
        """Send a part of an answer; False where nobody is there any more."""
        frames = (reader, b"", self.settings.topic.encode(), write_sequence(number), payload)
        try:
            self._answers.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            pass  # it does not read: it will miss the end, and ask again
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _snapshot_now(self) -> tuple[int, list[bytes]]:
        """(number of the last batch included, payloads); a young one again, if what follows it is still kept."""
        if self._young is not None:
            made_at, included, chunks = self._young
            if self._clock() - made_at <= _SNAPSHOT_S and included + 1 >= self._kept[0][0]:
                return included, chunks
        included = self._next - 1
        chunks = [self._payload(chunk) for chunk in self._snapshot_chunks()]
        self._young = (self._clock(), included, chunks)
        return included, chunks

    def _snapshot_chunks(self) -> list[list[KvEvent]]:
        self._num_snapshots += 1
        chunks: list[list[KvEvent]] = [[AllBlocksCleared()]]
        num_blocks = 0
        for event in self._snapshot():
            if num_blocks >= _CHUNK_BLOCKS:
                chunks.append([])
                num_blocks = 0
            chunks[-1].append(event)
            num_blocks += _num_blocks(event)
        return chunks


def _num_blocks(event: KvEvent) -> int:
    """Blocks that an event is about."""
    if isinstance(event, AllBlocksCleared):
        return 0
    return len(event.hashes)
