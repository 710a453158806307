"""The replicas a gateway knows, and the only place where one is changed.

Counters change when a lease begins, has read its prompt, or ends, and never by discovery, health or looking.
"""

from collections.abc import Iterator

from cache_affinity.capacity import CapacityFactor
from cache_affinity.holders import Holders
from cache_affinity.shadow import ShadowIndex, bounds
from policies.lane import Lane
from routing.breaker import Verdict
from routing.decision import RouteDecision
from routing.holdbacks import Holdbacks
from routing.lease import Lease
from routing.pool_settings import PoolSettings
from routing.pool_statistics import PoolStatistics, statistics_of
from routing.replica import MOVES, ROW_TOKENS, Replica, ReplicaSpec, ReplicaState
from routing.scorers import reading_s, tokens_ahead
from routing.seat_limits import seat_limits
from routing.slow_start import Came
from routing.step_model import Gaps, MeanRows
from routing.ttft import TtftModel
from routing.unseen import Unseen
from routing.watchers import LeaseWatcher, Teller

_CAME = {ReplicaState.JOINING: Came.JOINED, ReplicaState.LOST: Came.RETURNED}  # from which state a slow start begins


class ReplicaPool:
    """Replicas by name and by model. `watcher`: told of every lease, if set. `holders`: of all shadows together.

    `teller`: tells other gateways, if there may be some; `unseen`: what they may have done meanwhile, by model.
    `holdbacks`: who is ejected or starts slowly.
    """

    def __init__(self, settings: PoolSettings | None = None) -> None:
        self.settings = settings or PoolSettings()
        self.watcher: LeaseWatcher | None = None
        self.teller: Teller | None = None
        self.unseen: dict[str, Unseen] = {}
        self.holdbacks = Holdbacks(self.settings.outliers, self.settings.slow_start)
        self._replicas: dict[str, Replica] = {}
        self._by_model: dict[str, tuple[Replica, ...]] = {}
        self._usual: dict[str, TtftModel] = {}  # by model, of all replicas together
        self._factors: dict[tuple[str, str, int | None], CapacityFactor] = {}
        self.holders = Holders()
        self._num_leases = 0

    def __repr__(self) -> str:
        return f"<ReplicaPool {self._num_leases} leases, {list(self._replicas.values())}>"

    def __iter__(self) -> Iterator[Replica]:
        return iter(tuple(self._replicas.values()))

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, name: str) -> Replica | None:
        """The replica of that name."""
        return self._replicas.get(name)

    def of_model(self, model: str) -> tuple[Replica, ...]:
        """All replicas of a model, in any state, in the order they came."""
        return self._by_model.get(model, ())

    def models(self) -> tuple[str, ...]:
        """The models that somebody answers for."""
        return tuple(model for model, replicas in self._by_model.items() if not replicas[0].spec.prefills_for)

    def upsert(self, spec: ReplicaSpec, now: float) -> Replica:
        """Learn of a replica, or of it again. A new one is joining.

        The same one keeps its state, load, breaker and affinity. Another generation, url or model under the same
        name is a restarted process: it forgets its shadow and breaker and, unless draining, is joining again; its
        open leases still count until they end.
        """
        replica = self._replicas.get(spec.name)
        capacity_bytes, max_nodes = bounds(spec.kv_tokens or self.settings.kv_tokens)
        factor = self._factors.setdefault(spec.kind, CapacityFactor())
        if replica is None:
            shadow = ShadowIndex(capacity_bytes, max_nodes, name=spec.name, holders=self.holders, factor=factor)
            replica = Replica(spec, shadow, seat_limits(spec.seats, self.settings.reserved_seats), now)
            self._replicas[spec.name] = replica
        else:
            known, replica.spec = replica.spec, spec
            replica.seat_limits = seat_limits(spec.seats, self.settings.reserved_seats)
            replica.shadow.resize(capacity_bytes, max_nodes, factor)
            if (known.generation, known.url, known.model) != (spec.generation, spec.url, spec.model):
                replica.restart(now)
                self.holdbacks.forget(spec.name)
        self._index()
        self._assume(spec.model)
        return replica

    def remove(self, name: str) -> bool:
        """Forget a replica at once, with all it was believed to hold; whether it was known.

        Nothing is routed there from now on. Its open leases end harmlessly, also when a new replica took the name.
        """
        replica = self._replicas.pop(name, None)
        if replica is None:
            return False
        replica.shadow.leave()
        self.holdbacks.forget(name)
        self._index()
        return True

    def can_move(self, name: str, state: ReplicaState) -> bool:
        """Whether `move` would leave the replica in `state`."""
        replica = self._replicas.get(name)
        return replica is not None and (state is replica.state or state in MOVES[replica.state])

    def move(self, name: str, state: ReplicaState, now: float | None = None) -> bool:
        """Whether the replica is in `state` now. A move that is not in `MOVES`, or of an unknown name, changes nothing.

        So a probe that fails on a draining replica does not undo the operator's wish. `now`: given where work is under
        way, so that who was joining or lost starts slowly.
        """
        if not self.can_move(name, state):
            return False
        replica = self._replicas[name]
        before, replica.state = replica.state, state
        if now is not None and state is ReplicaState.READY and before in _CAME:
            self.holdbacks.joined(replica, _CAME[before], self.of_model(replica.spec.model), now)
        return True

    def lease(self, decision: RouteDecision, now: float) -> Lease | None:
        """The seat the decision chose, or None if it cannot be had any more: then route again.

        Notes the prompt in the replica's shadow already now, so that a burst of siblings meets there.
        """
        replica = self._replicas.get(decision.chosen)
        if replica is None or replica.state is not ReplicaState.READY or replica.spec.model != decision.model:
            return None
        if not replica.has_seat(decision.lane) or not replica.breaker.can_try(now):
            return None
        ahead = tokens_ahead(replica, decision.uncached_tokens, feels_bulk=decision.lane is Lane.BULK)
        lease = Lease(
            self, replica, decision.lane, now=now, uncached_tokens=decision.uncached_tokens, tokens_ahead=ahead,
            rows_ahead=replica.num_flying - replica.hidden_in_flight,
            unread_ahead=replica.outstanding_tokens - replica.hidden_tokens,
            reading_s=reading_s(replica, ahead, decision.uncached_tokens),
            probe=replica.breaker.begin(now),
        )  # fmt: skip
        replica.in_flight[decision.lane.rank] += 1
        replica.num_in_flight += 1
        replica.num_flying += 1
        replica.outstanding_tokens += lease.uncached_tokens
        replica.work_tokens += lease.uncached_tokens + ROW_TOKENS
        if lease.is_hidden:
            replica.hidden_in_flight += 1
            replica.hidden_tokens += lease.uncached_tokens
            replica.hidden_work += lease.uncached_tokens + ROW_TOKENS
        lease.insertion = replica.shadow.insert(decision.key, now)
        if self.teller is not None:
            self.teller.placed(lease, decision.key)
        replica.steps.note_prompt(lease.uncached_tokens)
        self._num_leases += 1
        if self.watcher is not None:
            self.watcher.began(lease)
        return lease

    def take_back_tokens(self, lease: Lease) -> None:
        """For `Lease` alone: its prompt is read, or will not be."""
        lease.replica.outstanding_tokens -= lease.uncached_tokens
        lease.replica.work_tokens -= lease.uncached_tokens
        if lease.is_hidden:
            lease.replica.hidden_tokens -= lease.uncached_tokens
            lease.replica.hidden_work -= lease.uncached_tokens
        if self.watcher is not None:
            self.watcher.decoding(lease)

    def take_back_seat(self, lease: Lease) -> None:
        """For `Lease` alone: it is over."""
        replica = lease.replica
        replica.in_flight[lease.lane.rank] -= 1
        replica.num_in_flight -= 1
        replica.num_flying -= 1
        replica.work_tokens -= ROW_TOKENS
        if lease.is_hidden:
            replica.hidden_in_flight -= 1
            replica.hidden_work -= ROW_TOKENS
        lease.breaker.release(lease.probe)
        self._num_leases -= 1
        if self.watcher is not None:
            self.watcher.ended(lease)

    def report(self, lease: Lease, verdict: Verdict, now: float, *, retry_after_s: float | None = None) -> None:
        """Take in what the attempt says about its replica's health."""
        breaker = lease.breaker
        was_open = breaker.is_open
        breaker.report(verdict, now, probe=lease.probe, retry_after_s=retry_after_s)
        if verdict is Verdict.FAULT:
            self.holdbacks.judge(self.of_model(lease.replica.spec.model), now)
        elif was_open and not breaker.is_open and lease.is_current:
            self.holdbacks.start(lease.replica, Came.FAILED, now)

    def note_late(self, lease: Lease, now: float) -> None:
        """The first content came, or did not yet, so late that the replica's own past cannot explain it."""
        if lease.is_current and not lease.is_hidden and not lease.replica.ttft.unlearned:
            lease.breaker.tally.late += 1
            self.holdbacks.judge(self.of_model(lease.replica.spec.model), now)

    def unlearn_prompt(self, lease: Lease) -> None:
        """The replica never read the lease's prompt: what the lease alone made it believed to hold is dropped."""
        if lease.insertion is not None:
            lease.replica.shadow.withdraw(lease.insertion)
            lease.insertion = None

    def learn_hit(
        self, lease: Lease, predicted_tokens: int, reported_tokens: int | None, exact_tokens: int | None = None
    ) -> None:
        """Compare a predicted hit, and what the engine had told it holds, with what it reported (None: nothing).

        Not of bulk that the engine keeps apart: it evicts what only bulk has held first, which is no news to people.
        """
        if lease.is_current and not lease.is_hidden:
            lease.replica.confidence.observe(predicted_tokens, reported_tokens)
            if exact_tokens is not None:
                lease.replica.exact_confidence.observe(exact_tokens, reported_tokens)

    def learn_capacity(self, lease: Lease, cached_bytes: int, total_bytes: int) -> None:
        """Compare what the replica was expected to remember of a prompt with what its engine had cached, in bytes."""
        if lease.is_current and not lease.is_hidden and lease.insertion is not None:
            lease.replica.shadow.learn_capacity(lease.insertion, cached_bytes, total_bytes)

    def learn_ttft(self, lease: Lease, uncached_tokens: int, ttft_s: float) -> None:
        """Take in a time to first token, from dispatch, of a prompt that had `uncached_tokens` to be computed."""
        if lease.is_current and not lease.is_hidden:  # how long bulk was left out says nothing of how fast it reads
            self.observe_ttft(lease.replica, lease.tokens_ahead + uncached_tokens, ttft_s)
            if not lease.unread_ahead:
                lease.replica.steps.learn_ttft(uncached_tokens, lease.rows_ahead, ttft_s, lease.begun_at + ttft_s)
            lease.replica.price_rows()

    def observe_ttft(self, replica: Replica, num_tokens: int, ttft_s: float) -> None:
        """Take in a time to first token with `num_tokens` to be read before it, whichever gateway saw it."""
        replica.ttft.observe(num_tokens, ttft_s)
        self._usual.setdefault(replica.spec.model, TtftModel()).observe(num_tokens, ttft_s)
        self._assume(replica.spec.model)

    def adopted_ttft(self, replica: Replica) -> None:
        """What others have learned of one replica is the first guess for the rest of its model, too."""
        usual, (rates, bases) = self._usual.setdefault(replica.spec.model, TtftModel()), replica.ttft.weights
        usual.adopt_rate(replica.ttft.ms_per_token, min(rates, 1))
        usual.adopt_base(replica.ttft.base_ms, min(bases, 1))
        self._assume(replica.spec.model)

    def _assume(self, model: str) -> None:
        """Replicas that nothing was learned of are taken to be like the others of their model."""
        if model in self._usual:
            for replica in self.of_model(model):
                if replica.ttft.unlearned:
                    replica.ttft.assume(self._usual[model])

    def unseen_of(self, model: str) -> Unseen:
        """What other gateways may just have given to replicas of a model that there are."""
        unseen = self.unseen.get(model)
        if unseen is None:
            unseen = self.unseen[model] = Unseen()
        return unseen

    def learn_gaps(self, lease: Lease, gaps: Gaps, now: float) -> MeanRows | None:
        """Take in the gaps of a streamed answer; who was on the replica meanwhile, None if unknown or it restarted."""
        if lease.row_mark is None or not lease.is_current:
            return None
        rows = lease.replica.steps.learn_gaps(lease.row_mark, gaps, now)
        lease.replica.price_rows()
        return rows

    def set_lane_seats(self, name: str, *, standard: int, bulk: int, may_start_bulk: bool = True) -> bool:
        """Bound what standard and bulk may hold of a replica, besides its seats and the reserved ones.

        `may_start_bulk` False: no bulk beyond what it holds now, True: one more, until this is called again. Whether
        somebody of these lanes may have a seat now who could not before. Nobody loses one.
        """
        replica = self._replicas.get(name)
        if replica is None:
            return False
        interactive, standard_before, bulk_before = replica.lane_seats
        _, standard_held, bulk_held = replica.in_flight
        bulk_now = min(bulk, bulk_held + may_start_bulk)
        replica.bulk_seats = bulk
        replica.lane_seats = (interactive, standard, bulk_now)
        return standard_before <= standard_held < standard or bulk_before <= bulk_held < bulk_now

    def expire(self, before: float) -> int:
        """Borders dropped from shadows because nothing was routed to them since `before`; for the janitor."""
        return sum(replica.shadow.expire(before) for replica in self._replicas.values())

    def statistics(self) -> PoolStatistics:
        """Everything countable, at this moment."""
        return PoolStatistics(self._num_leases, tuple(map(statistics_of, self._replicas.values())))

    def _index(self) -> None:
        """Who serves which model; what was learned of models and kinds that nobody is of any more is forgotten."""
        by_model: dict[str, list[Replica]] = {}
        for replica in self._replicas.values():
            by_model.setdefault(replica.spec.model, []).append(replica)
        self._by_model = {model: tuple(replicas) for model, replicas in by_model.items()}
        self._usual = {model: usual for model, usual in self._usual.items() if model in by_model}
        self.unseen = {model: unseen for model, unseen in self.unseen.items() if model in by_model}
        kinds = {replica.spec.kind for replica in self._replicas.values()}
        self._factors = {kind: factor for kind, factor in self._factors.items() if kind in kinds}
