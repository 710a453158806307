"""One request, one record: everything observed of it, from which the log line, the metrics and receipts are made.

Built once, when the request has ended. No prompt, completion, header or key is ever in it.
"""

from msgspec import Struct


class RequestRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Times in seconds since arrival, None if never reached. `outcome` is a closed set (gateway/outcome.py)."""

    request_id: str
    client_request_id: str | None = None
    started_at: float  # Unix seconds
    surface: str
    model: str
    requested_model: str = ""
    organization: str = ""
    project: str = ""
    key: str = ""
    lane: str = ""
    outcome: str
    status: int
    reason: str | None = None
    is_streaming: bool = False
    attempts: int = 0
    lost_attempts: int = 0  # those that an engine failed before any content
    lost_tokens: int = 0  # the work in them that nobody pays for, as reported or predicted
    replica: str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    mean_itl_s: float | None = None
    max_itl_s: float | None = None
    duration_s: float
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    is_estimated: bool = False  # the tokens are from what was known: the engine reported none
    reserved_tokens: int | None = None  # charged tokens expected on arrival
    charged_tokens: int | None = None  # input, cached input by its discount, and output
    cost_nanousd: int | None = None  # 1e-9 USD; None where the model has no price
    limit: str | None = None  # which limit refused it, or in shadow mode would have
    from_cache: bool = False  # the response cache had the answer: no engine was asked
    hedge: str = ""  # of a second attempt beside a slow one: `won`, `lost` or `failed`
    hedge_replica: str = ""  # where it was made
    num_chunks: int = 0
    predicted_ttft_s: float | None = None
    predicted_hit_tokens: int | None = None
    gateway_s: float | None = None  # time not spent waiting for a turn or an engine, where it could be told apart
