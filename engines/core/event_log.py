"""What can be hit, by medium, and the events that tell others about it. Pure accounting, used from one thread.

A block may have several copies in a medium; others hear of the first to come and the last to go. Parents are announced
before their children and go after them, so that whoever follows the events holds whole prefixes at every moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engines.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, Medium

_MAX_PENDING = 1 << 16  # blocks; chosen: a step of 64 sequences makes some thousands at most


@dataclass(slots=True)
class _Content:
    """What a name stands for, and how many copies there are in a medium."""

    parent: bytes | None
    tokens: tuple[int, ...]
    salt: str
    num_copies: int = 1


class KvEventLog:
    """Names that can be hit now, and events since they were last taken.

    Nothing is gathered until `gather` is called. If nobody takes the events they are dropped at `max_pending` blocks,
    and whoever takes them later gets everything anew.
    """

    def __init__(self, block_size: int, max_pending: int = _MAX_PENDING) -> None:
        self._block_size = block_size
        self._max_pending = max_pending
        # Insertion order puts parents first: a name that comes anew comes after its parent, which has been there since.
        self._contents: dict[Medium, dict[bytes, _Content]] = {medium: {} for medium in Medium}
        self._pending: list[KvEvent] = []
        self._num_pending = 0
        self._removing: list[bytes] = []  # of one medium; becomes one event
        self._removing_from = Medium.DEVICE
        self._is_gathering = False
        self._must_resend = False

    def __repr__(self) -> str:
        device, host = (len(self._contents[medium]) for medium in (Medium.DEVICE, Medium.HOST))
        return f"<KvEventLog device={device} host={host} pending={self._num_pending}>"

    def gather(self) -> None:
        """Keep events from now on; the first ones tell what is there already."""
        self._is_gathering = True
        self.resend()

    def resend(self) -> None:
        """Let the next that are taken say everything anew, after an `AllBlocksCleared`."""
        self._drop_pending()
        self._must_resend = self._is_gathering

    def stored(
        self, medium: Medium, hashes: Sequence[bytes], parent: bytes | None, tokens: Sequence[int], salt: str
    ) -> None:
        """Consecutive blocks behind `parent` have one more copy each. `tokens`: of all of them."""
        size, contents = self._block_size, self._contents[medium]
        start = 0  # of the run of blocks that are new
        for index, digest in enumerate(hashes):
            content = contents.get(digest)
            if content is not None:
                content.num_copies += 1
                self._tell_stored(medium, hashes[start:index], salt)
                start = index + 1
                continue
            before = hashes[index - 1] if index else parent
            contents[digest] = _Content(before, tuple(tokens[index * size : (index + 1) * size]), salt)
        self._tell_stored(medium, hashes[start:], salt)

    def removed(self, medium: Medium, digest: bytes) -> None:
        """A block has one copy less."""
        content = self._contents[medium][digest]
        content.num_copies -= 1
        if content.num_copies:
            return
        del self._contents[medium][digest]
        if not self._is_gathering or self._must_resend:
            return
        if self._removing_from is not medium:
            self._end_removal()
            self._removing_from = medium
        self._removing.append(digest)
        self._count(1)

    def copied(self, hashes: Sequence[bytes], *, source: Medium, target: Medium) -> None:
        """A path from its very front, whose blocks are in `source`, has one more copy in `target`."""
        contents = [self._contents[source][digest] for digest in hashes]
        tokens = [token for content in contents for token in content.tokens]
        self.stored(target, hashes, None, tokens, contents[0].salt)

    def cleared(self) -> None:
        """Nothing can be hit any more."""
        for contents in self._contents.values():
            contents.clear()
        self._drop_pending()
        self._must_resend = False
        if self._is_gathering:
            self._pending.append(AllBlocksCleared())

    def take(self) -> tuple[KvEvent, ...]:
        """Events since the last call, in order."""
        if self._must_resend:
            self._must_resend = False
            return (AllBlocksCleared(), *self.snapshot())
        self._end_removal()
        events = tuple(self._pending)
        self._drop_pending()
        return events

    def snapshot(self) -> tuple[KvEvent, ...]:
        """The events that make what can be hit now out of nothing. Changes nothing."""
        return tuple(
            BlockStored((digest,), content.parent, content.tokens, self._block_size, content.salt, medium)
            for medium, contents in self._contents.items()
            for digest, content in contents.items()
        )

    def copies(self, medium: Medium) -> dict[bytes, int]:
        """How many copies of which block there are (a new dict)."""
        return {digest: content.num_copies for digest, content in self._contents[medium].items()}

    def _tell_stored(self, medium: Medium, hashes: Sequence[bytes], salt: str) -> None:
        if not hashes or not self._is_gathering or self._must_resend:
            return
        self._end_removal()
        contents = [self._contents[medium][digest] for digest in hashes]
        tokens = tuple(token for content in contents for token in content.tokens)
        self._pending.append(BlockStored(tuple(hashes), contents[0].parent, tokens, self._block_size, salt, medium))
        self._count(len(hashes))

    def _end_removal(self) -> None:
        if self._removing:
            self._pending.append(BlockRemoved(tuple(self._removing), self._removing_from))
            self._removing.clear()

    def _count(self, num_blocks: int) -> None:
        self._num_pending += num_blocks
        if self._num_pending > self._max_pending:
            self.resend()

    def _drop_pending(self) -> None:
        self._pending.clear()
        self._removing.clear()
        self._num_pending = 0
