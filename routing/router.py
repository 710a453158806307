"""Which replica answers a request first: filter, score, pick; and what is learned from how it went.

`route` looks and changes nothing, so a dry run is the same call; the pool's `lease` makes it real.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cache_affinity.exact import NO_HITS, ExactIndex
from cache_affinity.fusion import FRESH_S
from cache_affinity.ratio import TokenRatios
from engines.contract import Fault
from policies.lane import Lane
from routing.breaker import VERDICTS, Verdict
from routing.decision import Absence, Full, NoReplica, RouteDecision, Why
from routing.filters import MayUse, Rejection, fitting
from routing.lease import Lease
from routing.outliers import LATE_FACTOR, LATE_S
from routing.picker import pick
from routing.pool import ReplicaPool
from routing.query import RouteQuery
from routing.replica import Replica, ReplicaState
from routing.ring import weight
from routing.scorers import Candidate, score
from routing.unseen import with_unseen
from routing.usual import Usual

# The prompt was not read, so the replica does not hold it now.
_UNREAD = frozenset({Fault.CLIENT, Fault.CONNECT, Fault.STALE, Fault.BACKPRESSURE, Fault.UNSERVED})
_FULL = frozenset({Rejection.NO_SEAT, Rejection.BARRED, Rejection.STARTING})  # a seat is worth waiting for
_NOTHING_USUAL = Usual()  # of a model that has answered nothing yet
_ABSENCES = (  # the reason told when no replica is left, the most hopeful first
    (Rejection.ASIDE, Absence.BUSY),
    (Rejection.FAILING, Absence.FAILING),
    (Rejection.EXCLUDED, Absence.TRIED),
    (Rejection.NOT_READY, Absence.NONE_READY),
    (Rejection.NOT_ALLOWED, Absence.NOT_ALLOWED),
    (Rejection.NOT_LABELLED, Absence.NOT_LABELLED),
    (Rejection.UNFIT, Absence.UNFIT),
)


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """`not_ready_retry_s`: the Retry-After when replicas of the model exist and none is ready."""

    not_ready_retry_s: float = 5.0


class Router:
    """Routes over one pool. `may_use`: the tenant isolation rule, None for none. `exact`: what engines tell."""

    def __init__(
        self,
        pool: ReplicaPool,
        ratios: TokenRatios,
        settings: RouterSettings | None = None,
        may_use: MayUse | None = None,
        exact: ExactIndex | None = None,
    ) -> None:
        self.exact = exact
        self.pool = pool
        self.ratios = ratios
        self.settings = settings or RouterSettings()
        self._may_use = may_use
        self._usual: dict[str, Usual] = {}  # by model

    @property
    def knows_exactly(self) -> bool:
        """Whether some engine tells what it holds, so that a prompt's tokens are of use."""
        return self.exact is not None and self.exact.is_known_of_any

    def route(self, query: RouteQuery, now: float) -> RouteDecision | NoReplica | Full:
        """The replica for one request, with its reasons, or why there is none. Changes nothing.

        `Full`: replicas could take it but have no seat for its lane now; wait for one.
        """
        pool, holdbacks = self.pool.of_model(query.model), self.pool.holdbacks or None
        if holdbacks is not None:
            holdbacks.refresh(now)
        replicas, filtered = fitting(pool, query, self._may_use, now, holdbacks)
        if not replicas and holdbacks is not None and _is_last_resort(filtered):
            replicas, filtered = fitting(pool, query, self._may_use, now)
        if not replicas:
            return self._absence(query, tuple(filtered), now)
        return self._decide(query, replicas, tuple(filtered), now)

    def home(self, query: RouteQuery) -> str | None:
        """The ready replica that holds most of the prompt, else its home by hash, whether it has a seat or not.

        None if no replica is ready. A hint, cheaper than a decision: whose turn it is when a seat there comes free.
        """
        key, best, most, heaviest = query.key, None, 0, -1
        depths = self.pool.holders.depths(key)
        for replica in self.pool.of_model(query.model):
            if replica.state is not ReplicaState.READY or (query.needs and not replica.spec.serves(query.needs)):
                continue
            held = depths.get(replica.name, 0)
            by_hash = weight(key.home, replica)
            if held > most or (held == most and by_hash > heaviest):
                best, most, heaviest = replica.name, held, by_hash
        return best

    def settled(
        self,
        decision: RouteDecision,
        lease: Lease,
        *,
        now: float,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        ttft_s: float | None = None,
    ) -> None:
        """Learn from a request that was answered. Call before the lease ends; does not end it.

        `prompt_tokens`, `cached_tokens`: as the engine reported, None where it said nothing (which is not zero).
        `ttft_s`: from dispatch to the first content, None if none came.
        """
        self.pool.report(lease, Verdict.FINE, now)
        if prompt_tokens:
            self.ratios.of(decision.model).observe(decision.key.total_bytes, prompt_tokens)
        self.pool.learn_hit(lease, decision.shadow_tokens, cached_tokens, decision.exact_tokens)
        if cached_tokens is not None:
            bytes_per_token = decision.key.total_bytes / max(1, prompt_tokens or decision.prompt_tokens)
            self.pool.learn_capacity(lease, round(cached_tokens * bytes_per_token), decision.key.total_bytes)
        if ttft_s is not None:
            if ttft_s > LATE_S + LATE_FACTOR * decision.ttft_s:
                self.pool.note_late(lease, now)
            known = decision.prompt_tokens if prompt_tokens is None else prompt_tokens
            cached = decision.hit_tokens if cached_tokens is None else cached_tokens
            self.pool.learn_ttft(lease, max(0, known - cached), ttft_s)
            if not lease.is_hidden:
                self.usual_of(decision.model).observe(max(0, known - cached), lease.replica.ttft.ms_per_token)
        if self.pool.teller is not None:
            self.pool.teller.settled(
                decision, lease, now=now, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, ttft_s=ttft_s
            )

    def usual_of(self, model: str) -> Usual:
        """What is usual for a model; the same object every time while it has replicas."""
        usual = self._usual.get(model)
        if usual is None:
            self._usual = {known: each for known, each in self._usual.items() if self.pool.of_model(known)}
            usual = self._usual[model] = Usual()
        return usual

    def observe_failure(self, lease: Lease, fault: Fault, now: float, *, retry_after_s: float | None = None) -> None:
        """Learn from an attempt that failed; call before the lease ends. A client's own error counts as nothing."""
        self.pool.report(lease, VERDICTS[fault], now, retry_after_s=retry_after_s)
        if fault in _UNREAD:
            self.pool.unlearn_prompt(lease)

    def _decide(
        self, query: RouteQuery, replicas: list[Replica], filtered: tuple[tuple[str, Rejection], ...], now: float
    ) -> RouteDecision:
        key, tokens, exact = query.key, query.tokens, NO_HITS
        if tokens is None:
            tokens_per_byte = 1.0 / self.ratios.of(query.model).bytes_per_token
            prompt_tokens = max(1, round(key.total_bytes * tokens_per_byte))
        else:
            prompt_tokens = max(1, tokens.num_tokens)
            tokens_per_byte = prompt_tokens / max(1, key.total_bytes)
            if self.exact is not None:
                exact = self.exact.hits(tokens)
        feels_bulk = query.lane is Lane.BULK
        depths = self.pool.holders.depths(key)
        rows = score(
            replicas, key, prompt_tokens, tokens_per_byte, depths=depths, exact=exact,
            fresh_since=now - FRESH_S, feels_bulk=feels_bulk,
        )  # fmt: skip
        usual = self._usual.get(query.model, _NOTHING_USUAL)
        chosen, why, passed = pick(key, prompt_tokens, replicas, rows, usual, feels_bulk=feels_bulk)
        unseen = self.pool.unseen.get(query.model)
        if unseen is not None and unseen.num and why is not Why.WARM and (num_before := unseen.before(key)):
            rows_by_now = with_unseen(rows, num_before, unseen.tokens)
            chosen, why, passed = pick(key, prompt_tokens, replicas, rows_by_now, usual, feels_bulk=feels_bulk)
        candidate = Candidate(*rows[chosen])
        return RouteDecision(
            model=query.model, lane=query.lane, project_id=query.project_id, key=key, chosen=candidate.replica, why=why,
            passed=None if passed == chosen else rows[passed][0], rows=rows, filtered=filtered,
            prompt_tokens=prompt_tokens, hit_tokens=candidate.fused_tokens, shadow_tokens=candidate.shadow_tokens,
            ttft_s=candidate.ttft_ms / 1000.0, exact_tokens=candidate.exact_tokens,
        )  # fmt: skip

    def _absence(self, query: RouteQuery, filtered: tuple[tuple[str, Rejection], ...], now: float) -> NoReplica | Full:
        reasons = [reason for _, reason in filtered]
        num_full = sum(reason in _FULL for reason in reasons)
        if num_full:
            return Full(num_full, filtered)
        for reason, absence in _ABSENCES:
            if reason in reasons:
                names = (name for name, because in filtered if because is reason)
                retry_after_s = self._retry_after_s(absence, names, now)
                return NoReplica(absence, retry_after_s, filtered, query.lane, tuple(sorted(query.labels)))
        return NoReplica(Absence.UNKNOWN_MODEL, 0.0)

    def _retry_after_s(self, absence: Absence, names: Iterable[str], now: float) -> float:
        """When the first of the replicas may be tried again, as far as that can be known."""
        if absence in {Absence.BUSY, Absence.FAILING}:
            found = (self.pool.get(name) for name in names)
            return min(replica.breaker.retry_after_s(now) for replica in found if replica is not None)
        return self.settings.not_ready_retry_s if absence is Absence.NONE_READY else 0.0


def _is_last_resort(filtered: Iterable[tuple[str, Rejection]]) -> bool:
    """Whether those that are held back are all there is: nobody else will have a seat, however long is waited."""
    reasons = {reason for _, reason in filtered}
    is_held = Rejection.EJECTED in reasons or Rejection.STARTING in reasons
    return is_held and not reasons & {Rejection.NO_SEAT, Rejection.BARRED}
