"""`python -m engines.worker`.

A signal may come while the libraries are loaded, which takes a second: nothing is held then, so it ends the process at
once, without a traceback. Only the standard library is imported before that is arranged.
"""

import os
import signal
from types import FrameType


def main() -> None:
    """The entry point."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    from engines.worker.cli import main as command

    command()


if __name__ == "__main__":
    main()
