"""What all public connections of a process share: whom they ask, what they may hold, how long they wait."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from engines.contract import Headers
from gateway.auth import AuthFailure
from gateway.body import Bodies
from gateway.sink import ClientSink, Incoming
from policies.quota_refusal import Rejected

Serve = Callable[[Incoming, ClientSink], Coroutine[Any, Any, None]]
Ask = Callable[[Headers], AuthFailure | Rejected | None]
ABORT = "warmlane.abort"  # the ASGI extension that drops the request's connection at once


@dataclass(frozen=True, slots=True)
class Edge:
    """What all connections share. Times in seconds: see `TimeoutSection`.

    `ask`: why a request with these headers is refused whatever its body is; None: its body is worth waiting for.
    """

    serve: Serve
    ask: Ask
    hot_paths: frozenset[bytes]
    bodies: Bodies
    max_connections: int
    head_s: float
    body_s: float
    idle_s: float
    lingering: set[Any] = field(default_factory=set)  # refused connections above the limit
