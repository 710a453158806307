"""One replica's stream of KV events, from its sockets into the exact index.

What to do with a batch is decided in `cache_affinity/event_stream.py`; here are only the sockets and the clock. With
`kv_streams` the only module of the gateway that knows ZeroMQ.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator

import zmq
import zmq.asyncio

from cache_affinity.event_stream import Action, Apply, AskAgain, Clear, EventStream, Standing
from cache_affinity.exact import ExactIndex
from engines.kv_event_wire import (
    END_SEQUENCE,
    MAX_PAYLOAD_BYTES,
    MalformedBatch,
    read_batch,
    read_end,
    read_sequence,
    write_sequence,
)
from gateway.kv_sources import KvSource
from observability import logs

TICK_S = 0.5  # chosen: a quarter of how long an answer may take
MAX_UNREAD = 10_000  # messages that wait for us; what is lost beyond is noticed and asked for
_TURN = 16  # messages, some 1 ms of work; then the loop has its turn


class KvSubscriber:
    """Follows one replica's source until cancelled. Ends nothing by itself: a source that is silent is asked again."""

    def __init__(self, replica: str, source: KvSource, index: ExactIndex, clock: Callable[[], float]) -> None:
        self.replica = replica
        self.source = source
        self.stream = EventStream(can_ask=source.replay is not None)
        self.num_refused = 0
        self._index = index
        self._clock = clock
        self._standing = Standing.UNKNOWN
        self._asking: asyncio.Task[None] | None = None
        self._is_over = False
        self._num_asked = 0
        self._num_turn = 0

    def __repr__(self) -> str:
        return f"<KvSubscriber {self.replica} {self.source.endpoint} {self.stream!r}>"

    def leave(self) -> None:
        """Forget the replica's blocks at once and touch the index no more: another may follow it from now on."""
        if not self._is_over:
            self._is_over = True
            self._index.forget(self.replica)

    async def run(self, context: zmq.asyncio.Context) -> None:
        """Subscribe and follow, until cancelled; what is known of the replica is forgotten then. Raises `ZMQError`."""
        problem: BaseException | None = None
        with _socket(context, zmq.SUB) as stream:
            stream.setsockopt(zmq.RCVHWM, MAX_UNREAD)
            stream.subscribe(self.source.topic)
            stream.connect(self.source.endpoint)
            try:
                async with asyncio.TaskGroup() as group:
                    await self._follow(stream, group, context)
            except* zmq.ZMQError as errors:
                problem = errors.exceptions[0]
            finally:
                self.leave()
        if problem is not None:
            raise problem

    async def _follow(self, stream: zmq.asyncio.Socket, group: asyncio.TaskGroup, context: zmq.asyncio.Context) -> None:
        self._act(self.stream.begin(self._clock()), group, context)
        group.create_task(self._tick(group, context))
        while True:
            self._hear(await stream.recv_multipart(), group, context)
            await self._breathe()

    def _hear(self, frames: list[bytes], group: asyncio.TaskGroup, context: zmq.asyncio.Context) -> None:
        """A message of the stream."""
        sequence = _number(frames) if len(frames) == 3 else None
        if sequence is None:
            self.num_refused += 1
            return
        now = self._clock()
        try:
            batch = read_batch(sequence, frames[-1])
        except MalformedBatch as error:
            logs.get().warning("kv_events.malformed", replica=self.replica, reason=str(error))
            self._act(self.stream.broken(sequence, now), group, context)
            return
        self.num_refused += batch.num_refused
        self._act(self.stream.live(batch, now), group, context)

    def _act(self, actions: Iterable[Action], group: asyncio.TaskGroup, context: zmq.asyncio.Context) -> None:
        """Do what the stream's rules say, and say what is known now."""
        if self._is_over:
            return
        for action in actions:
            match action:
                case Apply(events):
                    num_dropped = self._index.num_dropped
                    self._index.apply(self.replica, events)
                    if not num_dropped and self._index.num_dropped:  # the first time only: it goes on from there
                        logs.get().warning("kv_index.full", max_blocks=self._index.max_blocks)
                case Clear(reason):
                    num_blocks = self._index.clear(self.replica)
                    log = logs.get().info if num_blocks else logs.get().debug
                    log("kv_events.cleared", replica=self.replica, reason=reason, blocks=num_blocks)
                case AskAgain(sequence):
                    if self._asking is not None:
                        self._asking.cancel()
                    self._asking = group.create_task(self._ask(sequence, group, context))
        standing = self.stream.standing
        if standing is not self._standing:
            self._standing = standing
            is_known = standing is not Standing.UNKNOWN
            self._index.mark(self.replica, is_known=is_known, is_partial=standing is Standing.PARTIAL)
            logs.get().debug("kv_events.standing", replica=self.replica, standing=standing.value)

    async def _tick(self, group: asyncio.TaskGroup, context: zmq.asyncio.Context) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._act(self.stream.tick(self._clock()), group, context)

    async def _ask(self, sequence: int, group: asyncio.TaskGroup, context: zmq.asyncio.Context) -> None:
        """Ask for batches from `sequence` on. On a socket of its own, so that no answer is taken for another's.

        A later asking ends this one; being cancelled is not enough, for messages that have come are received at once.
        """
        assert self.source.replay is not None, "only who can answer is asked"
        self._num_asked = asked = self._num_asked + 1
        with _socket(context, zmq.DEALER) as asking:
            asking.setsockopt(zmq.RCVHWM, 0)  # an answer is as long as what is kept; the engine bounds it
            asking.connect(self.source.replay)
            await asking.send_multipart((b"", write_sequence(sequence)))
            while True:
                frames = await asking.recv_multipart()
                if asked != self._num_asked:
                    return
                number = _number(frames)
                if number == END_SEQUENCE:
                    break
                if number is not None:
                    self._act(self._again(number, frames[-1]), group, context)
                await self._breathe()
        self._asking = None  # or it would be cancelled by what the end brings
        end = read_end(frames[-1])
        now = self._clock()
        actions = self.stream.answered(now, generation=end.generation, next_sequence=end.next_sequence)
        self._act(actions, group, context)

    def _again(self, number: int, payload: bytes) -> list[Action]:
        now = self._clock()
        try:
            return self.stream.again(read_batch(number, payload), now)
        except MalformedBatch:
            return self.stream.broken(number, now)

    async def _breathe(self) -> None:
        """Let others run after some messages: what has come already is received without waiting."""
        self._num_turn += 1
        if self._num_turn >= _TURN:
            self._num_turn = 0
            await asyncio.sleep(0)


def _number(frames: list[bytes]) -> int | None:
    """The number in the last frame but one; None for what is no batch."""
    try:
        return read_sequence(frames[-2]) if len(frames) >= 2 else None
    except MalformedBatch:
        return None


@contextlib.contextmanager
def _socket(context: zmq.asyncio.Context, kind: int) -> Iterator[zmq.asyncio.Socket]:
    made = context.socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.IPV6, 1)  # names may lead to either
    made.setsockopt(zmq.MAXMSGSIZE, MAX_PAYLOAD_BYTES)
    try:
        yield made
    finally:
        made.close(linger=0)
