"""One request's open sequences: started together, read as pieces of text, ended together whatever happens.

Held by `with`: leaving it aborts what still runs, so a client that goes, an error and a shutdown all free the engine.
Buffers about `max_pending` pieces for a slow reader; beyond that the request fails rather than the worker's memory.
"""

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from engines.core.admission import Refusal, RefusalReason
from engines.core.sequence import GenerateRequest, SequenceDelta
from engines.worker.choice import Choice, Piece
from engines.worker.engine_link import EngineLink
from engines.worker.errors import ApiError, invalid, stopping, unavailable


class TokenTimes(Protocol):
    """Told when tokens arrive. Seconds; both are called on the loop."""

    def first_token(self, ttft_s: float) -> None:
        """A request's first token came this long after its arrival."""

    def next_tokens(self, gap_s: float, num_tokens: int) -> None:
        """`num_tokens` came this long after the sequence's previous ones."""


class Generation:
    """The choices of one request while they are generated. `ttft_s` is None until the first token."""

    def __init__(
        self, link: EngineLink, times: TokenTimes, *, arrival: float, clock: Callable[[], float], max_pending: int
    ) -> None:
        self._link = link
        self._times = times
        self._arrival = arrival
        self._clock = clock
        self._max_pending = max_pending
        self._choices: dict[str, Choice] = {}
        self._last_token: dict[str, float] = {}
        self._pending: list[Piece] = []
        self._num_unfinished = 0
        self._waiting: asyncio.Future[None] | None = None  # the reader
        self._failure: ApiError | None = None
        self.ttft_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abort_all()

    @property
    def choices(self) -> Sequence[Choice]:
        """All choices, by index."""
        return tuple(self._choices.values())

    def start(self, requests: Sequence[tuple[GenerateRequest, Choice]]) -> None:
        """Queue all sequences, or none and raise `ApiError`."""
        for request, choice in requests:
            self._choices[request.id] = choice
            self._num_unfinished += 1
            refusal = self._link.submit(request, self._arrive)
            if refusal is not None:
                self._abort_all()
                raise _refused(refusal)

    def fail(self, error: ApiError) -> None:
        """End all of it; the reader gets what has arrived, then `error`. The first failure counts."""
        self._failure = self._failure or error
        self._abort_all()
        self._wake()

    async def next_pieces(self) -> list[Piece]:
        """What has arrived since the last call, at least one piece; empty when all choices are finished and read.

        Raises `ApiError` when the engine gave up, the worker stops or the reader was too slow.
        """
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            if not self._num_unfinished:
                return []
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        pieces, self._pending = self._pending, []
        return pieces

    def _arrive(self, delta: SequenceDelta) -> None:
        if delta.token_ids:
            self._observe(delta)
        try:
            piece = self._choices[delta.request_id].absorb(delta)
        except ApiError as error:
            self.fail(error)
            return
        if piece is None:
            return
        if piece.finish is not None:
            self._num_unfinished -= 1
            self._link.abort(delta.request_id)  # the engine does not know of a stop string
        self._pending.append(piece)
        self._wake()
        if len(self._pending) > self._max_pending:
            self.fail(unavailable("the client reads too slowly", code="slow_client"))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():  # done: cancelled, as the client left
            waiting.set_result(None)

    def _observe(self, delta: SequenceDelta) -> None:
        now = self._clock()
        if self.ttft_s is None:
            self.ttft_s = now - self._arrival
            self._times.first_token(self.ttft_s)
        last = self._last_token.get(delta.request_id)
        if last is not None:
            self._times.next_tokens(now - last, len(delta.token_ids))
        self._last_token[delta.request_id] = now

    def _abort_all(self) -> None:
        for request_id in self._choices:
            self._link.abort(request_id)


def _refused(refusal: Refusal) -> ApiError:
    if refusal.reason.is_callers_fault:
        return invalid("max_tokens", refusal.message, code="context_length_exceeded")
    if refusal.reason is RefusalReason.QUEUE_FULL:
        return unavailable("the request queue is full", code="queue_full")
    if refusal.reason is RefusalReason.STOPPING:
        return stopping()
    return ApiError(500, "the request could not be queued", code=refusal.reason.value)
