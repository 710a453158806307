"""The bodies of pre-warming: what an operator asks for, and what came of it on each replica."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from policies.lane import Lane

MAX_REPLICAS = 64  # chosen: warmed at once
MAX_TIMEOUT_S = 600.0  # chosen: a long prompt on a CPU; the asking connection waits for it


class WarmBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What POST /replicas/warm takes.

    `request`: a body as a client of the project would send it; its answer is bounded to one token. `count`: on how
    many replicas, those that hold most of it first, then the least loaded; or `replicas`: on these, by name.
    `lane`: in which it waits and is charged. `timeout_s`: for each replica; what was not read by then is left.
    """

    project_id: Annotated[str, Meta(min_length=1, max_length=64)]
    request: dict[str, Any]
    surface: Annotated[str, Meta(pattern="^/v1/(chat/completions|completions)$")] = "/v1/chat/completions"
    count: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1
    replicas: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=MAX_REPLICAS)] = []
    lane: Lane = Lane.BULK
    timeout_s: Annotated[float, Meta(ge=0.1, le=MAX_TIMEOUT_S)] = 60.0


class WarmedReplica(Struct, frozen=True):
    """What one replica did. `outcome`: `finished` if it holds the prefix now; else `reason` says why not.

    Token counts are null where the engine did not report them. `uncached_tokens`: read now.
    """

    replica: str
    outcome: str
    reason: str | None
    request_id: str
    prompt_tokens: int | None
    cached_tokens: int | None
    uncached_tokens: int | None
    queue_s: float | None
    duration_s: float


class WarmedBody(Struct, frozen=True):
    """What came of it. `charged_tokens`: to the project, of all replicas."""

    project_id: str
    organization_id: str
    model: str
    lane: Lane
    asked: int
    warmed: int
    charged_tokens: int
    replicas: list[WarmedReplica]
