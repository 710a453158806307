"""What a baseline's router knows of its replicas: the requests it has sent there, and the prompts it has sent before.

A baseline has no queue: it sends every request on as it comes, and the engine queues it, as the routers do that they
stand for. With several gateways each has its own view.
"""

from collections import OrderedDict
from collections.abc import Sequence

from gateway.simulation.block_cache import BlockCache
from gateway.simulation.recording import RecordedRequest


class SentBlocks:
    """Blocks that were sent to one replica, the latest kept: a guess at its cache without being told."""

    __slots__ = ("_blocks", "_most")

    def __init__(self, most: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._blocks)

    def depth(self, names: Sequence[int]) -> int:
        """Leading blocks of `names` that are remembered. Changes nothing."""
        blocks = self._blocks
        for depth, name in enumerate(names):
            if name not in blocks:
                return depth
        return len(names)

    def note(self, names: Sequence[int]) -> None:
        """Sent just now; the tail is forgotten first."""
        blocks = self._blocks
        for name in reversed(names):
            blocks[name] = None
            blocks.move_to_end(name)
        while len(blocks) > self._most:
            blocks.popitem(last=False)


class Load:
    """What a replica was sent and has not finished. `unread_tokens`: of prompts not read, without what should hit."""

    __slots__ = ("blocks", "num_requests", "unread_tokens")

    def __init__(self) -> None:
        self.num_requests = 0
        self.unread_tokens = 0
        self.blocks = 0


class BaselineView:
    """Loads and prompts by replica number. `caches`: what the replicas really hold, as their events tell at once."""

    def __init__(self, caches: Sequence[BlockCache], block_tokens: int, names: Sequence[str]) -> None:
        self.names = names
        self.block_tokens = block_tokens
        self.caches = caches
        self.loads = [Load() for _ in names]

    @property
    def num_replicas(self) -> int:
        """Of the fleet."""
        return len(self.names)

    def hittable(self, request: RecordedRequest) -> tuple[int, ...]:
        """The blocks of it that a cache can answer: not the one with the last token."""
        return request.blocks[: (request.prompt_tokens - 1) // self.block_tokens]

    def num_blocks(self, request: RecordedRequest) -> int:
        """That it holds while it is answered, but for its answer."""
        return -(-request.prompt_tokens // self.block_tokens)

    def fewest(self, among: Sequence[int] | None = None) -> list[int]:
        """The replicas with the fewest requests."""
        loads = self.loads
        numbers = range(len(loads)) if among is None else among
        least = min(loads[number].num_requests for number in numbers)
        return [number for number in numbers if loads[number].num_requests == least]
