"""`CacheClaims` in Redis, for all gateways that share it. Holds no rule."""

from typing import Any

from redis.asyncio import Redis

from policies.redis_link import RedisLink

_PREFIX = "warmlane"


class RedisCacheClaims:
    """One hash: the engine's URL, the cache domain. `close` ends the link."""

    def __init__(self, link: RedisLink, *, prefix: str = _PREFIX) -> None:
        self._link = link
        self._key = f"{prefix}:{{store}}:cache_owners"

    async def claim(self, url: str, domain: str) -> str:
        """The owner. Raises `StoreError`."""
        commands = (("HSETNX", self._key, url, domain), ("HGET", self._key, url))
        _, owner = await self._link.call(lambda redis: _together(redis, *commands), key=self._key)
        return str(owner.decode())

    async def release(self, url: str) -> None:
        """No owner any more. Raises `StoreError`."""
        await self._link.call(lambda redis: _together(redis, ("HDEL", self._key, url)), key=self._key)

    async def owners(self) -> dict[str, str]:
        """The whole hash. Raises `StoreError`."""
        [found] = await self._link.call(lambda redis: _together(redis, ("HGETALL", self._key)), key=self._key)
        return {url.decode(): domain.decode() for url, domain in found.items()}

    async def close(self) -> None:
        """Let go of Redis."""
        await self._link.close()


async def _together(redis: Redis, *commands: tuple[str, ...]) -> list[Any]:
    async with redis.pipeline(transaction=True) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        answers: list[Any] = await pipe.execute()
        return answers
