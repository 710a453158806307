"""A line between gateways through Redis: whoever listens hears what the others publish. Holds no rule.

It has connections of its own, so that what is told here delays no lease and a fault here is none of theirs.
"""

from collections.abc import AsyncGenerator

from policies.redis_leases import PREFIX
from policies.redis_link import RedisLink
from policies.redis_nudges import nudges

CHANNEL = f"{PREFIX}:gossip"


class RedisLine:
    """The line at the Redis of `url`. For one event loop; raises `StoreError` for a URL of none."""

    def __init__(self, url: str, channel: str = CHANNEL) -> None:
        self._link = RedisLink(url, num_connections=1)
        self._channel = channel

    async def publish(self, content: bytes) -> None:
        """Tell it to whoever listens now. Raises `StoreError`."""
        await self._link.call(lambda redis: redis.publish(self._channel, content))

    def messages(self) -> AsyncGenerator[bytes, None]:
        """What is published, one's own too, and an empty one after each (re)connection; goes on until closed."""
        return nudges(self._link, self._channel)

    async def close(self) -> None:
        """Let go of every connection."""
        await self._link.close()

    def __repr__(self) -> str:
        return f"<RedisLine {self._channel} {self._link!r}>"
