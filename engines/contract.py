"""What the gateway needs from any engine, and nothing about how an engine works inside.

An adapter turns a request into the bytes one engine understands and reads back what it says about itself.
It does no I/O. Facts behind the adapters: docs/engines.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import msgspec

from policies.lane import Lane

Headers = list[tuple[bytes, bytes]]


class Fault(Enum):
    """Whose fault a failed upstream attempt is, and what the gateway may do next."""

    CONNECT = "connect"  # nothing was sent: another replica may be tried
    STALE = "stale"  # a reused connection closed before a byte of the answer: may be tried again
    RESET = "reset"  # the connection broke in mid-answer
    TIMEOUT = "timeout"  # first token or idle timeout
    STATUS = "status"  # the engine answered 5xx
    BACKPRESSURE = "backpressure"  # the engine answered 429 or 503: busy, not broken
    CLIENT = "client"  # the engine answered another 4xx: the client's fault, never retried, never held against it
    PROTOCOL = "protocol"  # the answer was not HTTP, or not what it claimed to be
    UNSERVED = "unserved"  # the engine has no such endpoint: another may be asked, and it is not held against this one


class ReplicaError(Exception):
    """An upstream attempt failed. `status` is the engine's (0 if it never answered), `body` its answer, if any."""

    def __init__(
        self, fault: Fault, message: str, *, status: int = 0, retry_after_s: float | None = None, body: bytes = b""
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s
        self.body = body


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do that the gateway acts on.

    `priority`: it reads urgent prompts first. `leaves_bulk_out`: it leaves resident bulk out of steps that would take
    longer than people should wait, so nobody needs to count its bulk. `splits_prefill`: one such server can read a
    prompt for another to answer.
    """

    cache_salt: bool = False
    priority: bool = False
    reports_cached_tokens: bool = False
    forbids_unknown_fields: bool = False
    tokenize: bool = False
    leaves_bulk_out: bool = False
    splits_prefill: bool = False


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What an engine says about its load. `None` where it says nothing. `kv_used_ratio`: 0..1."""

    running: int | None = None
    waiting: int | None = None
    kv_used_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Steering:
    """What the gateway, never the client, decides about one upstream attempt.

    `model`: the name the engine serves. `cache_salt`: the tenant's. `attempt_id`: fresh for every attempt. `surface`:
    of those that generate no text (`adapters/surfaces.py`); empty: chat or completions. `reads_only`: the prompt shall
    be read for another server to answer; `transfer`: what one that did so has told, for the one that answers.
    """

    model: str
    lane: Lane
    cache_salt: str
    attempt_id: str
    is_streaming: bool
    traceparent: str | None = None
    surface: str = ""
    reads_only: bool = False
    transfer: bytes = b""


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form. `filename`: of a file, None of a text. `content`: a file's bytes are never looked into."""

    name: str
    content: bytes | memoryview
    filename: str | None = None
    content_type: bytes = b""


class EngineAdapter(Protocol):
    """One engine kind. Stateless; all methods are pure.

    `paths`: its endpoints that generate no text, by the gateway's surface. `tells_tasks`: its `/v1/models` says what
    each model does. `usual_tasks`: what its models do where nobody says; None: anything.
    """

    kind: str
    capabilities: Capabilities
    paths: Mapping[str, str]
    tells_tasks: bool
    usual_tasks: frozenset[str] | None

    def body(self, fields: dict[str, msgspec.Raw], steering: Steering) -> bytes:
        """The upstream JSON body: the client's own fields without steering ones, plus those the gateway sets.

        Nested values keep the client's bytes. `fields` is not changed. A streaming body always asks for usage.
        """
        ...

    def form(self, parts: Sequence[Part], steering: Steering) -> bytes:
        """The upstream multipart body of a surface that is asked by a form: as `body`, less what steers.

        Files keep the client's bytes. `headers` says how it is cut.
        """
        ...

    def headers(self, steering: Steering, api_key: str | None) -> Headers:
        """Request headers besides host and content-length; content-type only of what is not JSON."""
        ...

    @property
    def health_path(self) -> str:
        """GET this: 200 means ready to serve."""
        ...

    @property
    def load_path(self) -> str | None:
        """GET this for `read_load`, or None if the engine says nothing of its load."""
        ...

    def read_load(self, body: bytes) -> LoadReport:
        """What `load_path` answered. Never raises: what cannot be read is None."""
        ...


class UpstreamSink(Protocol):
    """Receives one upstream answer by callbacks, on the event loop. Exactly one of on_end and on_fail comes last."""

    def on_head(self, status: int, headers: Headers) -> None:
        """Status line and headers (names lower case, hop-by-hop ones removed)."""
        ...

    def on_data(self, data: bytes) -> None:
        """A piece of the body, unframed."""
        ...

    def on_flush(self) -> None:
        """All pieces of one socket read were delivered: write now, once."""
        ...

    def on_end(self) -> None:
        """The body is complete."""
        ...

    def on_fail(self, error: ReplicaError) -> None:
        """The attempt failed; `on_end` will not come."""
        ...


class UpstreamExchange(Protocol):
    """One request in flight on one upstream connection."""

    def abort(self) -> None:
        """Close the connection, so that the engine aborts; no further callback. Harmless when already over."""
        ...

    def pause(self) -> None:
        """Stop reading: the client is slow."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...


class Upstream(Protocol):
    """The connections to one replica (implemented in engines/upstream.py)."""

    def send(self, path: str, headers: Headers, body: bytes, sink: UpstreamSink) -> UpstreamExchange:
        """Start a POST; callbacks follow, never before this returns."""
        ...

    def close(self) -> None:
        """Drop idle connections and fail what is in flight."""
        ...
