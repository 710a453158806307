"""Work on llama.cpp that must leave no compute threads behind: done in a thread that ends with it.

OpenMP, with which the library computes, keeps a team of threads for every thread that ever computed. When all teams
together have more threads than there are cores, their members no longer wait actively for one another, and a step has
hundreds of places to wait at. Measured on 2 cores: a model loaded on one thread and served from another took 12.8 ms
a token instead of 5.2, and 48 ms instead of 24 at batch 16. A team ends with its thread.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def in_passing_thread(work: Callable[[], Result]) -> Result:
    """What `work` returns or raises, done in a thread of its own that has ended by then.

    Interrupted (a signal's handler raises), it leaves the work to a daemon thread, which ends with the process.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  # raised again below, in the thread that asked
            errors.append(error)

    thread = threading.Thread(target=run, name="llama.cpp for a moment", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
