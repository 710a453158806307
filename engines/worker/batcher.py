"""Puts the texts of several requests into one call of an embedding model, off the event loop.

One call at a time; what arrives meanwhile goes into the next, up to a batch. A request that leaves is left out.
A call that fails is logged, whatever the failure, and ends the requests in it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from engines.core.embedding import Floats
from engines.worker.errors import ApiError, stopping, unavailable
from observability import logs

Input = Sequence[int]


@dataclass(slots=True)
class _Waiting:
    """One item, and where its row goes."""

    item: Input
    row: asyncio.Future[Floats]


class Batcher:
    """`call`: rows, one an input, in order; runs in a thread. Inputs are tokens.

    `max_batch_tokens`: of one call, unless a single input has more. `max_waiting`: inputs that wait at most.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Input]], Floats],
        *,
        max_batch_tokens: int,
        max_waiting: int = 8192,
    ) -> None:
        self._call = call
        self._max_batch_tokens = max_batch_tokens
        self._max_waiting = max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._at_work: Sequence[_Waiting] = ()
        self._is_stopping = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="embed")
        self._running: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Batcher waiting={len(self._waiting)} running={self._running is not None}>"

    async def rows(self, items: Sequence[Input]) -> Floats:
        """The rows of all items, stacked.

        Raises `ApiError`: 503 when too many wait or the worker stops, 500 when the model failed.
        """
        if self._is_stopping:
            raise stopping()
        if len(self._waiting) + len(items) > self._max_waiting:
            raise unavailable("too many texts are waiting", code="queue_full")
        loop = asyncio.get_running_loop()
        entries = [_Waiting(item, loop.create_future()) for item in items]
        self._waiting.extend(entries)
        if self._running is None:
            self._running = loop.create_task(self._run())
        try:
            return np.stack(await asyncio.gather(*(entry.row for entry in entries)))
        finally:
            for entry in entries:
                entry.row.cancel()

    def stop(self) -> None:
        """End all that wait or are at work with an error, and what comes after. May be repeated."""
        self._is_stopping = True
        for entry in (*self._at_work, *self._waiting):
            if not entry.row.done():
                entry.row.set_exception(stopping())

    def close(self) -> None:
        """Call nothing more; waits for the call at work."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _run(self) -> None:
        try:
            while batch := self._next_batch():
                await self._answer(batch)
        finally:
            self._running = None

    def _next_batch(self) -> list[_Waiting]:
        """The oldest that still wait, at least one and up to a batch."""
        batch: list[_Waiting] = []
        size = 0
        while self._waiting:
            entry = self._waiting[0]
            if not entry.row.done():
                size += len(entry.item)
                if batch and size > self._max_batch_tokens:
                    break
                batch.append(entry)
            self._waiting.popleft()
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        self._at_work = batch
        try:
            rows = await loop.run_in_executor(self._pool, self._call, [entry.item for entry in batch])
            answered = list(zip(batch, rows, strict=True))
        except Exception as error:  # noqa: BLE001  # whatever it is: nobody may be left waiting
            logs.get().error("embeddings.call_failed", exc_info=error)
            for entry in batch:
                if not entry.row.done():
                    failure = ApiError(500, "the model failed on this text", code="engine_failed")
                    failure.__cause__ = error
                    entry.row.set_exception(failure)
            return
        finally:
            self._at_work = ()
        for entry, row in answered:
            if not entry.row.done():
                entry.row.set_result(row)
