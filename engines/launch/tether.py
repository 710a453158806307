"""Ties a process to the one that started it: if the supervisor dies, however it dies, its children die too.

`python -m engines.launch.tether PARENT_PID PROGRAM ARGUMENTS…` sets the tie and becomes the program, under the same
process id. Linux does it in the kernel (it survives exec); elsewhere the child watches for itself, so a program of ours
calls `die_with_parent` there. Imports the standard library only: it runs before every child.
"""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_WATCH_INTERVAL_S = 0.5


def die_with_parent(parent_pid: int) -> None:
    """End this process with SIGKILL as soon as its parent `parent_pid` is gone.

    NOTE: Linux sends the signal when the parent's *thread* that started us ends, so start children from a thread that
    lives as long as the process does. Ends the process at once if the parent went before the tie was made.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot tie this process to its parent")
    else:
        threading.Thread(target=_watch, args=(parent_pid,), name="parent-watch", daemon=True).start()
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def tethered(argv: list[str]) -> list[str]:
    """The command that runs `argv` tied to this process; `argv` itself where the kernel has no such tie."""
    if sys.platform != "linux":
        return argv
    return [sys.executable, "-m", "engines.launch.tether", str(os.getpid()), *argv]


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_WATCH_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Tie, then become the program."""
    parent_pid, *argv = sys.argv[1:]
    die_with_parent(int(parent_pid))
    try:
        os.execvp(argv[0], argv)  # noqa: S606  # this is the point: no shell, same process id
    except OSError as error:
        sys.exit(f"{argv[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
