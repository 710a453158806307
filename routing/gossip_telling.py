"""What this gateway tells the others: where prompts went, what it has under way, what it learned. Pure.

Notes are taken on the path of a request and made into messages beside it, at most so many a second and so many bytes.
What it has under way goes first, then what was learned; of the prompts, which are the most, the oldest are left out
when there are too many.
"""

from collections import deque
from dataclasses import dataclass

from cache_affinity import gossip_wire
from cache_affinity.gossip_notes import Header, Load
from cache_affinity.prefix import PrefixKey
from cache_affinity.ratio import TokenRatios
from routing.decision import RouteDecision
from routing.gossip_digests import ReplicaDigests
from routing.gossip_learning import estimates_of, settlement_of
from routing.lease import Lease
from routing.pool import ReplicaPool
from routing.replica import Replica, ReplicaSpec

_Settled = tuple[RouteDecision, Lease, int | None, int | None, float | None]
_LEAST_ROOM = gossip_wire.FRAME_BYTES + 64 * gossip_wire.LOAD_BYTES  # for fewer bytes no message is made
_DOUBTFUL = Load(0, 0, 0, 0, 0, 0)  # unlike any load of a replica
_NUM_ESTIMATES = 64  # replicas in one message


@dataclass(frozen=True, slots=True)
class GossipBounds:
    """`every_s`: least time between messages. `bytes_per_s`: of all gateways together, what each of them reads.

    `queue`: prompts, and answers, that wait to be told. `loads_s`: how often all loads are told, be there none, so that
    the others know that it lives. `estimates_s`: how often all that was learned.
    """

    every_s: float = 0.02  # chosen: as long as a fast step; fifty messages a second
    bytes_per_s: float = 2_097_152.0  # chosen: 3,000 prompts of 64 KB a second, and a fifth of a core to read
    least_bytes_per_s: float = 65_536.0  # of each, however many there are
    queue: int = 2048
    loads_s: float = 0.5
    estimates_s: float = 2.0


@dataclass(slots=True)
class TellingCounts:
    """Since the start. `num_dropped`: notes that were never told, for want of room."""

    num_messages: int = 0
    num_bytes: int = 0
    num_dropped: int = 0


