"""The door to Redis: a client with few connections, a bound on every call, and faults named by whose they are.

A call that finds no free connection in time is `StoreBusy`: the store is well, we ask too much of it. One that gets no
answer in time is a fault of the store; after a few in a row calls fail at once for a growing while, so that nobody
waits for a store that is away. Holds no rule.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, WatchError

from policies.store import StoreError

R = TypeVar("R")

CALL_S = 0.1  # P17: a call off the request path that takes longer has failed
WAIT_S = 1.0  # for a free connection
NUM_CONNECTIONS = 4
FAULTS_BEFORE_PAUSE = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
SCHEMES = ("redis", "rediss", "unix")


class StoreBusy(StoreError):
    """No connection became free in time. Says nothing against the store itself."""


class RedisLink:
    """Calls to one Redis. `name`: host and port, never the password. For one event loop."""

    def __init__(
        self,
        url: str,
        *,
        call_s: float = CALL_S,
        wait_s: float = WAIT_S,
        num_connections: int = NUM_CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect at the first call. Raises `StoreError` for a URL that is none of `SCHEMES`."""
        self.name = _name_of(url)
        self.call_s = call_s
        self.num_faults = 0  # in a row
        self._url = url
        self._wait_s = wait_s
        self._clock = clock
        self._paused_until = 0.0
        self._free = asyncio.Semaphore(num_connections)
        self._redis = _client(url, num_connections, call_s)

    @property
    def is_available(self) -> bool:
        """Whether the last call was answered, or none was made yet."""
        return self.num_faults == 0

    async def call(self, work: Callable[[Redis], Awaitable[R]], *, timeout_s: float | None = None) -> R:
        """The outcome of `work`. Raises `StoreBusy`, `StoreError`; `WatchError` passes, it is an answer."""
        if self._clock() < self._paused_until:
            raise StoreError(f"the store {self.name} does not answer; it will be tried again shortly")
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise StoreBusy(f"every connection to the store {self.name} is in use") from None
        try:
            async with asyncio.timeout(timeout_s or self.call_s):
                answer = await work(self._redis)
        except WatchError:
            self._note_answer()
            raise
        except (RedisError, OSError, TimeoutError) as error:
            self._note_fault()
            reason = str(error) or "no answer in time"
            raise StoreError(f"the store {self.name} failed: {reason}") from error
        finally:
            self._free.release()
        self._note_answer()
        return answer

    async def check(self) -> None:
        """Raise `StoreError` for a Redis that cannot be used: one that evicts what leases rest on, or a Cluster."""
        found = await self.call(lambda redis: redis.info("everything"), timeout_s=self._wait_s)
        if int(found.get("maxmemory", 0)) and found.get("maxmemory_policy") != "noeviction":
            raise StoreError(
                f"the store {self.name} evicts keys when its memory is full; set maxmemory-policy noeviction"
            )
        if found.get("redis_mode") == "cluster":
            raise StoreError(f"the store {self.name} is a Redis Cluster, which this version does not support")

    def dedicated(self) -> Redis:
        """A client of its own for a subscription, which waits for messages without a bound. Close it."""
        return _client(self._url, 1, max(self.call_s, 1.0))

    async def close(self) -> None:
        """Let go of every connection. Harmless the second time."""
        await self._redis.aclose(close_connection_pool=True)

    def __repr__(self) -> str:
        return f"<RedisLink {self.name} {'available' if self.is_available else f'faults={self.num_faults}'}>"

    def _note_answer(self) -> None:
        self.num_faults = 0

    def _note_fault(self) -> None:
        self.num_faults += 1
        if (beyond := self.num_faults - FAULTS_BEFORE_PAUSE) >= 0:
            self._paused_until = self._clock() + pause_s(beyond)


def pause_s(num_before: int) -> float:
    """How long to leave a store alone after so many pauses: doubling, bounded, and not in step with other gateways."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(num_before, 16))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  # nothing secret


def _client(url: str, num_connections: int, connect_s: float) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=num_connections,
            timeout=None,  # we queue in front of it, so a wait here is never taken for a fault
            socket_connect_timeout=connect_s,
            # NOTE: who calls bounds the whole call. With a bound here redis-py goes through asyncio.wait_for, which
            # before Python 3.12 swallows a cancellation that meets the answer.
            socket_timeout=None,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),  # who calls decides whether a call may be repeated
            protocol=2,
            client_name="warmlane",
        )
    except (RedisError, ValueError) as error:
        raise StoreError(f"the store {_name_of(url)} has a URL that cannot be used: {error}") from error
    return Redis(connection_pool=pool)


def _name_of(url: str) -> str:
    """Scheme, host, port and path of a URL: what may be logged of it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise StoreError("the store's URL cannot be read") from error
    if parts.scheme not in SCHEMES:
        raise StoreError(f"a store of the kind {parts.scheme!r} is not supported; one of {', '.join(SCHEMES)} is")
    return f"{parts.scheme}://{parts.hostname or ''}{f':{port}' if port else ''}{parts.path}"
