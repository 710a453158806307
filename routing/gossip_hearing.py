"""What other gateways tell, taken into this one's picture: their prompts, their load, what they learned. Pure.

Every message counts once. Loads are absolute and the newest stands, so a lost message is made up for by the next; what
a gateway has under way is forgotten when it leaves or falls silent, or when the replica is no longer that run of it.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from cache_affinity.gossip_notes import Load, Message
from cache_affinity.gossip_order import MessageOrder
from cache_affinity.gossip_wire import Malformed, UnknownVersion, decode, header_of
from cache_affinity.prefix import PrefixKey
from routing.gossip_digests import ReplicaDigests
from routing.gossip_learning import adopt, learn
from routing.replica import Replica
from routing.router import Router

SILENT_S = 2.0  # chosen: four times what a gateway with something under way is silent at most
MAX_GATEWAYS = 256  # of more, who was heard least recently is forgotten
MAX_LOADS = 4096  # replicas where one gateway has something under way


class _Share(NamedTuple):
    """What of a replica's load is one gateway's; see `Replica.add_others`."""

    rows: int
    tokens: int
    hidden_rows: int
    hidden_tokens: int


_NOTHING = _Share(0, 0, 0, 0)


class _Other:
    """One other gateway. `loads`: as it told them, by digest; `shares`: what is counted of them now."""

    __slots__ = ("heard_at", "loads", "order", "shares")

    def __init__(self, now: float) -> None:
        self.order = MessageOrder()
        self.heard_at = now
        self.loads: dict[int, Load] = {}
        self.shares: dict[int, tuple[Replica, _Share]] = {}


class Hearing:
    """The others as this gateway hears them. `gateway`: its own number. Set `installation` before `hear`.

    Call `rebind` when replicas came, went or began another life. `counts`: since the start, by word: `heard` messages
    of others, and `malformed`, `version` (of another), `stranger` (another installation's), `late` (repeated ones too)
    that were not taken in; `lost`: that never came.
    """

    def __init__(self, router: Router, digests: ReplicaDigests, gateway: int) -> None:
        self.installation = 0
        self._router = router
        self._pool = router.pool
        self._digests = digests
        self._gateway = gateway
        self._counts: Counter[str] = Counter()
        self._others: dict[int, _Other] = {}
        self._replicas: dict[int, Replica] = {}
        self.rebind()

    def __repr__(self) -> str:
        return f"<Hearing {len(self._others)} others, {dict(self.counts)}>"

    @property
    def num_others(self) -> int:
        """Other gateways that were heard lately."""
        return len(self._others)

    @property
    def counts(self) -> Mapping[str, int]:
        """What came of messages, by word."""
        lost = sum(other.order.num_lost for other in self._others.values())
        return {**self._counts, "lost": self._counts["lost"] + lost}

    def rebind(self) -> None:
        """Take the pool's replicas as they are now; what is under way at others is counted nowhere."""
        self._replicas = self._digests.keep(self._pool)
        for other in self._others.values():
            for digest in set(other.loads) | set(other.shares):
                self._count(other, digest)

    def hear(self, content: bytes, now: float) -> None:
        """Take in one message, whatever it is."""
        try:
            header = header_of(content)
            if header.gateway == self._gateway:
                return
            if header.installation != self.installation:
                self._counts["stranger"] += 1
                return
            message = decode(content)
        except Malformed:
            self._counts["malformed"] += 1
        except UnknownVersion:
            self._counts["version"] += 1
        else:
            self._take(message, now)

    def expire(self, now: float) -> int:
        """How many gateways have fallen silent and were forgotten, with what they had under way."""
        for unseen in self._pool.unseen.values():
            unseen.look(now)
        silent = [number for number, other in self._others.items() if now - other.heard_at > SILENT_S]
        for number in silent:
            self._forget(number)
        return len(silent)

    def _take(self, message: Message, now: float) -> None:
        header = message.header
        other = self._others.get(header.gateway)
        if other is None:
            if len(self._others) >= MAX_GATEWAYS:
                self._forget(min(self._others, key=lambda number: self._others[number].heard_at))
            other = self._others[header.gateway] = _Other(now)
        counts, is_newest = other.order.take(header.seq)
        if not counts:
            self._counts["late"] += 1
            return
        self._counts["heard"] += 1
        other.heard_at = now
        self._place(message, now)
        self._learn(message, now)
        if header.is_leaving:
            self._forget(header.gateway)
        elif is_newest:
            self._load(other, message)

    def _place(self, message: Message, now: float) -> None:
        """They are in the shadows as if they had been our own."""
        for digest, tokens, hashes, sizes in message.placements:
            replica = self._replicas.get(digest)
            if replica is not None:
                self._pool.unseen_of(replica.spec.model).heard(replica, tokens, now)
                replica.shadow.insert(PrefixKey(hashes, sizes, sizes[-1]), now)

    def _learn(self, message: Message, now: float) -> None:
        for settlement in message.settlements:
            replica = self._replicas.get(settlement.replica)
            if replica is not None:
                learn(self._router, replica, settlement, now)
        for estimates in message.estimates:
            replica = self._replicas.get(estimates.replica)
            if replica is not None:
                adopt(self._pool, replica, self._router.ratios.of(replica.spec.model), estimates, now)

    def _load(self, other: _Other, message: Message) -> None:
        told = {load.replica: load for load in message.loads}
        changed = set(told)
        if message.header.tells_all_loads:
            changed |= set(other.loads)
            other.loads = {}
        for digest in changed:
            load = told.get(digest)
            if load is None or not any(load[1:]):
                other.loads.pop(digest, None)
            elif len(other.loads) < MAX_LOADS or digest in other.loads:
                other.loads[digest] = load
            self._count(other, digest)

    def _count(self, other: _Other, digest: int) -> None:
        """Let the replica's load have what the gateway said last, in place of what it said before."""
        replica, load = self._replicas.get(digest), other.loads.get(digest)
        share = _NOTHING if replica is None or load is None else _share(replica, load)
        counted_at, counted = other.shares.pop(digest, (replica, _NOTHING))
        if counted_at is not None:
            counted_at.add_others(*(-number for number in counted))
        if replica is not None and share != _NOTHING:
            replica.add_others(*share)
            other.shares[digest] = replica, share

    def _forget(self, number: int) -> None:
        other = self._others.pop(number)
        self._counts["lost"] += other.order.num_lost
        other.loads = {}
        for digest in list(other.shares):
            self._count(other, digest)


def _share(replica: Replica, load: Load) -> _Share:
    hides_bulk = replica.spec.capabilities.leaves_bulk_out
    return _Share(
        load.interactive + load.standard + load.bulk, load.tokens + load.bulk_tokens, load.bulk * hides_bulk,
        load.bulk_tokens * hides_bulk,
    )  # fmt: skip
