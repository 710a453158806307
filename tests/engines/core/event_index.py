"""What somebody knows of a worker's cache who has heard its events and nothing else."""

from collections import Counter
from collections.abc import Iterable

from engines.core.blocks import hash_block
from engines.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, Medium


class EventIndex:
    """Plain dicts by medium. Refuses events that a real index could not make sense of."""

    def __init__(self, events: Iterable[KvEvent] = ()):
        self.clear()
        self.apply(events)

    def __eq__(self, other):
        return isinstance(other, EventIndex) and self.blocks == other.blocks

    __hash__ = None

    def clear(self):
        self.blocks = {medium: {} for medium in Medium}  # digest: (parent, tokens, salt)
        self.num_children = {medium: Counter() for medium in Medium}

    def hashes(self, medium: Medium) -> set[bytes]:
        return set(self.blocks[medium])

    def apply(self, events: Iterable[KvEvent]):
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.clear()

    def _store(self, event):
        blocks, size, parent = self.blocks[event.medium], event.block_size, event.parent
        assert len(event.tokens) == size * len(event.hashes) > 0
        for number, digest in enumerate(event.hashes):
            tokens = event.tokens[number * size : (number + 1) * size]
            assert digest == hash_block(parent or b"", tokens, event.salt), "a name that is not its block's"
            assert digest not in blocks, "stored twice"
            assert parent is None or parent in blocks, "stored before its parent"
            blocks[digest] = (parent, tokens, event.salt)
            self.num_children[event.medium][parent] += 1
            parent = digest

    def _remove(self, event):
        assert event.hashes
        for digest in event.hashes:
            parent, _, _ = self.blocks[event.medium].pop(digest)
            assert not self.num_children[event.medium][digest], "removed before its children"
            self.num_children[event.medium][parent] -= 1
