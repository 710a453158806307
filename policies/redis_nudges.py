"""Messages that say "look now", from one process to the others through Redis. A lost one is made up for by polling."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from policies.redis_link import RedisLink, pause_s
from policies.store import StoreError

SILENT_S = 5.0  # chosen: so long a silence is asked about, so that a server that hangs is left for its successor


async def nudges(link: RedisLink, channel: str) -> AsyncGenerator[bytes, None]:
    """Each message, and an empty one after each (re)connection, since something may have been missed.

    Goes on until it is closed or cancelled, whatever happens to Redis meanwhile.
    """
    num_faults = 0
    while True:
        redis = None
        try:
            redis = await link.dedicated()
            async with redis.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(channel)
                yield b""
                num_faults = 0
                async with aclosing(_messages(subscription)) as messages:
                    async for message in messages:
                        yield message
        except (RedisError, OSError, TimeoutError, StoreError):
            num_faults += 1
        finally:
            if redis is not None:
                await redis.aclose(close_connection_pool=True)
        await asyncio.sleep(pause_s(num_faults))


async def _messages(subscription: PubSub) -> AsyncGenerator[bytes, None]:
    """What comes; ends with `TimeoutError` when a server that was asked says nothing."""
    is_asked = False
    while True:
        message = await subscription.get_message(timeout=SILENT_S)
        if message is None:
            if is_asked:
                raise TimeoutError
            await subscription.ping()
            is_asked = True
            continue
        is_asked = False
        if message["type"] == "message":
            yield message["data"]
