"""Between the event loop and the engine's thread: requests go in, deltas come out, the loop is woken once a step.

The only module in which both threads meet. The engine's thread only appends to a deque and wakes the loop when no
wake-up is already on its way, so a step of many sequences costs the loop one callback.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from engines.core.admission import Refusal
from engines.core.engine import Engine
from engines.core.sequence import GenerateRequest, SequenceDelta
from engines.worker.no_engine import NoEngine

Arrive = Callable[[SequenceDelta], None]


class EngineLink:
    """An engine as seen from one event loop. Used on the loop, but for `_deliver`."""

    def __init__(self, engine: Engine | NoEngine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._arrivals: dict[str, Arrive] = {}
        self._delivered: deque[SequenceDelta] = deque()
        self._is_waking = False

    def __repr__(self) -> str:
        return f"EngineLink(open={len(self._arrivals)})"

    @property
    def num_open(self) -> int:
        """Sequences whose last delta has not arrived and that were not aborted."""
        return len(self._arrivals)

    def submit(self, request: GenerateRequest, arrive: Arrive) -> Refusal | None:
        """Start a sequence; `arrive` is called on the loop for each of its deltas, until the last or `abort`."""
        self._arrivals[request.id] = arrive
        refusal = self._engine.submit(request, self._deliver)
        if refusal is not None:
            del self._arrivals[request.id]
        return refusal

    def abort(self, request_id: str) -> None:
        """End a sequence in the engine; nothing more of it arrives. Harmless when it is over."""
        if self._arrivals.pop(request_id, None) is not None:
            self._engine.abort(request_id)

    def _deliver(self, delta: SequenceDelta) -> None:
        """In the engine's thread. Append first, look at the flag second: `_dispatch` does it the other way round."""
        self._delivered.append(delta)
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        self._is_waking = False
        while self._delivered:
            delta = self._delivered.popleft()
            arrive = self._arrivals.get(delta.request_id)
            if arrive is None:
                continue
            if delta.finish_reason is not None:
                del self._arrivals[delta.request_id]
            arrive(delta)
