"""What a reader of a worker's KV events holds, beside what the worker says it holds."""

import msgspec
import zmq

from engines.kv_event_wire import END_SEQUENCE, read_end, read_sequence, write_sequence

_PATIENCE_MS = 20_000
Blocks = set[tuple[str, bytes]]  # medium, digest


class KvMirror:
    """Subscribes to the stream from its first batch on. Used from one thread; every wait ends.

    `gaps`: batches that were missed. NOTE: the worker must keep a single batch (`--kv-events-buffer-steps 1`), so that
    whoever asks for the first one is told all that the cache holds now.
    """

    def __init__(self, endpoint: str, replay_endpoint: str, topic: str) -> None:
        self._context = zmq.Context()
        self._stream = self._context.socket(zmq.SUB)
        self._stream.setsockopt(zmq.RCVHWM, 0)
        self._stream.setsockopt_string(zmq.SUBSCRIBE, topic)
        self._stream.connect(endpoint)
        self._replay_endpoint = replay_endpoint
        self._next: int | None = None
        self.blocks: Blocks = set()
        self.num_events = 0
        self.gaps = 0

    def __repr__(self) -> str:
        return f"<KvMirror next={self._next} blocks={len(self.blocks)}>"

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def drain(self, timeout_ms: int = 0) -> None:
        """Take in whatever has come."""
        while self._stream.poll(timeout_ms):
            _, number, payload = self._stream.recv_multipart()
            sequence = read_sequence(number)
            if self._next is not None and sequence != self._next:
                self.gaps += 1
            self._next = sequence + 1
            self.num_events += apply(payload, self.blocks)

    def follow_until(self, next_sequence: int) -> bool:
        """Take in all batches before this one; False if they do not come."""
        while self._next is not None and self._next < next_sequence:
            if not self._stream.poll(_PATIENCE_MS):
                return False
            self.drain()
        return True

    def join(self) -> None:
        """Start from what the worker holds now; only while nothing happens in it."""
        self.blocks, self._next = self.snapshot()

    def snapshot(self) -> tuple[Blocks, int]:
        """What the worker says it holds, and the number of the first batch that is not in it.

        Raises TimeoutError when it does not answer.
        """
        asking = self._context.socket(zmq.DEALER)
        blocks: Blocks = set()
        try:
            asking.connect(self._replay_endpoint)
            asking.send_multipart((b"", write_sequence(0)))
            while asking.poll(_PATIENCE_MS):
                _, _, number, payload = asking.recv_multipart()
                if read_sequence(number) == END_SEQUENCE:
                    end = read_end(payload)
                    assert end.next_sequence is not None, "the worker's own end says where it is"
                    return blocks, end.next_sequence
                apply(payload, blocks)
        finally:
            asking.close(linger=0)
        raise TimeoutError("the worker does not say what its cache holds")


def apply(payload: bytes, blocks: Blocks) -> int:
    """Change `blocks` by the events of a batch; how many there were. Repeats change nothing, as in a real index."""
    _, events, _ = msgspec.msgpack.decode(payload)
    for event in events:
        match event["type"]:
            case "AllBlocksCleared":
                blocks.clear()
            case "BlockStored":
                blocks |= {(event["medium"], digest) for digest in event["block_hashes"]}
            case "BlockRemoved":
                blocks -= {(event["medium"], digest) for digest in event["block_hashes"]}
    return len(events)
