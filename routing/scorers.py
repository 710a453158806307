"""The price of sending a request to a replica: predicted time to first token, in milliseconds, term by term.

The score is needed for every replica of every request, the terms only for a receipt. So a candidate keeps what both
are computed from, and `terms_ms` sums to `score_ms` by construction (and by test).
"""

from collections.abc import Iterable
from typing import NamedTuple

from cache_affinity.exact import NO_HITS, ExactHits
from cache_affinity.fusion import fused
from cache_affinity.prefix import PrefixKey
from routing.replica import Replica
from routing.ttft import ASSUMED_BASE_MS, ASSUMED_MS_PER_TOKEN

USEFUL_TOKENS = 64  # a smaller hit is block rounding
USEFUL_SHARE = 0.25  # of the prompt: a smaller one is not worth giving up an even spread
STEP_TOKENS = 512  # of prompt an engine reads in one step, about; each step also serves the rows that are decoding
EVICTION_PRICE = 0.1  # chosen: of the reading time, when the new blocks push out warm ones

# What a score is made of, in the order of `Candidate`'s fields; a plain tuple, for it is made once per replica.
Row = tuple[str, int, int, float, int | None, int, int, int, float, float, bool, float]


class Candidate(NamedTuple):
    """One replica that could take the request, as it was when scored. `score_ms`: lower is better.

    `shadow_tokens`: predicted hit. `exact_tokens`: as its engine told by events, None where it tells nothing.
    `fused_tokens`: what of both is expected. `confidence`: in what the engine told, else in the prediction, 0..1.
    `uncached_tokens`: the prompt without `fused_tokens`. `outstanding_tokens`, `num_in_flight`: the replica's load.
    `ms_per_token`, `base_ms`: as learned. `evicts`: the prompt would push other blocks out.
    """

    replica: str
    shadow_tokens: int
    fused_tokens: int
    confidence: float
    exact_tokens: int | None
    uncached_tokens: int
    outstanding_tokens: int
    num_in_flight: int
    ms_per_token: float
    base_ms: float
    evicts: bool
    score_ms: float

    @property
    def seat_ms(self) -> float:
        """Waiting for the prompts that were given to the replica before."""
        return self.outstanding_tokens * self.ms_per_token

    @property
    def prefill_ms(self) -> float:
        """Reading the part of the prompt that is not cached."""
        return self.uncached_tokens * self.ms_per_token

    @property
    def interference_ms(self) -> float:
        """The rows that decode in the same steps."""
        return interference_tokens(self.num_in_flight, self.uncached_tokens) * self.ms_per_token

    @property
    def eviction_ms(self) -> float:
        """The price of pushing out blocks that others may need; a price, not a wait."""
        return self.prefill_ms * EVICTION_PRICE if self.evicts else 0.0

    @property
    def assumed(self) -> tuple[str, ...]:
        """The terms that stand as they were assumed at first: nothing of the replica has taught them yet."""
        is_assumed = {"prefill": self.ms_per_token == ASSUMED_MS_PER_TOKEN, "base": self.base_ms == ASSUMED_BASE_MS}
        return tuple(term for term, is_so in is_assumed.items() if is_so)

    @property
    def ttft_ms(self) -> float:
        """Predicted time from dispatch to the first token."""
        return self.score_ms - self.eviction_ms


def useful_tokens(prompt_tokens: int) -> float:
    """How much of a prompt a replica must hold for that to decide where the request goes."""
    return max(USEFUL_TOKENS, USEFUL_SHARE * prompt_tokens)


def interference_tokens(num_in_flight: int, uncached_tokens: int) -> int:
    """Tokens of others computed beside a prompt: one for each request in flight, in each step that reads it."""
    return num_in_flight * (1 + uncached_tokens // STEP_TOKENS)


def tokens_ahead(replica: Replica, uncached_tokens: int, *, feels_bulk: bool = True) -> int:
    """Tokens the replica works off before the first token, besides the prompt itself."""
    outstanding, flying = _load(replica, feels_bulk=feels_bulk)
    return outstanding + interference_tokens(flying, uncached_tokens)


def _load(replica: Replica, *, feels_bulk: bool) -> tuple[int, int]:
    """(outstanding tokens, requests in flight) as a request feels them: people do not feel bulk that is left out."""
    if feels_bulk:
        return replica.outstanding_tokens, replica.num_in_flight
    return replica.outstanding_tokens - replica.hidden_tokens, replica.num_in_flight - replica.hidden_in_flight


def score(
    replicas: Iterable[Replica],
    key: PrefixKey,
    prompt_tokens: int,
    tokens_per_byte: float,
    exact: ExactHits = NO_HITS,
    *,
    fresh_since: float = 0.0,
    feels_bulk: bool = True,
) -> tuple[Row, ...]:
    """The row of each replica, in order. One loop, not a call per term: it runs for every replica of every request.

    `fresh_since`: what was routed to a replica from then on its engine need not have told yet.
    """
    total_bytes, sizes, guess = key.total_bytes, key.sizes, 0
    told_of, partial = exact.tokens.get, exact.partial
    rows: list[Row] = []
    for replica in replicas:
        ttft, shadow = replica.ttft, replica.shadow
        confidence = replica.confidence.value
        num_held = shadow.num_held(key, guess)
        hit_bytes = shadow_tokens = hit = 0
        if num_held:
            guess, hit_bytes = num_held, sizes[num_held - 1]
            most = min(prompt_tokens, replica.spec.kv_tokens or prompt_tokens)
            shadow_tokens = min(int(hit_bytes * tokens_per_byte), most)
            hit = int(shadow_tokens * confidence)
        name = replica.name
        told = told_of(name)
        if told is not None:
            trust, untold = replica.exact_confidence.value, shadow_tokens
            if num_held and name not in partial:
                num_fresh = shadow.num_fresh(key, num_held, fresh_since)
                untold = int(sizes[num_fresh - 1] * tokens_per_byte) if num_fresh else 0
            hit = fused(told, trust, untold, confidence) if untold else told if trust == 1.0 else int(told * trust)
            confidence = trust
        uncached = prompt_tokens - hit
        if feels_bulk:
            outstanding, flying = replica.outstanding_tokens, replica.num_in_flight
        else:
            outstanding, flying = _load(replica, feels_bulk=False)
        ms, base = ttft.ms_per_token, ttft.base_ms
        score_ms = base + (outstanding + uncached + flying * (1 + uncached // STEP_TOKENS)) * ms
        evicts = shadow.held_bytes + total_bytes - hit_bytes > shadow.capacity_bytes
        if evicts:
            score_ms += uncached * ms * EVICTION_PRICE
        rows.append(
            (name, shadow_tokens, hit, confidence, told, uncached, outstanding, flying, ms, base, evicts, score_ms)
        )
    return tuple(rows)
