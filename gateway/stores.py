"""The store that the configuration names: SQLite for one gateway, Redis where several share it."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from gateway.home import store_path
from gateway.settings import StoreSection
from policies.audit import AuditKeep
from policies.sqlite_lock import sqlite_held
from policies.sqlite_store import SqliteStore
from policies.store import Store

# Redis is loaded only where it is used: one process with SQLite pays nothing for it.


def store_name(section: StoreSection, home: Path) -> str:
    """The store as it may be shown, without a password. Raises `ConfigError`, `StoreError` for a URL of no store."""
    if not section.is_shared:
        return str(store_path(section.url, home))
    from policies.redis_link import RedisLink

    return RedisLink(section.url).name


@contextlib.asynccontextmanager
async def opened(section: StoreSection, home: Path, keep: AuditKeep = AuditKeep()) -> AsyncIterator[Store]:  # noqa: B008  # frozen
    """The store, made at the first start, closed at the end. Raises `ConfigError`, `StoreError`.

    `keep`: what its audit log keeps.
    """
    store: Store
    if section.is_shared:
        from policies.redis_store import RedisStore

        store = await RedisStore.open(section.url, keep=keep)
    else:
        store = await SqliteStore.open(store_path(section.url, home), keep=keep)
    try:
        yield store
    finally:
        await store.close()


@contextlib.contextmanager
def held(section: StoreSection, home: Path) -> Iterator[None]:
    """The store is this Warmlane's alone inside the block, unless it is one that gateways share.

    Raises `ConfigError`, `StoreError`; whoever only reads it need not hold it.
    """
    if section.is_shared:
        yield
        return
    with sqlite_held(store_path(section.url, home)):
        yield


async def is_made(section: StoreSection, home: Path) -> bool:
    """Whether there is something in the store, without making it. Raises `ConfigError`, `StoreError`."""
    if not section.is_shared:
        return store_path(section.url, home).exists()
    from policies.redis_leases import PREFIX
    from policies.redis_link import RedisLink
    from policies.redis_rows import Names

    link, meta = RedisLink(section.url), Names(PREFIX).meta
    try:
        await link.check()
        return bool(await link.call(lambda redis: redis.exists(meta), key=meta))
    finally:
        await link.close()
