"""Which Redis server to talk to: the only one, the primary that Sentinel names, or the owner of a key in a Cluster.

Where things are is found out in the background, one search at a time, so that a call that runs out of time ends no
search that the next one needs. Every call then goes to one plain server. A primary that was frozen or cut off answers
as if nothing had been, and what it is given is thrown away once Sentinel has told it: so the sentinels are asked again
and again, whether or not calls fail. Holds no rule.
"""

import asyncio
import random
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, RedisError, TryAgainError
from redis.sentinel import MasterNotFoundError

from policies.redis_address import Address, Layout, Place
from policies.store import StoreError

R = TypeVar("R")
Work = Callable[[Redis], Awaitable[R]]

MAX_REDIRECTS = 8  # chosen: a slot moves once; more is a Cluster that does not agree with itself
WAIT_FOR_MOVE_S = 0.02  # for keys of one call of which some have moved to another server and some have not
MAX_KNOWN = 256  # servers of a Cluster, gone ones included, that may be asked who owns what
SEARCH_S = 1.0  # for a whole search; one server that hangs takes a part of it
ASK_ONE_S = 0.2
BELIEVED_S = 1.0  # chosen: for so long after a search a primary is taken for the primary without asking
LATE_S = 0.4  # chosen: a primary that answers within it was not replaced meanwhile; Sentinel needs longer to miss it
WAIT_FOR_SENTINELS = 0.5  # chosen: of a call's time; who are slower leave things as they are known
WAIT_FOR_REST_S = 0.02  # chosen: the majority may not know yet of a failover that the sentinel which led it knows of


