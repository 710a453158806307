"""What is observed of one request, and the one line it leaves. Never any text of it.

Outcomes are a closed set, since they label a metric too.
"""

import re
import uuid
from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog

from engines.worker.answers import Usage
from engines.worker.bounds import REQUEST_ID
from engines.worker.errors import ApiError
from engines.worker.exchange import Exchange

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


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
    """One request on its way. `outcome` starts as a failure: whatever forgets to say otherwise has failed.

    `num_choices`: answers asked for; `num_inputs`: texts, or pairs of them, to embed or to rank.
    """

    request_id: str
    surface: str
    arrival: float
    trace_id: str = ""
    outcome: Outcome = Outcome.FAILED
    status: int = 500
    code: str | None = None
    is_streaming: bool = False
    num_choices: int = 0
    num_inputs: int = 0
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
        if self.num_inputs:
            fields["num_inputs"] = self.num_inputs
        if self.code is not None:
            fields["code"] = self.code
        if self.trace_id:
            fields["trace_id"] = self.trace_id
        if self.usage is not None:
            fields["prompt_tokens"] = self.usage.prompt_tokens
            fields["cached_tokens"] = self.usage.prompt_tokens_details.cached_tokens
            fields["completion_tokens"] = self.usage.completion_tokens
        log.debug("request.finished", **fields)  # the gateway has the line that an operator reads


def open_entry(exchange: Exchange, surface: str, now: float) -> RequestEntry:
    """The entry of a request that has just arrived; its id, the client's or a new one, goes into the answer."""
    asked = exchange.header(b"x-request-id")
    request_id = asked if REQUEST_ID.fullmatch(asked) else uuid.uuid4().hex
    exchange.answer_headers.append((b"x-request-id", request_id.encode()))
    traced = _TRACEPARENT.fullmatch(exchange.header(b"traceparent"))
    return RequestEntry(request_id, surface, now, trace_id=traced[1] if traced else "")
