"""Where an answer goes: the lifecycle writes to a `ClientSink` and never learns which server is behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engines.contract import Headers
from policies.quota_refusal import Rejected


class SinkWatcher(Protocol):
    """Who wants to know that a client reads slowly."""

    def on_slow(self) -> None:
        """The client's connection holds more than it should: stop producing."""
        ...

    def on_drained(self) -> None:
        """There is room again."""
        ...


class ClientSink(Protocol):
    """One answer to one client. No method waits; nothing is sent twice.

    Order: `start`, any number of `write`, then `end` or `abort`. After the client has left every call is harmless.
    """

    @property
    def is_gone(self) -> bool:
        """Whether the client has left before the answer was complete."""
        ...

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Status and headers. `length` in bytes, or None for a stream of unknown length."""
        ...

    def write(self, data: bytes) -> None:
        """A piece of the body; sent at once."""
        ...

    def end(self) -> None:
        """The body is complete."""
        ...

    def abort(self) -> None:
        """Drop the connection without completing the body, even if the client reads nothing; it counts as gone."""
        ...

    def watch(self, watcher: SinkWatcher | None) -> None:
        """Tell `watcher` of a slow client from now on; None: nobody."""
        ...

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Call `callback` once if the client leaves before the answer is complete."""
        ...


@dataclass(frozen=True, slots=True)
class Incoming:
    """One request as it came. Header names are lower case. `arrived_at`: monotonic seconds, body complete.

    `used_up`: the limit that has nothing left for it, so that its body was not waited for.
    """

    path: str
    headers: Headers
    body: bytes
    arrived_at: float
    peer: str = ""
    used_up: Rejected | None = None

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, the first if there are several, None if there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return None
