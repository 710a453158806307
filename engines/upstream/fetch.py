"""A whole answer instead of callbacks: the sink for health probes, load reports and other small calls."""

import asyncio
from typing import NamedTuple

from engines.contract import Fault, Headers, ReplicaError


class Answer(NamedTuple):
    """A whole answer, of any status. Names of `headers` are lower case."""

    status: int
    headers: Headers
    body: bytes


class Collector:
    """An `UpstreamSink` that keeps one answer of at most `max_bytes` of body. Made on a running loop."""

    def __init__(self, max_bytes: int) -> None:
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._max_bytes = max_bytes
        self._status = 0
        self._headers: Headers = []
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    async def collect(self, timeout_s: float) -> Answer:
        """The answer, once it is whole. Raises ReplicaError: `Fault.TIMEOUT` after `timeout_s`, or what broke it."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answer
        except TimeoutError as error:
            raise ReplicaError(Fault.TIMEOUT, f"no whole answer within {timeout_s:g} s", status=self._status) from error

    def on_head(self, status: int, headers: Headers) -> None:
        """Keep it."""
        self._status, self._headers = status, headers

    def on_data(self, data: bytes) -> None:
        """Keep it, unless the bound is passed: then the answer has failed and nothing of it is kept."""
        self._num_bytes += len(data)
        if self._num_bytes <= self._max_bytes:
            self._pieces.append(data)
            return
        self._pieces.clear()
        self.on_fail(ReplicaError(Fault.PROTOCOL, f"an answer of over {self._max_bytes} bytes", status=self._status))

    def on_flush(self) -> None:
        """Nothing to do before the end."""

    def on_end(self) -> None:
        """The answer is whole."""
        if not self._answer.done():
            self._answer.set_result(Answer(self._status, self._headers, b"".join(self._pieces)))

    def on_fail(self, error: ReplicaError) -> None:
        """It will never be."""
        if not self._answer.done():
            self._answer.set_exception(error)
