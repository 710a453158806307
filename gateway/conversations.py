"""Responses that can be gone on with: found when a request names them, written down beside the path of requests.

What was told is found by this process at once, and by others when it is written, some milliseconds later. What cannot
be written is not kept: its client was answered all the same.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import Raw

from gateway.errors import ClientError, Refused
from gateway.fields import LARGE_BYTES
from gateway.outcome import Outcome
from gateway.responses_api.ids import is_response_id
from gateway.responses_api.named import named, responses_of
from gateway.responses_api.state import (
    MAX_REFERENCED_BYTES,
    Answered,
    Earlier,
    Kept,
    id_of,
    read_kept,
    too_much_referenced,
    written,
)
from gateway.settings import ResponsesSection
from observability import logs
from policies.kept_responses import KeptBound, KeptResponse, KeptResponses
from policies.store import StoreError

EXPIRE_EVERY_S = 300.0  # chosen: how long what is over may still lie there
PAUSES_S = (0.2, 1.0, 5.0)  # before another try to write
# Waits between looks into a shared store for what another gateway may have told just now.
LOOKS_AGAIN_S = (0.05, 0.15)
MAX_BATCH = 32  # written together
MAX_PENDING, MAX_PENDING_BYTES = 1024, 64 << 20  # chosen; of what is not written yet. More is not kept
SHARES = 4  # chosen: of these bounds, one project may have one of so many
MAX_TOLD_BYTES = 16 << 20  # chosen; of one: its answer may be far longer than what it was asked with
_HOUR_S = 3600.0
_MB = 1 << 20


_Name = tuple[str, str]  # project, id


@dataclass(frozen=True, slots=True)
class _Pending:
    answered: Answered
    expires_at: float
    num_bytes: int


class Conversations:
    """`settings`: those in force. `unix`: Unix seconds. `is_shared`: whether other gateways write to the store."""

    def __init__(
        self,
        store: KeptResponses,
        settings: Callable[[], ResponsesSection],
        unix: Callable[[], float],
        *,
        is_shared: bool = False,
        pauses_s: Iterable[float] = PAUSES_S,
    ) -> None:
        self._store = store
        self._settings = settings
        self._unix = unix
        self._looks_again_s = LOOKS_AGAIN_S if is_shared else ()
        self._pauses_s = tuple(pauses_s)
        self._pending: dict[_Name, _Pending] = {}
        self._pending_bytes = 0
        self._number_of: Counter[str] = Counter()  # of what waits, by project
        self._bytes_of: Counter[str] = Counter()
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()  # nothing is dropped while it is being written
        self.num_lost = 0

    @property
    def num_pending(self) -> int:
        """Responses that were told and are not written yet."""
        return len(self._pending)

    async def earlier(self, body: bytes, project_id: str) -> Earlier:
        """What a request names. Raises `ClientError` (404) for a response that is not there, `Refused` (503).

        What is wrong with the body otherwise is for its reader to say.
        """
        is_large = len(body) > LARGE_BYTES
        previous_id, ids = await asyncio.to_thread(named, body) if is_large else named(body)
        previous = None
        if previous_id is not None:
            previous = await self.find(project_id, previous_id)
            if previous is None:
                raise _not_found(previous_id, "previous_response_id", "previous_response_not_found")
        found = await self._referenced(project_id, ids) if ids else {}
        is_kept = self._settings().keep_hours > 0
        return Earlier(previous, found, partial(self.keep, project_id) if is_kept else None)

    async def _referenced(self, project_id: str, ids: AbstractSet[str]) -> dict[str, Raw]:
        """The items of these ids. Of each response only what is asked for is held on to."""
        found: dict[str, Raw] = {}
        left = MAX_REFERENCED_BYTES
        for response_id in responses_of(ids):
            kept = await self.find(project_id, response_id)
            if kept is None:
                break  # the request will be refused: nothing is waited for any more
            for item in kept.conversation():
                if (name := id_of(item)) in ids and name not in found:
                    found[name] = item.copy()
                    left -= len(item)
            if left < 0:
                raise too_much_referenced()
        return found

    def keep(self, project_id: str, answered: Answered) -> None:
        """A response that is told just now. Never waits."""
        num_bytes = sum(map(len, answered.items)) + len(answered.response)
        if num_bytes > MAX_TOLD_BYTES:
            self._lose(1, "it is too large")
            return
        self._forget((project_id, answered.id))
        if not self._has_room(project_id, num_bytes):
            self._lose(1, "too many wait to be written")
            return
        expires_at = self._unix() + self._settings().keep_hours * _HOUR_S
        # NOTE: items are views of the whole body, which may be far larger and would be held as well.
        before = len(answered.items) - answered.given
        items = [*answered.items[:before], *(item.copy() for item in answered.items[before:])]
        answered = answered._replace(items=items)
        self._pending[project_id, answered.id] = _Pending(answered, expires_at, num_bytes)
        self._pending_bytes += num_bytes
        self._bytes_of[project_id] += num_bytes
        self._number_of[project_id] += 1
        self._news.set()

    def _has_room(self, project_id: str, num_bytes: int) -> bool:
        """While the store is slow, no project may take the places of all others: of several, each has a quarter."""
        number, held = self._number_of[project_id], self._bytes_of[project_id]
        is_over_share = number >= MAX_PENDING // SHARES or held + num_bytes > MAX_PENDING_BYTES // SHARES
        if number and is_over_share:
            return False
        return len(self._pending) < MAX_PENDING and self._pending_bytes + num_bytes <= MAX_PENDING_BYTES

    async def find(self, project_id: str, response_id: str) -> Kept | None:
        """The response and its conversation; None for what is not there, or another project's. Raises `Refused`."""
        if not is_response_id(response_id):
            return None
        pending = self._pending.get((project_id, response_id))
        if pending is not None:
            made = await asyncio.to_thread(_written, pending.answered)
            return None if made is None else await _read(made)
        try:
            content = await self._store.kept_response(project_id, response_id)
            for wait_s in self._looks_again_s:
                if content is not None:
                    break
                await asyncio.sleep(wait_s)
                content = await self._store.kept_response(project_id, response_id)
        except StoreError:
            raise unavailable() from None
        return None if content is None else await _read(content)

    async def drop(self, project_id: str, response_id: str) -> bool:
        """Whether there was one, which is now gone. Raises `Refused`."""
        was_pending = self._forget((project_id, response_id))
        try:
            async with self._turn:
                return await self._store.drop_response(project_id, response_id) or was_pending
        except StoreError:
            raise unavailable() from None

    async def follow(self) -> None:
        """Write for ever, until cancelled; then once more what there is."""
        try:
            while True:
                try:
                    async with asyncio.timeout(EXPIRE_EVERY_S):
                        await self._news.wait()
                except TimeoutError:
                    await self._expire()
                while self._pending:
                    await self._write(self._pauses_s)
                self._news.clear()
        finally:
            while self._pending:
                await self._write(())

    async def _write(self, pauses_s: tuple[float, ...]) -> None:
        """The oldest that wait, together; after the last try they are lost. Who is cancelled leaves them waiting."""
        names = list(self._pending)[:MAX_BATCH]
        async with self._turn:
            try:
                await self._try(names, pauses_s)
            except StoreError as error:
                self._lose(len(names), str(error))
            for name in names:
                self._forget(name)

    async def _try(self, names: list[_Name], pauses_s: tuple[float, ...]) -> None:
        settings = self._settings()
        bound = KeptBound(settings.max_per_project, int(settings.max_mb_per_project * _MB))
        pending = {name: self._pending[name] for name in names if name in self._pending}
        contents = await asyncio.to_thread(lambda: {name: _written(one.answered) for name, one in pending.items()})
        kept = [
            KeptResponse(*name, pending[name].expires_at, content)
            for name, content in contents.items()
            if content is not None
        ]
        if len(kept) < len(pending):
            self._lose(len(pending) - len(kept), "it cannot be written down")
        for pause_s in (*pauses_s, None):
            try:
                # NOTE: one that was dropped meanwhile is no longer pending.
                await self._store.keep_responses(
                    [one for one in kept if (one.project_id, one.id) in self._pending], bound
                )
            except StoreError:
                if pause_s is None:
                    raise
                await asyncio.sleep(pause_s)
            else:
                return

    async def _expire(self) -> None:
        try:
            await self._store.expire_responses()
        except StoreError as error:
            logs.get().warning("responses.not_expired", error=str(error))

    def _forget(self, name: _Name) -> bool:
        found = self._pending.pop(name, None)
        if found is not None:
            self._pending_bytes -= found.num_bytes
            self._bytes_of[name[0]] -= found.num_bytes
            self._number_of[name[0]] -= 1
            if not self._number_of[name[0]]:
                del self._number_of[name[0]], self._bytes_of[name[0]]
        return found is not None

    def _lose(self, number: int, why: str) -> None:
        self.num_lost += number
        logs.get().warning("responses.not_kept", number=number, error=why)


def unavailable() -> Refused:
    """503: the store is away."""
    message = "earlier responses cannot be read now"
    return Refused(message, code="store_unavailable", status=503, retry_after_s=1.0, outcome=Outcome.SHED)


def not_there(response_id: str) -> ClientError:
    """404 for a response of this id."""
    return _not_found(response_id, None, "response_not_found")


def _not_found(response_id: str, param: str | None, code: str) -> ClientError:
    return ClientError(f"there is no response {response_id[:128]!r}", param=param, status=404, code=code)


def _written(answered: Answered) -> bytes | None:
    """What is kept of it; None for what cannot be, which must not keep others from being written."""
    try:
        return written(answered)
    except (msgspec.MsgspecError, RecursionError, KeyError):
        return None


async def _read(content: bytes) -> Kept | None:
    """What was kept; None for what nobody here can read."""
    try:
        if len(content) <= LARGE_BYTES:
            return read_kept(content)
    except (msgspec.MsgspecError, RecursionError):
        pass  # a thread has more room for what is nested deeply
    try:
        return await asyncio.to_thread(read_kept, content)
    except (msgspec.MsgspecError, RecursionError) as error:
        logs.get().warning("responses.unreadable", error=str(error))
        return None
