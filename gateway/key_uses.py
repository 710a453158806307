"""When each key was last used: collected where requests end, told to the store in batches, coarse on purpose.

A key's time is written once a minute at most, so that a busy key costs no more than an idle one, and never on the path
of a request. What was not written when a process dies is a minute of truth lost, and nothing else.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import structlog

from policies.store import Store, StoreError

TELL_EVERY_S = 60.0  # of one key
LOOK_EVERY_S = 5.0

log = structlog.get_logger()


class KeyUses:
    """Of the keys that were used through this process. `clock`: Unix seconds. Holds a key for a minute at most."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._used_at: dict[str, int] = {}
        self._told_at: dict[str, float] = {}
        self._is_failing = False

    def note(self, key_id: str) -> None:
        """The key was used now."""
        self._used_at[key_id] = int(self._clock())

    async def tell(self, *, all_of_them: bool = False) -> int:
        """Write the keys that were not told of for a minute, or all; how many. A `StoreError` forgets none."""
        now = self._clock()
        self._told_at = {key: at for key, at in self._told_at.items() if 0 <= now - at < TELL_EVERY_S}
        due = {key: at for key, at in self._used_at.items() if all_of_them or key not in self._told_at}
        if not due:
            return 0
        await self._store.note_uses(due)
        for key, at in due.items():
            self._told_at[key] = now
            if self._used_at.get(key) == at:  # else used again meanwhile
                del self._used_at[key]
        return len(due)

    async def follow(self) -> None:
        """Tell for ever, until cancelled; then once more what there is. A store that is away is logged once."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                await self._try()
        finally:
            await self._try(all_of_them=True)

    async def _try(self, *, all_of_them: bool = False) -> None:
        try:
            await self.tell(all_of_them=all_of_them)
        except StoreError as error:
            if not self._is_failing:
                log.warning("key_uses.not_written", error=str(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def __len__(self) -> int:
        """How many keys wait to be told of."""
        return len(self._used_at)


@contextlib.asynccontextmanager
async def following(uses: KeyUses) -> AsyncIterator[asyncio.Task[None]]:
    """The task that tells the store inside the block."""
    task = asyncio.create_task(uses.follow(), name="key uses")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
