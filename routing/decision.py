"""Where a request goes and why: the value the router returns, and the receipt made from it.

Made for every request, read for few: candidates are kept as raw tuples and become words and JSON only on demand.
"""

import math
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct

from cache_affinity.prefix import PrefixKey
from policies.lane import Lane
from routing.filters import Rejection
from routing.scorers import USEFUL_SHARE, USEFUL_TOKENS, Candidate, Row, useful_tokens


class Why(Enum):
    """The rule that chose the replica; the value is the sentence of the receipt."""

    WARM = "{chosen} holds about {hit} of {prompt} prompt tokens and is not too busy for that"
    CHEAPER = "{passed} holds more of the prompt, but waiting there costs more than reading it again at {chosen}"
    REPLICATED = (
        "{passed} holds more of the prompt but has far more requests than the others; {chosen} is to hold it too"
    )
    HOME = "{held}; {chosen} is the prompt's home by hash"
    NEXT_HOME = "{held}; {passed}, the prompt's home by hash, is busier or slower; {chosen} is the best place"


class HitTokens(Struct, frozen=True):
    """Leading tokens a replica holds, by source. `exact` is null where the replica publishes no events."""

    exact: int | None
    shadow: int | None
    fused: int | None
    confidence: float | None


class TermsMs(Struct, frozen=True):
    """The score, term by term."""

    seat: float
    prefill: float
    base: float
    interference: float
    eviction: float


class CandidateReceipt(Struct, frozen=True):
    """One replica of the model. `filtered`: why it was no candidate; then there is no hit and no score.

    `assumed`: the terms that no request has taught yet.
    """

    replica: str
    hit_tokens: HitTokens | None
    terms_ms: TermsMs | None
    score_ms: float | None
    filtered: str | None
    assumed: list[str] = []


class Predicted(Struct, frozen=True):
    """What the decision expected of the chosen replica."""

    ttft_ms: float
    hit_tokens: int


class Actual(Struct, frozen=True):
    """What came of it. null: not reached, or not reported by the engine."""

    ttft_ms: float | None = None
    hit_tokens: int | None = None
    prompt_tokens: int | None = None
    outcome: str | None = None


class Hedge(Struct, frozen=True):
    """A second attempt beside a slow one. `outcome`: `won` (then the decision is its own), `lost` or `failed`."""

    replica: str
    outcome: str


class Receipt(Struct, frozen=True, omit_defaults=True):
    """A decision as the admin plane shows it (contract: a receipt); encode with `msgspec.json`.

    `prefill`: the same of the replica that read the prompt for the chosen one; left out where that read it itself.
    `hedge`: of a request that had one.
    """

    request_id: str
    chosen: str
    reason: str
    candidates: list[CandidateReceipt]
    predicted: Predicted
    actual: Actual | None
    prefill: "Receipt | None" = None
    hedge: Hedge | None = None


