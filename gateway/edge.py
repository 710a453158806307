"""What all public connections of a process share: whom they ask, what they may hold, how long they wait."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from engines.contract import Headers
from gateway.body import Bodies
from gateway.sink import ClientSink, Incoming

Serve = Callable[[Incoming, ClientSink], Coroutine[Any, Any, None]]
IsKnown = Callable[[Headers], bool]
ABORT = "warmlane.abort"  # the ASGI extension that drops the request's connection at once


@dataclass(frozen=True, slots=True)
class Edge:
    """What all connections share. Times in seconds: see `TimeoutSection`.

    `is_known`: whether the headers' key opens a door; asked before a body is waited for.
    """

    serve: Serve
    is_known: IsKnown
    hot_paths: frozenset[bytes]
    bodies: Bodies
    max_connections: int
    head_s: float
    body_s: float
    idle_s: float
    lingering: set[Any] = field(default_factory=set)  # refused connections above the limit
