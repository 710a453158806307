"""What is observed of one request, and the one line it leaves. Never any text of it.

Outcomes are a closed set, since they label a metric too.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog

from engines.worker.answers import Usage
from engines.worker.errors import ApiError


class Outcome(Enum):
    """How a request ended."""

    COMPLETED = "completed"
    REFUSED = "refused"  # the client's fault
    UNAVAILABLE = "unavailable"  # not now: full, draining, stopping, or too slow a reader
    FAILED = "failed"  # ours
    CLIENT_GONE = "client_gone"

    @classmethod
    def of(cls, error: ApiError) -> "Outcome":
        """The outcome of a request that ends with this error."""
        if error.status < 500:
            return cls.REFUSED
        return cls.UNAVAILABLE if error.status == 503 else cls.FAILED


@dataclass(slots=True)
class RequestEntry:
    """One request on its way. `outcome` starts as a failure: whatever forgets to say otherwise has failed."""

    request_id: str
    surface: str
    arrival: float
    trace_id: str = ""
    outcome: Outcome = Outcome.FAILED
    status: int = 500
    code: str | None = None
    is_streaming: bool = False
    num_choices: int = 0
    lane: str = ""
    usage: Usage | None = None
    ttft_s: float | None = None

    def complete(self) -> None:
        """The answer was sent to its end."""
        self.outcome, self.status = Outcome.COMPLETED, 200

    def end_with(self, error: ApiError) -> None:
        """The answer is an error, or ended with one."""
        self.outcome, self.status, self.code = Outcome.of(error), error.status, error.code

    def leave(self) -> None:
        """The client left."""
        self.outcome, self.status = Outcome.CLIENT_GONE, 499

    def write(self, log: structlog.typing.FilteringBoundLogger, now: float) -> None:
        """The line."""
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "surface": self.surface,
            "outcome": self.outcome.value,
            "status": self.status,
            "is_streaming": self.is_streaming,
            "num_choices": self.num_choices,
            "lane": self.lane,
            "duration_s": round(now - self.arrival, 6),
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 6),
        }
        if self.code is not None:
            fields["code"] = self.code
        if self.trace_id:
            fields["trace_id"] = self.trace_id
        if self.usage is not None:
            fields["prompt_tokens"] = self.usage.prompt_tokens
            fields["cached_tokens"] = self.usage.prompt_tokens_details.cached_tokens
            fields["completion_tokens"] = self.usage.completion_tokens
        log.debug("request.finished", **fields)  # the gateway has the line that an operator reads
