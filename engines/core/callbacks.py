"""Calls of other people's code from the engine thread, which must not be taken down by them."""

import contextlib
from collections.abc import Callable


class Callbacks:
    """`on_fault`: told what was raised; what it raises itself is lost."""

    def __init__(self, on_fault: Callable[[BaseException], None] | None) -> None:
        self._on_fault = on_fault

    def call(self, callback: Callable[..., None], *args: object) -> bool:
        """Call it; False if it raised, such as a receiver whose event loop is gone."""
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the engine's
            self.report(error)
            return False
        return True

    def report(self, error: Exception) -> None:
        """Tell of an error."""
        if self._on_fault is not None:
            with contextlib.suppress(Exception):
                self._on_fault(error)
