"""The price of sending a request to a replica: predicted time to first token, in milliseconds, term by term.

The score is needed for every replica of every request, the terms only for a receipt. So a candidate keeps what both
are computed from, and `terms_ms` sums to `score_ms` by construction (and by test).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cache_affinity.exact import NO_HITS, ExactHits
from cache_affinity.fusion import LEAST_TOKENS, fused
from cache_affinity.prefix import PrefixKey
from routing.replica import Replica
from routing.step_model import ROW_PRICE
from routing.ttft import BASE, RATE

USEFUL_TOKENS = 64  # a smaller hit is block rounding
USEFUL_SHARE = 0.25  # of the prompt: a smaller one is not worth giving up an even spread
STEP_TOKENS = 512  # of prompt an engine reads in one step, about; each step also serves the rows that are decoding

# What a score is made of, in the order of `Candidate`'s fields; a plain tuple, for it is made once per replica.
Row = tuple[str, int, int, float, int | None, int, int, int, float, float, float, float, float, int]


class Candidate(NamedTuple):
    """One replica that could take the request, as it was when scored. `score_ms`: lower is better.

    `shadow_tokens`: predicted hit. `exact_tokens`: as its engine told by events, None where it tells nothing.
    `fused_tokens`: what of both is expected. `confidence`: in what the engine told, else in the prediction, 0..1.
    `uncached_tokens`: the prompt without `fused_tokens`. `outstanding_tokens`, `num_in_flight`: the replica's load.
    `ms_per_token`, `base_ms`, `row_tokens`: as learned; `unlearned`: see `TtftModel`. `lost_tokens`: expected to be
    read again by others, because the prompt pushes them out.
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
    row_tokens: float
    lost_tokens: float
    score_ms: float
    unlearned: int = 0

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
        return interference_tokens(self.num_in_flight, self.uncached_tokens, self.row_tokens) * self.ms_per_token

    @property
    def eviction_ms(self) -> float:
        """The price of pushing out blocks that others will need; a price, not a wait."""
        return self.lost_tokens * self.ms_per_token

    @property
    def assumed(self) -> tuple[str, ...]:
        """The terms that nothing of the replica has taught yet."""
        is_assumed = {
            "prefill": self.unlearned & RATE,
            "base": self.unlearned & BASE,
            "interference": self.row_tokens == ROW_PRICE,
        }
        return tuple(term for term, is_so in is_assumed.items() if is_so)

    @property
    def ttft_ms(self) -> float:
        """Predicted time from dispatch to the first token."""
        return self.score_ms - self.eviction_ms


def useful_tokens(prompt_tokens: int) -> float:
    """How much of a prompt a replica must hold for that to decide where the request goes."""
    return max(USEFUL_TOKENS, USEFUL_SHARE * prompt_tokens)


def interference_tokens(num_in_flight: int, uncached_tokens: int, row_tokens: float) -> float:
    """Work of others beside a prompt, in prompt tokens: a row for each request in flight, in each step of reading."""
    return num_in_flight * (1 + uncached_tokens // STEP_TOKENS) * row_tokens


def tokens_ahead(replica: Replica, uncached_tokens: int, *, feels_bulk: bool = True) -> int:
    """Tokens the replica works off before the first token, besides the prompt itself; rows count as their price."""
    outstanding, flying = _load(replica, feels_bulk=feels_bulk)
    return outstanding + round(interference_tokens(flying, uncached_tokens, replica.row_tokens))


def reading_s(replica: Replica, tokens_ahead: int, uncached_tokens: int) -> float:
    """How long until a prompt will be read; by the steps where they are learned, for they take bulk prompts in, too."""
    if replica.spec.capabilities.leaves_bulk_out:
        return replica.ttft.predict_s(tokens_ahead + uncached_tokens)
    return replica.steps.reading_s(replica.outstanding_tokens + uncached_tokens, replica.num_flying)


def _load(replica: Replica, *, feels_bulk: bool) -> tuple[int, int]:
    """(outstanding tokens, requests in flight) as a request feels them: people do not feel bulk that is left out."""
    if feels_bulk:
        return replica.outstanding_tokens, replica.num_flying
    return replica.outstanding_tokens - replica.hidden_tokens, replica.num_flying - replica.hidden_in_flight


def score(
    replicas: Iterable[Replica], key: PrefixKey, prompt_tokens: int, tokens_per_byte: float, *,
    depths: Mapping[str, int], exact: ExactHits = NO_HITS, fresh_since: float = 0.0, feels_bulk: bool = True,
) -> tuple[Row, ...]:  # fmt: skip
    """The row of each replica, in order. One loop, not a call per term: it runs for every replica of every request.

    `depths`: leading borders that each shadow holds. `fresh_since`: what was routed from then on need not be told yet.
    """
    total_bytes, sizes, depth_of = key.total_bytes, key.sizes, depths.get
    told_of, partial, rows = exact.tokens.get, exact.partial, list[Row]()
    for replica in replicas:
        ttft, shadow, name = replica.ttft, replica.shadow, replica.name
        confidence = replica.confidence.value
        hit_bytes = shadow_tokens = hit = 0
        if num_held := depth_of(name):
            hit_bytes = sizes[num_held - 1]
            shadow_tokens, kv_tokens = int(hit_bytes * tokens_per_byte), replica.spec.kv_tokens
            if shadow_tokens > prompt_tokens:  # noqa: PLR1730 - a call of min here is a tenth of a decision
                shadow_tokens = prompt_tokens
            if kv_tokens is not None and shadow_tokens > kv_tokens:
                shadow_tokens = kv_tokens
            hit = shadow_tokens if confidence == 1.0 else int(shadow_tokens * confidence)
        told = told_of(name)
        if told is not None:
            trust, predicted = replica.exact_confidence.value, hit
            hit = told if trust == 1.0 else int(told * trust)
            if num_held and predicted >= hit + LEAST_TOKENS:
                untold = shadow_tokens
                if name not in partial:
                    num_fresh = shadow.num_fresh(key, num_held, fresh_since)
                    untold = int(sizes[num_fresh - 1] * tokens_per_byte) if num_fresh else 0
                hit = fused(told, trust, untold, confidence)
            confidence = trust
        uncached = prompt_tokens - hit
        if feels_bulk:  # as `_load`, without a call
            outstanding, flying = replica.outstanding_tokens, replica.num_flying
        else:
            outstanding = replica.outstanding_tokens - replica.hidden_tokens
            flying = replica.num_flying - replica.hidden_in_flight
        ms, base, row_tokens = ttft.ms_per_token, ttft.base_ms, replica.row_tokens
        work, lost = float(outstanding + uncached), 0.0
        if flying:
            work += flying * (1 + uncached // STEP_TOKENS) * row_tokens
        if shadow.held_bytes + total_bytes - hit_bytes > shadow.capacity_bytes:
            lost = shadow.lost_bytes(total_bytes - hit_bytes) * tokens_per_byte
        rows.append((
            name, shadow_tokens, hit, confidence, told, uncached, outstanding, flying, ms, base, row_tokens, lost,
            base + (work + lost) * ms, ttft.unlearned,
        ))  # fmt: skip
    return tuple(rows)