class RouteDecision(Struct, frozen=True, gc=False):
    """The chosen replica and what led there. Holds names, never replicas: it may outlive them.

    A struct, because one is made for every request; thousands are remembered and can be in no ring, so the garbage
    collector need not look through them (`gc=False`).

    `rows`: a raw tuple for each replica that could take the request, in the order of `Candidate`'s fields.
    `filtered`: the others. `passed`: the replica that would have been next by the rule, if it was left.
    `prompt_tokens`: counted where the prompt's tokens are known, else estimated by the learned ratio. `hit_tokens`:
    fused, at the chosen replica. `exact_tokens`: as its engine told, None where it tells nothing. `uncached_tokens`:
    `prompt_tokens - hit_tokens`. `ttft_s`: predicted, from dispatch to the first token. `prefill`: of the replica that
    read the prompt for the chosen one, if one did.
    """

    model: str
    lane: Lane
    project_id: str
    key: PrefixKey
    chosen: str
    why: Why
    passed: str | None
    rows: tuple[Row, ...]
    filtered: tuple[tuple[str, Rejection], ...]
    prompt_tokens: int
    hit_tokens: int
    shadow_tokens: int
    ttft_s: float
    exact_tokens: int | None = None
    prefill: "RouteDecision | None" = None

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens the chosen replica is expected to compute."""
        return self.prompt_tokens - self.hit_tokens

    @property
    def reason(self) -> str:
        """The reason in one sentence, and what of the score is not learned yet."""
        words = {"chosen": self.chosen, "passed": self.passed, "hit": self.hit_tokens, "prompt": self.prompt_tokens}
        return self.why.value.format(**words, held=self._held()) + self._assumed()

    def _held(self) -> str:
        """What the best candidate holds of the prompt, and why that did not decide."""
        best = max(self.candidates, key=lambda candidate: candidate.fused_tokens)
        if not best.fused_tokens:
            return f"no replica that can take it holds any of the {self.prompt_tokens} prompt tokens"
        share, useful = best.fused_tokens / self.prompt_tokens, math.ceil(useful_tokens(self.prompt_tokens))
        return (
            f"{best.replica} holds about {best.fused_tokens} of {self.prompt_tokens} prompt tokens ({share:.0%}), "
            f"and only {useful} ({USEFUL_SHARE:.0%}, at least {USEFUL_TOKENS}) would decide"
        )

    def _assumed(self) -> str:
        chosen = next(candidate for candidate in self.candidates if candidate.replica == self.chosen)
        values = {
            "prefill": f"{1000 / chosen.ms_per_token:.0f} prompt tokens/s",
            "base": f"{chosen.base_ms:.0f} ms",
            "interference": f"a decoding request like {chosen.row_tokens:.0f} prompt tokens",
        }
        told = ", ".join(f"{term} ({values[term]})" for term in chosen.assumed)
        return f"; of {chosen.replica} assumed, not learned yet: {told}" if told else ""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The replicas that could take the request, with their names for the numbers."""
        return tuple(Candidate(*row) for row in self.rows)

    def receipt(self, request_id: str, actual: Actual | None = None) -> Receipt:
        """The decision for a person to read; `actual` once the request has ended."""
        scored = [_scored(candidate) for candidate in self.candidates]
        filtered = [CandidateReceipt(name, None, None, None, reason.value) for name, reason in self.filtered]
        predicted = Predicted(round(self.ttft_s * 1000, 3), self.hit_tokens)
        prefill = None if self.prefill is None else self.prefill.receipt(request_id)
        return Receipt(request_id, self.chosen, self.reason, scored + filtered, predicted, actual, prefill)


class Absence(Enum):
    """Why no replica can take a request even after waiting for a seat."""

    UNKNOWN_MODEL = "no replica serves this model"
    NONE_READY = "no replica of this model is ready"
    FAILING = "every replica of this model is failing"
    BUSY = "every replica of this model asked for a wait"
    TRIED = "every replica of this model was tried"
    NOT_ALLOWED = "every replica of this model has a cache that belongs to another tenant"
    NOT_LABELLED = "no replica of this model has the labels of this lane"
    UNFIT = "no replica of this model serves this endpoint"


@dataclass(frozen=True, slots=True)
class NoReplica:
    """Nobody to send it to. `retry_after_s`: when that may change, 0 if it will not by waiting.

    `pinned`: the labels that the request's lane is pinned to, for the sentence; empty where it is to none.
    """

    reason: Absence
    retry_after_s: float
    filtered: tuple[tuple[str, Rejection], ...] = ()
    lane: Lane | None = None
    pinned: tuple[tuple[str, str], ...] = ()

    @property
    def sentence(self) -> str:
        """The reason, and where its lane is pinned the labels: a misspelt one must be seen."""
        if self.lane is None or not self.pinned:
            return self.reason.value
        labels = ", ".join(f"{name}={value}" for name, value in self.pinned)
        return f"{self.reason.value}: the {self.lane.value} lane goes only to replicas with {labels}"


@dataclass(frozen=True, slots=True)
class Full:
    """Every replica that could take it has no free seat for its lane: wait for one. Not a refusal."""

    num_replicas: int
    filtered: tuple[tuple[str, Rejection], ...] = ()


def _scored(candidate: Candidate) -> CandidateReceipt:
    hit = HitTokens(
        candidate.exact_tokens, candidate.shadow_tokens, candidate.fused_tokens, round(candidate.confidence, 3)
    )
    terms = TermsMs(
        seat=round(candidate.seat_ms, 3),
        prefill=round(candidate.prefill_ms, 3),
        base=round(candidate.base_ms, 3),
        interference=round(candidate.interference_ms, 3),
        eviction=round(candidate.eviction_ms, 3),
    )
    assumed = list(candidate.assumed)
    return CandidateReceipt(candidate.replica, hit, terms, round(candidate.score_ms, 3), None, assumed)