class Telling:
    """The pool's teller. `gateway`: a number for this run of the process. Set `installation` before `message`.

    `num_gateways`: living ones, this one included; where there is no other nothing is noted.
    """

    def __init__(
        self, pool: ReplicaPool, ratios: TokenRatios, digests: ReplicaDigests, gateway: int,
        bounds: GossipBounds | None = None,
    ) -> None:  # fmt: skip
        self.installation = 0
        self.num_gateways = 2
        self.counts = TellingCounts()
        self._pool = pool
        self._ratios = ratios
        self._digests = digests
        self._gateway = gateway
        self._bounds = bounds or GossipBounds()
        self._placed: deque[tuple[ReplicaSpec, PrefixKey, int]] = deque()
        self._settled: deque[_Settled] = deque()
        self._told: dict[str, Load] = {}  # what the others believe is under way, by replica
        self._untold: deque[str] = deque()  # replicas whose estimates are to be told in this round
        self._seq = 0
        self._credit = float(gossip_wire.MAX_MESSAGE_BYTES)
        self._credit_at = self._next_at = self._loads_at = self._estimates_at = float("-inf")
        pool.teller = self

    def __repr__(self) -> str:
        return f"<Telling {len(self._placed)} prompts, {len(self._settled)} answers, {self.counts}>"

    @property
    def has_more(self) -> bool:
        """Whether something waits to be told."""
        return bool(self._placed or self._settled or self._untold)

    @property
    def is_holding(self) -> bool:
        """Whether something waits to be told, or the others count something as under way here."""
        return self.has_more or bool(self._told)

    def placed(self, lease: Lease, key: PrefixKey) -> None:
        """A prompt was given to a replica."""
        if self.num_gateways > 1:
            self._pool.unseen_of(lease.replica.spec.model).placed(lease)
            self._placed.append((lease.replica.spec, key, lease.uncached_tokens))
            if len(self._placed) > self._bounds.queue:
                self._placed.popleft()
                self.counts.num_dropped += 1

    def settled(
        self, decision: RouteDecision, lease: Lease, *, now: float, prompt_tokens: int | None,
        cached_tokens: int | None, ttft_s: float | None,
    ) -> None:  # fmt: skip
        """A request was answered."""
        lease.replica.learned_at = now
        if self.num_gateways > 1:
            self._settled.append((decision, lease, prompt_tokens, cached_tokens, ttft_s))
            if len(self._settled) > self._bounds.queue:
                self._settled.popleft()
                self.counts.num_dropped += 1

    def message(self, now: float) -> bytes | None:
        """The next message; None while there is nothing to say, nobody to hear it, or no room for it."""
        if now < self._next_at or self.num_gateways <= 1:
            return None
        room = self._room(now)
        if room < _LEAST_ROOM:
            return None
        left = room - gossip_wire.FRAME_BYTES
        loads, is_all = self._loads(left // gossip_wire.LOAD_BYTES, now)
        self._begin_round(now)
        if not (loads or is_all or self.has_more):
            return None
        left -= len(loads) * gossip_wire.LOAD_BYTES
        settlements = self._settlements(left // gossip_wire.SETTLEMENT_BYTES)
        left -= len(settlements) * gossip_wire.SETTLEMENT_BYTES
        estimates = self._estimates(min(_NUM_ESTIMATES, left // gossip_wire.ESTIMATES_BYTES), now)
        left -= len(estimates) * gossip_wire.ESTIMATES_BYTES
        self._seq += 1
        content = gossip_wire.message_bytes(
            Header(self.installation, self._gateway, self._seq, tells_all_loads=is_all),
            loads=[gossip_wire.load_bytes(load) for _, load in loads],
            placements=self._placements(left, gossip_wire.MAX_MESSAGE_BYTES - room),
            settlements=settlements,
            estimates=estimates,
        )
        self._note(loads, is_all=is_all)
        self._credit -= len(content)
        self._next_at = now + self._bounds.every_s
        self.counts.num_messages += 1
        self.counts.num_bytes += len(content)
        return content

    def farewell(self) -> bytes:
        """The last message: nothing is under way here any more."""
        self._seq += 1
        return gossip_wire.message_bytes(Header(self.installation, self._gateway, self._seq, is_leaving=True))

    def _room(self, now: float) -> int:
        """Bytes that may be told now."""
        bounds = self._bounds
        rate = max(bounds.least_bytes_per_s, bounds.bytes_per_s / self.num_gateways)
        earned = rate * min(max(now - self._credit_at, 0.0), 1.0)
        self._credit = min(self._credit + earned, float(gossip_wire.MAX_MESSAGE_BYTES))
        self._credit_at = now
        return int(self._credit)

    def _loads(self, most: int, now: float) -> tuple[list[tuple[str, Load]], bool]:
        """What is to be told of loads, by replica, and whether that is all there is.

        Where all of it is due and more than `most`, it is told anew bit by bit.
        """
        found = [(replica.name, self._load_of(replica)) for replica in self._pool]
        if now - self._loads_at >= self._bounds.loads_s:
            self._loads_at = now
            held = [(name, load) for name, load in found if any(load[1:])]
            if len(held) <= most:
                return held, True
            self._told = dict.fromkeys(self._told, _DOUBTFUL)
        changed = [one for one in found if self._told.get(one[0], (one[1][0], 0, 0, 0, 0, 0)) != one[1]]
        return changed[:most], False

    def _load_of(self, replica: Replica) -> Load:
        hidden = replica.hidden_tokens - replica.others_hidden_tokens
        interactive, standard, bulk = replica.in_flight
        return Load(self._digests.of(replica.spec), interactive, standard, bulk, replica.own_tokens - hidden, hidden)

    def _note(self, loads: list[tuple[str, Load]], *, is_all: bool) -> None:
        """The others believe this from now on."""
        if is_all:
            self._told = {}
        for name, load in loads:
            if any(load[1:]):
                self._told[name] = load
            else:
                self._told.pop(name, None)

    def _begin_round(self, now: float) -> None:
        if not self._untold and now - self._estimates_at >= self._bounds.estimates_s:
            self._estimates_at = now
            self._untold.extend(replica.name for replica in self._pool if any(replica.ttft.weights))

    def _estimates(self, most: int, now: float) -> list[bytes]:
        told: list[bytes] = []
        while self._untold and len(told) < most:
            replica = self._pool.get(self._untold.popleft())
            if replica is not None:
                ratio = self._ratios.of(replica.spec.model)
                found = estimates_of(self._digests.of(replica.spec), replica, ratio, now)
                if found is not None:
                    told.append(gossip_wire.estimates_bytes(found))
        return told

    def _settlements(self, most: int) -> list[bytes]:
        """The oldest that are not told."""
        told: list[bytes] = []
        for _ in range(min(len(self._settled), max(0, most))):
            decision, lease, prompt_tokens, cached_tokens, ttft_s = self._settled.popleft()
            digest = self._digests.of(lease.replica.spec)
            told.append(
                gossip_wire.settlement_bytes(
                    settlement_of(
                        digest, decision, lease, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, ttft_s=ttft_s
                    )
                )
            )
        return told

    def _placements(self, room: int, more: int) -> list[bytes]:
        """The oldest that are not told, as many as there is room for.

        One for which there is none may take so many `more` bytes, lest it waits for ever: later messages are shorter.
        """
        told: list[bytes] = []
        while self._placed:
            spec, key, tokens = self._placed[0]
            content = gossip_wire.placement_bytes(self._digests.of(spec), tokens, key.hashes, key.sizes)
            if len(content) > room + (0 if told else more):
                break
            room -= len(content)
            self._placed.popleft()
            told.append(content)
        return told
