"""What happened to one request, written down while it happens; at its end it becomes the one `RequestRecord`."""

import secrets
from dataclasses import dataclass, field

from gateway.errors import Problem
from gateway.outcome import Outcome
from gateway.relay import Relayed
from gateway.request import InferenceRequest
from observability.records import RequestRecord
from policies.lane import Lane
from policies.tenant import Principal
from routing.decision import RouteDecision

_MAX_WORD = 128  # characters of what others wrote that go into a record


@dataclass(slots=True)
class Story:
    """Mutable, one a request. Times are monotonic seconds, `started_at` Unix seconds."""

    surface: str
    arrived_at: float
    started_at: float
    client_request_id: str | None
    request_id: str = field(default_factory=lambda: "req_" + secrets.token_hex(12))
    principal: Principal | None = None
    request: InferenceRequest | None = None
    model: str = ""
    lane: Lane | None = None
    outcome: Outcome = Outcome.BUG
    problem: Problem | None = None
    attempts: int = 0
    preemptions: int = 0
    queued_s: float | None = None
    sent_at: float | None = None
    decision: RouteDecision | None = None
    relayed: Relayed | None = None

    def ended_with(self, problem: Problem) -> None:
        """The request failed in this way."""
        self.problem = problem
        self.outcome = problem.outcome

    def record(self, now: float) -> RequestRecord:
        """Everything observed, at the end."""
        relayed = self.relayed or Relayed()
        tenant = self.principal.tenant if self.principal else None
        first, last, usage = relayed.first_content_at, relayed.last_content_at, relayed.usage
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
            replica=self.decision.chosen if self.decision else None,
            queue_s=self.queued_s,
            ttft_s=first - self.arrived_at if first is not None else None,
            mean_itl_s=(last - first) / gaps if first is not None and last is not None and gaps > 0 else None,
            max_itl_s=relayed.max_gap_s if gaps > 0 else None,
            duration_s=now - self.arrived_at,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            num_chunks=relayed.num_chunks,
            predicted_ttft_s=self.decision.ttft_s if self.decision else None,
            predicted_hit_tokens=self.decision.hit_tokens if self.decision else None,
            gateway_s=self.sent_at - self.arrived_at - (self.queued_s or 0.0) if self.sent_at is not None else None,
        )


def _cut(word: str | None) -> str | None:
    """An engine chooses the code of its own refusal."""
    return None if word is None else word[:_MAX_WORD]
