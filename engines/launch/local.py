"""One start of one child process on this machine: until it is ready, while it runs, and its end.

The child announces itself by a ready line on stdout. What it writes to stderr is passed on line by line, and the last
lines are kept to explain a failure. It lives in a session of its own, so that Ctrl-C in a terminal reaches only the
supervisor, which then ends its children in order; and it is tied to us, so that it never outlives us.
"""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from engines.launch.lines import LineSplitter
from engines.launch.ready_line import ReadyLine, parse_ready_line
from engines.launch.tether import tethered
from observability import logs

Echo = Callable[[bytes], None]

_TAIL_LINES = 20  # enough for a Python traceback's end and the sentence after it
_TAIL_LINE_BYTES = 2000
_PIPES_CLOSE_S = 2  # after the exit: how long a stray grandchild may hold our pipes before we let go of them
_STDOUT = 1


class StartFailed(Exception):
    """The child did not become ready. `code`: its exit status, negative for a signal, None if it still ran."""

    def __init__(self, reason: str, code: int | None, tail: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.tail = tail


def echo_to_stderr(line: bytes) -> None:
    """Pass one line of a child on, untouched; who does not read our stderr does not hold up the supervision."""
    logs.write_lines(line + b"\n")


class LocalProcess:
    """A running child. Leave it by `async with`, which kills what is left of it; `stop` ends it kindly."""

    def __init__(self, name: str, echo: Echo) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.pid = 0
        self._ears = _Ears(loop, echo)
        self._ended: asyncio.Task[int] | None = None

    def __repr__(self) -> str:
        return f"LocalProcess(name={self.name!r}, pid={self.pid}, is_running={self.is_running})"

    @classmethod
    async def start(cls, name: str, argv: Sequence[str], echo: Echo = echo_to_stderr) -> Self:
        """Start `argv`, tied to this process. Raises `StartFailed` when the program cannot be run at all."""
        self = cls(name, echo)
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.subprocess_exec(
                lambda: self._ears, *tethered(list(argv)), stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise StartFailed(f"{argv[0]} cannot be started: {error.strerror}", None) from error
        self.pid = transport.get_pid()
        self._ended = loop.create_task(self._end(transport), name=f"end of {name}")
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signal(signal.SIGKILL)
        await self.wait()

    @property
    def is_running(self) -> bool:
        """Whether the child has not been reaped yet."""
        return self.pid != 0 and not self._ears.exited.done()

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of its stderr, oldest first."""
        return tuple(self._ears.tail)

    async def ready(self, timeout_s: float) -> ReadyLine:
        """Its ready line. Raises `StartFailed` when it ends first, or still runs but is not ready in `timeout_s`."""
        assert self._ended is not None, "started"
        announced = self._ears.announced
        either: set[asyncio.Future[Any]] = {announced, self._ended}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if announced.done():
            return announced.result()
        if self._ended.done():
            code = self._ended.result()
            raise StartFailed(ending(code, self.tail), code, self.tail)
        raise StartFailed(f"it was not ready within {timeout_s:g} s", None, self.tail)

    async def wait(self) -> int:
        """Its exit status (negative: the signal that killed it), once its output is read to the end."""
        assert self._ended is not None, "started"
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> int:
        """SIGTERM, then after `grace_s` SIGKILL; harmless when it ended already, and again with a shorter grace."""
        assert self._ended is not None, "started"
        self._signal(signal.SIGTERM)
        await asyncio.wait({self._ended}, timeout=grace_s)
        self._signal(signal.SIGKILL)
        return await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _end(self, transport: asyncio.SubprocessTransport) -> int:
        """See the child to its end: reaped, nothing of its process group left, its output read, our pipes closed."""
        try:
            await self._ears.exited
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            await asyncio.wait({self._ears.silent}, timeout=_PIPES_CLOSE_S)
        finally:
            transport.close()
        code = transport.get_returncode()
        assert code is not None, "exited"
        return code


class _Ears(asyncio.SubprocessProtocol):
    """Hears a child: `announced` by its ready line, `exited`, and `silent` when both of its pipes are closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, echo: Echo) -> None:
        self.announced: asyncio.Future[ReadyLine] = loop.create_future()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.silent: asyncio.Future[None] = loop.create_future()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._echo = echo
        self._splitters = {_STDOUT: LineSplitter(), 2: LineSplitter()}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._hear(fd, self._splitters[fd].feed(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        splitter = self._splitters.pop(fd, None)
        if splitter is not None:
            self._hear(fd, splitter.end())
        if not self._splitters and not self.silent.done():
            self.silent.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def _hear(self, fd: int, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode("utf-8", "replace")
            announcement = parse_ready_line(text) if fd == _STDOUT and not self.announced.done() else None
            if announcement is not None:
                self.announced.set_result(announcement)
                continue
            if fd != _STDOUT:
                self.tail.append(text[:_TAIL_LINE_BYTES])
            self._echo(line)


def ending(code: int, tail: Sequence[str]) -> str:
    """One sentence on how a child ended: its own last word if it left one, else its exit status or signal."""
    if code < 0:
        try:
            return f"it was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was killed by signal {-code}"
    said = [line.strip() for line in tail if line.strip() and not line.lstrip().startswith("{")]
    if code != 0 and said:
        return said[-1]
    return f"it ended with exit status {code}"
