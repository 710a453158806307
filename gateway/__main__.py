"""The program `warmlane`: `python -m gateway`.

A signal may come while the libraries are loaded, which takes most of a second: nothing is held then, so it ends the
process at once, without a traceback. Only the standard library is imported before that is arranged.
"""

import os
import signal
import sys
from types import FrameType

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SERVICES = (["up"], ["gateway"])  # to be stopped is how they end well


def main() -> None:
    """The entry point."""
    is_service = sys.argv[1:2] in _SERVICES
    before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}

    def leave(number: int, _frame: FrameType | None) -> None:
        os._exit(0 if is_service else 128 + number)

    for number in _STOP_SIGNALS:
        signal.signal(number, leave)
    if is_service:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the supervisor answers it

    from gateway.cli import main as command

    if not is_service:  # a service sets its own once it holds something
        for number, handler in before.items():
            signal.signal(number, handler)
    command()


if __name__ == "__main__":
    main()
