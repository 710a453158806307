"""The first process of all makes the installation in Redis; the others find it. Holds no rule."""

from typing import Any

from redis.asyncio import Redis

from policies.keys import new_server_secret
from policies.redis_rows import VERSION, Names
from policies.store import StoreError


async def together(redis: Redis, commands: list[tuple[Any, ...]]) -> list[Any]:
    """The answers to all of them, as of one moment."""
    async with redis.pipeline(transaction=True) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        answers: list[Any] = await pipe.execute()
        return answers


async def install(redis: Redis, names: Names, name: str) -> bytes:
    """The server secret of the installation, which the first process of all makes. Raises `StoreError`."""
    first = {"version": VERSION, "server_secret": new_server_secret(), "revision": 0}
    *_, (version, secret) = await together(
        redis,
        [
            *(("HSETNX", names.meta, field, value) for field, value in first.items()),
            ("HMGET", names.meta, "version", "server_secret"),
        ],
    )
    if int(version) > VERSION:
        raise StoreError(f"the store {name} has version {int(version)}, this Warmlane knows up to {VERSION}")
    found: bytes = secret
    return found
