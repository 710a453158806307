"""The client of what has none: whatever is written to it is gone."""

from collections.abc import Callable

from engines.contract import Headers
from gateway.sink import SinkWatcher


class Nowhere:
    """A `ClientSink` that never leaves and is never slow."""

    is_gone = False

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Nobody hears it."""

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def end(self) -> None:
        """Nobody waited."""

    def abort(self) -> None:
        """There is no connection."""

    def watch(self, watcher: SinkWatcher | None) -> None:
        """It is never slow."""

    def on_gone(self, callback: Callable[[], object]) -> None:
        """It never leaves."""