class Servers:
    """The servers of one store. For one event loop. Errors are redis-py's own."""

    def __init__(self, address: Address, num_connections: int, connect_s: float) -> None:
        self._address = address
        self._num_connections = num_connections
        self._connect_s = connect_s
        self._clients: dict[Place, Redis] = {}
        self._owners: tuple[list[int], list[Place]] | None = None  # first slots in order, and whose they are
        self._known: list[Place] = list(address.places)  # of a Cluster: who may be asked for the owners
        self._search: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._believed_until = 0.0  # by the loop's clock
        self._last_slot = 0  # of a call that named no key
        if address.layout is Layout.SOLE:
            place = address.places[0] if address.places else ("", 0)
            self._owners = ([0], [place])
            self._client(place)  # a URL that cannot be used is told now

    @property
    def places(self) -> frozenset[Place]:
        """Servers that take writes, as last known."""
        return frozenset(() if self._owners is None else self._owners[1])

    def where(self, key: str | None) -> Place | None:
        """The server that a call with this key goes to, if it is known."""
        if self._owners is None:
            return None
        first_slots, places = self._owners
        return places[bisect_right(first_slots, self._slot(key)) - 1]

    def doubt(self) -> None:
        """A call failed: look again where things are before the next one."""
        if self._address.layout is not Layout.SOLE:
            self._owners = None

    async def run(self, work: Work[R], key: str | None) -> R:
        """The outcome of `work` at the server that has the key, also while it moves to another. Bound the time."""
        place = await self._owner(key)
        for _ in range(MAX_REDIRECTS):
            try:
                return await self._answered(work, place)
            except MovedError as error:
                place = self._moved(error, key)
            except AskError as error:  # this key has moved already, its slot has not
                try:
                    return await work(_Asking(connection_pool=self._client((error.host, error.port)).connection_pool))
                except (AskError, TryAgainError):
                    await asyncio.sleep(WAIT_FOR_MOVE_S)
            except TryAgainError:
                await asyncio.sleep(WAIT_FOR_MOVE_S)
            except (ReadOnlyError, ClusterDownError):
                self.doubt()
                raise
        raise ClusterDownError("the Cluster sends calls from server to server")

    async def each(self) -> list[Redis]:
        """A client for every server that takes writes."""
        await self._owner(None)
        assert self._owners is not None, "just found"
        return [self._client(place) for place in dict.fromkeys(self._owners[1])]

    async def dedicated(self) -> Redis:
        """A client of its own for a subscription: at the primary, or at any server of a Cluster."""
        place = await self._owner(None)
        if self._address.layout is Layout.CLUSTER:
            place = random.choice(self._known)  # noqa: S311  # nothing secret
        return self._connect(place, 1, max(self._connect_s, 1.0))

    async def close(self) -> None:
        """Let go of every connection. Harmless the second time."""
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)
        for client in self._clients.values():
            await self._let_go(client)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _slot(self, key: str | None) -> int:
        if self._address.layout is not Layout.CLUSTER:
            return 0
        return self._last_slot if key is None else key_slot(key.encode())

    async def _owner(self, key: str | None) -> Place:
        if self._owners is not None and self._address.layout is Layout.SENTINEL:
            await self._ask_again()
        while (place := self.where(key)) is None:
            await asyncio.shield(self._searching())
        return place

    async def _ask_again(self) -> None:
        """Whether the primary is still the one, unless that was asked just now. Sentinels that fail change nothing."""
        if asyncio.get_running_loop().time() >= self._believed_until:
            await asyncio.wait([self._searching()], timeout=WAIT_FOR_SENTINELS * self._connect_s)

    async def _answered(self, work: Work[R], place: Place) -> R:
        """The outcome at this server. Raises `ConnectionError` if it was replaced meanwhile, as far as that is told."""
        loop = asyncio.get_running_loop()
        late_at = loop.time() + LATE_S
        answer = await work(self._client(place))
        if self._address.layout is not Layout.SENTINEL:
            return answer
        if self._owners is not None and place not in self.places:  # sentinels that were asked before and are slow
            raise ConnectionError("another server is the primary since")
        if loop.time() < late_at:
            return answer
        try:
            primary = await self._ask_sentinels(everyone=True)
        except (RedisError, OSError, TimeoutError):
            return answer  # nobody knows better
        if primary != place:
            self.doubt()
            raise ConnectionError("another server is the primary since")
        return answer

    def _searching(self) -> asyncio.Task[None]:
        """The search that is under way, or a new one."""
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._look())
            self._search.add_done_callback(_note_outcome)
        return self._search

    def _moved(self, error: MovedError, key: str | None) -> Place:
        """Where a slot is now; the whole map is read again before the next call."""
        if key is None:
            self._last_slot = error.slot_id
        self.doubt()
        return error.host or self._address.places[0][0], error.port

    async def _look(self) -> None:
        async with asyncio.timeout(SEARCH_S):
            if self._address.layout is Layout.SENTINEL:
                try:
                    self._owners = ([0], [await self._ask_sentinels()])
                finally:
                    self._believed_until = asyncio.get_running_loop().time() + BELIEVED_S
            else:
                self._owners = await self._ask_cluster()
                self._known = list(dict.fromkeys([*self._owners[1], *self._known]))[:MAX_KNOWN]
        await self._forget({*self._owners[1], *self._known})

    async def _ask_sentinels(self, *, everyone: bool = False) -> Place:
        """The primary of the latest failover that most of the named sentinels, or who answer soon after, know of.

        `everyone`: or all that answer at all.
        """
        enough = len(self._address.places) if everyone else len(self._address.places) // 2 + 1
        pending = {asyncio.create_task(self._ask_sentinel(one)) for one in self._address.places}
        found: list[tuple[int, Place]] = []
        fault: BaseException = MasterNotFoundError("no sentinel answers")
        try:
            while pending:
                patience_s = None if len(found) < enough else WAIT_FOR_REST_S
                done, pending = await asyncio.wait(pending, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for one in done:
                    if error := one.exception():
                        fault = error
                    else:
                        found.append(one.result())
        finally:
            for one in pending:
                one.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        if not found:
            raise fault
        return max(found)[1]

    async def _ask_sentinel(self, place: Place) -> tuple[int, Place]:
        """(number of the failover, primary) as one sentinel knows it. Raises redis-py's errors, also if it is down."""
        client = _connected(self._address.url_of_sentinel(place), 1, ASK_ONE_S, ASK_ONE_S)
        try:
            known = await client.sentinel_master(self._address.service)
        finally:
            await self._let_go(client)
        assert isinstance(known, dict), "the sentinel's fields by name"
        if not known["is_master"] or known["is_sdown"] or known["is_odown"]:
            raise MasterNotFoundError(f"the primary {self._address.service} is down")
        return int(known["config-epoch"]), (str(known["ip"]), int(known["port"]))

    async def _ask_cluster(self) -> tuple[list[int], list[Place]]:
        """The owners of all slots, as the first server that answers knows them."""
        fault: Exception = ClusterDownError("no server of the Cluster answers")
        for place in random.sample(self._known, len(self._known)):
            client = _connected(self._address.url_of(place), 1, ASK_ONE_S, ASK_ONE_S)
            try:
                found = await client.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
            except (RedisError, OSError, TimeoutError) as error:
                fault = error
                continue
            finally:
                await self._let_go(client)
            if found:
                return _owners(found, place)
        raise fault

    def _client(self, place: Place) -> Redis:
        client = self._clients.get(place)
        if client is None:
            client = self._clients[place] = self._connect(place, self._num_connections, self._connect_s)
        return client

    def _connect(self, place: Place, num_connections: int, connect_s: float) -> Redis:
        return _connected(self._address.url_of(place), num_connections, connect_s, None)

    async def _forget(self, kept: set[Place]) -> None:
        """Servers that are gone."""
        for place in [place for place in self._clients if place not in kept]:
            await self._let_go(self._clients.pop(place))

    async def _let_go(self, client: Redis) -> None:
        """Close its connections, also when whoever waits for that is cancelled: redis-py would leave them open."""
        leaving = asyncio.create_task(client.aclose(close_connection_pool=True))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        leaving.add_done_callback(_note_outcome)
        await asyncio.shield(leaving)


class _Asking(Redis):
    """Says before every command that it was sent here for a key which is on its way."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with self.pipeline(transaction=False) as pipe:
            pipe.execute_command("ASKING")
            pipe.execute_command(*args, **options)
            _, answer = await pipe.execute()
        return answer


def _owners(found: list[list[Any]], asked: Place) -> tuple[list[int], list[Place]]:
    """First slots and their places, from CLUSTER SLOTS: for each range [first, last, [host, port, …], replicas …]."""
    ranges = sorted((int(first), primary[0], int(primary[1])) for first, _, primary, *_ in found)
    hosts = [host.decode() if isinstance(host, bytes) else host for _, host, _ in ranges]
    places = [(host or asked[0], port) for host, (_, _, port) in zip(hosts, ranges, strict=True)]
    return [0, *(first for first, _, _ in ranges[1:])], places


def _connected(url: str, num_connections: int, connect_s: float, answer_s: float | None) -> Redis:
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=num_connections,
            timeout=None,  # we queue in front of it, so a wait here is never taken for a fault
            socket_connect_timeout=connect_s,
            # NOTE: who calls bounds the whole call. With a bound here redis-py goes through asyncio.wait_for, which
            # before Python 3.12 swallows a cancellation that meets the answer.
            socket_timeout=answer_s,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),  # who calls decides whether a call may be repeated
            protocol=2,
            client_name="warmlane",
        )
    except (RedisError, ValueError) as error:
        raise StoreError(f"the store has a URL that cannot be used: {error}") from error
    return Redis(connection_pool=pool)


def _note_outcome(task: asyncio.Task[None]) -> None:
    """Whoever waited for it has its error; nobody may have."""
    if not task.cancelled():
        task.exception()
