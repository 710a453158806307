"""Messages that say "look now", from one process to the others through Redis. A lost one is made up for by polling."""

import asyncio
from collections.abc import AsyncGenerator

from redis.exceptions import RedisError

from policies.redis_link import RedisLink, pause_s


async def nudges(link: RedisLink, channel: str) -> AsyncGenerator[bytes, None]:
    """Each message, and an empty one after each (re)connection, since something may have been missed.

    Goes on until it is closed or cancelled, whatever happens to Redis meanwhile.
    """
    num_faults = 0
    while True:
        redis = link.dedicated()
        try:
            async with redis.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(channel)
                yield b""
                num_faults = 0
                async for message in subscription.listen():
                    yield message["data"]
        except (RedisError, OSError, TimeoutError):
            num_faults += 1
        finally:
            await redis.aclose(close_connection_pool=True)
        await asyncio.sleep(pause_s(num_faults))
