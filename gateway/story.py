"""What happened to one request, written down while it happens; at its end it becomes the one `RequestRecord`."""

import os
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.errors import Problem
from gateway.outcome import Outcome
from gateway.owed import Done, Owed
from gateway.relay import Relayed
from gateway.request import InferenceRequest
from observability.records import RequestRecord
from policies.lane import Lane
from policies.tenant import Principal
from routing.decision import RouteDecision

_MAX_WORD = 128  # characters of what others wrote that go into a record


class _Tokens(NamedTuple):
    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    is_estimated: bool = False


@dataclass(slots=True)
class Story:
    """Mutable, one a request. Times are monotonic seconds, `started_at` Unix seconds.

    `lost_attempts`, `lost_tokens`: attempts that failed before any content, and the work in them.
    `owed`: what of the last attempt its tenant pays; `unseen_tokens`: output of it that nobody could count.
    `reserved_*`: what the request was expected to cost; `done`, `charged_tokens`, `cost_nanousd`: what it did.
    `limit`: which refused it, or in shadow mode would have. `from_cache`: no engine was needed.
    `hedge`: how a second attempt beside a slow one ended, `won`, `lost` or `failed`, at `hedge_replica`.
    """

    surface: str
    arrived_at: float
    started_at: float
    client_request_id: str | None
    request_id: str = field(default_factory=lambda: "req_" + os.urandom(12).hex())
    principal: Principal | None = None
    request: InferenceRequest | None = None
    model: str = ""
    intended: str = ""  # the model that the journal knows of
    has_earned: bool = False  # its part of the retry budget
    lane: Lane | None = None
    outcome: Outcome = Outcome.BUG
    problem: Problem | None = None
    attempts: int = 0
    lost_attempts: int = 0
    lost_tokens: int = 0
    preemptions: int = 0
    queued_s: float | None = None
    sent_at: float | None = None
    decision: RouteDecision | None = None
    relayed: Relayed | None = None
    owed: Owed = Owed.NOTHING
    unseen_tokens: int = 0
    reserved_tokens: int | None = None
    reserved_nanousd: int | None = None
    done: Done | None = None
    charged_tokens: int | None = None
    cost_nanousd: int | None = None
    limit: str | None = None
    from_cache: bool = False
    hedge: str = ""
    hedge_replica: str = ""

    def ended_with(self, problem: Problem) -> None:
        """The request failed in this way."""
        self.problem = problem
        self.outcome = problem.outcome

    def record(self, now: float) -> RequestRecord:
        """Everything observed, at the end."""
        relayed = self.relayed or Relayed()
        tenant = self.principal.tenant if self.principal else None
        first, last, tokens = relayed.first_content_at, relayed.last_content_at, self._tokens(relayed)
        gaps = relayed.num_chunks - 1
        return RequestRecord(
            request_id=self.request_id,
            client_request_id=self.client_request_id,
            started_at=self.started_at,
            surface=self.surface,
            model=self.model[:_MAX_WORD],
            requested_model=self.request.model[:_MAX_WORD] if self.request else "",
            organization=tenant.organization_id if tenant else "",
            project=tenant.project_id if tenant else "",
            key=self.principal.key_id if self.principal else "",
            lane=self.lane.value if self.lane else "",
            outcome=self.outcome.value,
            status=self.problem.status if self.problem else 200,
            reason=_cut(self.problem.code) if self.problem else None,
            is_streaming=bool(self.request and self.request.is_streaming),
            attempts=self.attempts,
            lost_attempts=self.lost_attempts,
            lost_tokens=self.lost_tokens,
            replica=self.decision.chosen if self.decision else None,
            queue_s=self.queued_s,
            ttft_s=first - self.arrived_at if first is not None else None,
            mean_itl_s=(last - first) / gaps if first is not None and last is not None and gaps > 0 else None,
            max_itl_s=relayed.max_gap_s if gaps > 0 else None,
            duration_s=now - self.arrived_at,
            prompt_tokens=tokens.prompt,
            cached_tokens=tokens.cached,
            completion_tokens=tokens.completion,
            is_estimated=tokens.is_estimated,
            reserved_tokens=self.reserved_tokens,
            charged_tokens=self.charged_tokens,
            cost_nanousd=self.cost_nanousd,
            limit=self.limit,
            from_cache=self.from_cache,
            hedge=self.hedge,
            hedge_replica=self.hedge_replica,
            num_chunks=relayed.num_chunks,
            predicted_ttft_s=self.decision.ttft_s if self.decision else None,
            predicted_hit_tokens=self.decision.hit_tokens if self.decision else None,
            gateway_s=self.sent_at - self.arrived_at - (self.queued_s or 0.0) if self.sent_at is not None else None,
        )

    def _tokens(self, relayed: Relayed) -> _Tokens:
        """As the engine reported. An answer that was cut has no such report: then what was believed and counted."""
        usage = relayed.usage
        if self.done is not None and self.done.is_estimated:
            work = self.done.work
            return _Tokens(work.prompt_tokens, work.cached_tokens, work.output_tokens, is_estimated=True)
        if usage is not None:
            return _Tokens(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        return _Tokens()


def _cut(word: str | None) -> str | None:
    """An engine chooses the code of its own refusal."""
    return None if word is None else word[:_MAX_WORD]
