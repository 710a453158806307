"""A small fleet for the routing tests: a pool, a router, and requests made of text."""

from collections.abc import Iterable

from cache_affinity.kv_events import TokenChain
from cache_affinity.prefix import PrefixKey, prefix_key
from cache_affinity.ratio import TokenRatios
from policies.lane import Lane
from routing.decision import RouteDecision
from routing.lease import Lease
from routing.pool import ReplicaPool
from routing.pool_settings import PoolSettings
from routing.query import RouteQuery
from routing.replica import ReplicaSpec, ReplicaState
from routing.router import Router


def spec(name: str, **changes) -> ReplicaSpec:
    """A replica of model `m` with 16 seats."""
    values = {"model": "m", "engine": "warmlane", "url": f"http://{name}", "seats": 16} | changes
    return ReplicaSpec(name=name, **values)


def key_of(*segments: str, salt: str = "alder", model: str = "m") -> PrefixKey:
    """The key of some messages."""
    return prefix_key(model, salt, [segment.encode() for segment in segments])


class Fleet:
    """Ready replicas r1..rN behind one router. `now` is moved by hand."""

    def __init__(self, num: int, settings: PoolSettings | None = None, **changes) -> None:
        self.now = 100.0
        self.pool = ReplicaPool(settings)
        self.router = Router(self.pool, TokenRatios())
        for number in range(1, num + 1):
            self.add(f"r{number}", **changes)

    def add(self, name: str, **changes) -> None:
        """One more ready replica."""
        self.pool.upsert(spec(name, **changes), self.now)
        assert self.pool.move(name, ReplicaState.READY)

    def query(
        self,
        *segments: str,
        lane: Lane = Lane.INTERACTIVE,
        excluded: Iterable[str] = (),
        salt: str = "alder",
        tokens: TokenChain | None = None,
    ):
        """A request of these messages, with its tokens where they are known."""
        key = key_of(*segments, salt=salt)
        return RouteQuery("m", key, lane, "alder", excluded=frozenset(excluded), tokens=tokens)

    def route(self, *segments: str, **options):
        """What the router says."""
        return self.router.route(self.query(*segments, **options), self.now)

    def dispatch(self, *segments: str, read: bool = True, **options) -> Lease:
        """Route and take the seat; with `read` the prompt is read at once and the request only decodes."""
        decision = self.route(*segments, **options)
        assert isinstance(decision, RouteDecision), decision
        lease = self.pool.lease(decision, self.now)
        assert lease is not None
        if read:
            lease.prefilled()
        return lease

    def hold(
        self, name: str, num: int, text: str = "long", read: bool = True, lane: Lane = Lane.INTERACTIVE
    ) -> list[Lease]:
        """`num` open requests with unseen prompts on one replica, whatever the router would say."""
        others = [replica.name for replica in self.pool if replica.name != name]
        return [
            self.dispatch(f"{text} {name} {number}" * 50, excluded=others, read=read, lane=lane)
            for number in range(num)
        ]
