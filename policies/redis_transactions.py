"""One change to the Redis store: read, decide, and write all of it or nothing. Holds no rule.

Every change raises the revision, so watching the hash that holds it makes changes happen one after the other, over all
processes: a change that was overtaken is tried again on what is there now.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import WatchError

from policies.redis_link import RedisLink, StoreBusy
from policies.redis_rows import Names, T, decode, decode_digest
from policies.store import KeyDigest, StoreError, UnknownId

R = TypeVar("R")

CHANGE_S = 1.0  # a change takes five round trips, and the admin plane can wait for them
MAX_TRIES = 50  # chosen: each time some other change succeeded

Commands = list[tuple[Any, ...]]
Work = Callable[["Reader"], Awaitable[tuple[R, Commands]]]


class Reader:
    """What the store holds, during a change or on its own. `pipe` answers each command at once."""

    def __init__(self, pipe: Any, names: Names) -> None:
        self._pipe = pipe
        self._names = names

    async def one(self, kind: type[T], item_id: str) -> T:
        """The item of this kind and id. Raises `UnknownId`."""
        row = await self._pipe.hget(self._names.items(kind), item_id)
        if row is None:
            raise UnknownId(kind.__name__.lower(), item_id)
        return decode(kind, row)

    async def within(self, kind: type[T], parent_id: str) -> list[T]:
        """Every item of one parent, in order of creation."""
        ids = await self._pipe.zrange(self._names.order(kind, parent_id), 0, -1)
        rows = await self._pipe.hmget(self._names.items(kind), ids) if ids else []
        return [decode(kind, row) for row in rows if row is not None]

    async def digests_of(self, key_id: str) -> list[KeyDigest]:
        """Every secret of a key."""
        digests = sorted(await self._pipe.smembers(self._names.digests_of(key_id)))
        rows = await self._pipe.hmget(self._names.digests, digests) if digests else []
        return [decode_digest(digest, row) for digest, row in zip(digests, rows, strict=True) if row is not None]

    async def responses_of(self, project_id: str) -> list[str]:
        """The ids of what is kept of a project's answers."""
        return [one.decode() for one in await self._pipe.zrange(self._names.responses_of(project_id), 0, -1)]

    async def next_position(self) -> int:
        """The place of a new item in the order of creation."""
        return int(await self._pipe.hget(self._names.meta, "position") or 0) + 1


class Transactions:
    """Changes to one installation: `secret` tells it from an empty Redis that took its place."""

    def __init__(self, link: RedisLink, names: Names, secret: bytes) -> None:
        self._link = link
        self._names = names
        self._secret = secret
        self._turn = asyncio.Lock()  # our own changes need not overtake each other

    async def change(self, work: Work[R]) -> R:
        """What `work` decided, once the commands it gave are done. No command: nothing changed.

        Raises what `work` raises, `StoreError`, and `StoreBusy` when others were always faster.
        """
        async with self._turn:
            for _ in range(MAX_TRIES):
                try:
                    return await self._link.call(
                        lambda redis: self._attempt(redis, work), timeout_s=CHANGE_S, key=self._names.meta
                    )
                except WatchError:
                    await asyncio.sleep(random.uniform(0, 0.01))  # noqa: S311  # out of step with the others
        raise StoreBusy(f"too many changes at once in the store {self._link.name}")

    def check(self, secret: bytes | None) -> None:
        """Raise `StoreError` unless this is the secret of the installation that was opened."""
        if secret != self._secret:
            found = "is empty" if secret is None else "holds another installation"
            raise StoreError(f"the store {self._link.name} {found} now; what this process opened is gone from it")

    async def _attempt(self, redis: Redis, work: Work[R]) -> R:
        async with redis.pipeline(transaction=True) as pipe:
            await pipe.watch(self._names.meta)
            self.check(await _answered(pipe.hget(self._names.meta, "server_secret")))
            outcome, commands = await work(Reader(pipe, self._names))
            if commands:
                await self._commit(pipe, commands)
            return outcome

    async def _commit(self, pipe: Pipeline, commands: Commands) -> None:
        pipe.multi()  # type: ignore[no-untyped-call]
        for command in commands:
            pipe.execute_command(*command)
        pipe.hincrby(self._names.meta, "revision", 1)
        pipe.publish(self._names.changed, b"")
        await pipe.execute()


async def _answered(command: Any) -> Any:
    """In a watching pipeline a command answers at once, which its type does not say."""
    return await command
