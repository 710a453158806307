"""What a gateway process does beside its requests, for as long as it serves: it follows, probes, steers and tidies."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

from gateway.parts import Parts
from gateway.response_cache.cache import bounds_of
from policies.meters import Moment
from routing.seat_control import REFRESH_EVERY_S

TIDY_EVERY_S = 60.0  # chosen: the janitor's round
SHADOW_KEEP_S = 3600.0  # chosen: a prefix nobody used for an hour is forgotten; engines have evicted it long ago

Keeper = Callable[[], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def kept_up(parts: Parts, *others: Keeper) -> AsyncIterator[None]:
    """The parts are kept up inside the block and closed at its end. `others`: what goes on beside, until cancelled.

    Raises `StoreError` if the directory cannot be read at its beginning.
    """
    await parts.directory.refresh()
    own: tuple[Keeper, ...] = (
        parts.directory.follow,
        parts.fleet.watch,
        parts.isolation.follow,
        parts.kv_streams.run,
        partial(_tidy, parts),
        partial(_steer, parts),
    )
    gossip: tuple[Keeper, ...] = () if parts.gossip is None else (partial(parts.gossip.run, parts.directory),)
    async with asyncio.TaskGroup() as group:
        keepers = [group.create_task(keep()) for keep in own + gossip + others]
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()
    parts.fleet.close()
    parts.tokens.close()
    parts.recorder.flush()


async def _steer(parts: Parts) -> None:
    """Keep the seats of lower lanes as the load wants them, while there is any."""
    while True:
        await asyncio.sleep(REFRESH_EVERY_S)
        if parts.dispatch.num_waiting or parts.dispatch.num_turns:
            parts.seats.refresh()
            parts.bulk_runs.refresh()


async def _tidy(parts: Parts) -> None:
    """All periodic upkeep."""
    while True:
        await asyncio.sleep(TIDY_EVERY_S)
        now = parts.clock()
        parts.quotas.expire(Moment(now, parts.unix()))
        parts.router.pool.expire(now - SHADOW_KEEP_S)
        parts.kept_answers.expire(bounds_of(parts.settings.response_cache), now)
