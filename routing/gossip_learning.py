"""What is learned of replicas, passed from gateway to gateway: single observations, and all that was made of them.

An observation teaches here what it would have taught had the request been ours, so many gateways learn as fast as one.
What was made of more observations takes the place of what was made of fewer: so whoever comes late, or missed some,
is soon where the others are, and all that hear each other come to the same numbers in whatever order they hear.
"""

from cache_affinity.capacity import Remembered
from cache_affinity.gossip_notes import Estimate, Estimates, Settlement
from cache_affinity.ratio import TokenRatio
from routing.decision import RouteDecision
from routing.lease import Lease
from routing.pool import ReplicaPool
from routing.replica import Replica
from routing.router import Router

STALE_S = 600  # chosen: what nobody added to for so long counts only where nothing is known
_UNKNOWN = Remembered(0, 0, 0.0)


def settlement_of(
    replica: int, decision: RouteDecision, lease: Lease, *, prompt_tokens: int | None, cached_tokens: int | None,
    ttft_s: float | None,
) -> Settlement:  # fmt: skip
    """What `Router.settled` was told, for others. `replica`: its digest."""
    known = decision.prompt_tokens if prompt_tokens is None else prompt_tokens
    cached = decision.hit_tokens if cached_tokens is None else cached_tokens
    uncached = max(0, known - cached)
    remembered = _UNKNOWN if lease.insertion is None else lease.insertion.remembered
    return Settlement(
        replica, decision.key.total_bytes, prompt_tokens, decision.shadow_tokens, decision.exact_tokens, cached_tokens,
        *remembered, read_tokens=lease.tokens_ahead + uncached, uncached_tokens=uncached, rows=lease.rows_ahead,
        ttft_s=ttft_s, is_behind=lease.unread_ahead > 0, is_of_replica=lease.is_current and not lease.is_hidden,
    )  # fmt: skip


def learn(router: Router, replica: Replica, told: Settlement, now: float) -> None:
    """Take in what another gateway has seen, as `Router.settled` takes in our own."""
    model = replica.spec.model
    if told.prompt_tokens:
        router.ratios.of(model).observe(told.total_bytes, told.prompt_tokens)
    if not told.is_of_replica:
        return
    replica.learned_at = now
    replica.confidence.observe(told.shadow_tokens, told.cached_tokens)
    if told.exact_tokens is not None:
        replica.exact_confidence.observe(told.exact_tokens, told.cached_tokens)
    if told.cached_tokens is not None and told.prompt_tokens:
        cached_bytes = round(told.cached_tokens * told.total_bytes / told.prompt_tokens)
        remembered = Remembered(told.held, told.known, told.age_share)
        replica.shadow.factor.observe(remembered, cached_bytes, told.total_bytes)
    if told.ttft_s is not None:
        router.pool.observe_ttft(replica, told.read_tokens, told.ttft_s)
        if not told.is_behind:
            replica.steps.learn_ttft(told.uncached_tokens, told.rows, told.ttft_s, now)
        replica.price_rows()
        router.usual_of(model).observe(told.uncached_tokens, replica.ttft.ms_per_token)


def estimates_of(digest: int, replica: Replica, ratio: TokenRatio, now: float) -> Estimates | None:
    """All that is known of a replica; None where nothing is."""
    ttft, factor = replica.ttft, replica.shadow.factor
    rates, bases = ttft.weights
    told = Estimates(
        digest,
        int(max(0.0, now - replica.learned_at)),
        Estimate(ttft.ms_per_token, rates),
        Estimate(ttft.base_ms, bases),
        Estimate(replica.confidence.value, replica.confidence.num_observations),
        Estimate(replica.exact_confidence.value, replica.exact_confidence.num_observations),
        Estimate(factor.logarithm, factor.num_observations),
        Estimate(ratio.bytes_per_token, ratio.num_observations),
    )
    return told if any(weight for _, weight in told[2:]) else None


def adopt(pool: ReplicaPool, replica: Replica, ratio: TokenRatio, told: Estimates, now: float) -> None:
    """Take over what rests on more observations than ours does. Harmless when repeated, in any order."""
    is_stale = told.age_s > STALE_S
    rates, bases = replica.ttft.weights
    confidence, exact, factor = replica.confidence, replica.exact_confidence, replica.shadow.factor
    targets = (
        (told.ms_per_token, rates, replica.ttft.adopt_rate),
        (told.base_ms, bases, replica.ttft.adopt_base),
        (told.confidence, confidence.num_observations, confidence.adopt),
        (told.exact_confidence, exact.num_observations, exact.adopt),
        (told.capacity, factor.num_observations, factor.adopt),
        (told.bytes_per_token, ratio.num_observations, ratio.adopt),
    )
    for (value, weight), own_weight, take_over in targets:
        if weight and not (is_stale and own_weight):
            take_over(value, weight)
    if any(replica.ttft.weights):
        pool.adopted_ttft(replica)
    replica.learned_at = max(replica.learned_at, now - told.age_s)
