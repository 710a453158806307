"""One choice of an answer: from the engine's tokens to text that may be sent. Pure.

Owns the order of things: bytes become text, text passes the stop strings, what is held back comes out at the end.
Log probabilities wait for the next piece of text, so that no chunk is empty.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engines.core.sequence import FinishReason, SequenceDelta, TokenLogprob
from engines.worker.detokenizer import Detokenizer
from engines.worker.errors import ApiError, unavailable
from engines.worker.stops import StopMatcher, StopScanner


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a choice ended: OpenAI's `reason`, and as `stop_reason` the stop string or stop token, if it was one."""

    reason: str
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What may be sent of one choice after one step. Never both without text and without a finish."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None


class Choice:
    """The growing text of one choice. `num_tokens`: generated so far, stop tokens included."""

    def __init__(
        self,
        index: int,
        piece_of: Callable[[int], bytes],
        *,
        matcher: StopMatcher | None = None,
        include_stop: bool = False,
        min_tokens: int = 0,
        eos_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.cached_tokens: int | None = None
        self.finish: Finish | None = None
        self._piece_of = piece_of
        self._detokenizer = Detokenizer()
        self._scanner = StopScanner(matcher, include_stop=include_stop) if matcher else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._eos_ids = eos_ids
        self._logprobs: list[TokenLogprob] = []

    def absorb(self, delta: SequenceDelta) -> Piece | None:
        """What this step adds, or None if all of it is held back. Nothing more after a finish.

        Raises `ApiError` when the engine gave the sequence up.
        """
        if self.finish is not None:
            return None
        _check_alive(delta)
        self.cached_tokens = delta.cached_tokens
        text = self._absorb_tokens(delta)
        if self._scanner is not None and self._scanner.matched is not None:
            self.finish = Finish("stop", self._scanner.matched)
        elif delta.finish_reason is not None:
            text += self._flush()
            self.finish = self._finish_of(delta)
        if not text and self.finish is None:
            return None
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Piece(self.index, text, logprobs, self.finish)

    def _absorb_tokens(self, delta: SequenceDelta) -> str:
        logprobs = delta.logprobs or ()
        text = ""
        for position, token in enumerate(delta.token_ids):
            self.num_tokens += 1
            is_stop_token = delta.stop_token is not None and position == len(delta.token_ids) - 1
            if is_stop_token and not self._include_stop:
                break
            self._logprobs.extend(logprobs[position : position + 1])
            text += self._scan(self._detokenizer.feed((self._piece_of(token),)))
            if self._scanner is not None and self._scanner.matched is not None:
                break
        self.num_tokens = delta.num_output
        return text

    def _scan(self, text: str) -> str:
        """Text past the stop strings; the first `min_tokens` tokens can neither match nor begin a match."""
        if self._scanner is None or self.num_tokens <= self._min_tokens:
            return text
        return self._scanner.feed(text)

    def _flush(self) -> str:
        """All that is left when no more tokens come. An incomplete character at the very end may not stop anything."""
        held = self._scanner.flush() if self._scanner is not None else ""
        return held + self._detokenizer.flush()

    def _finish_of(self, delta: SequenceDelta) -> Finish:
        if delta.finish_reason is FinishReason.LENGTH:
            return Finish("length")
        is_plain_end = delta.stop_token is None or delta.stop_token in self._eos_ids
        return Finish("stop", None if is_plain_end else delta.stop_token)


def _check_alive(delta: SequenceDelta) -> None:
    if delta.finish_reason is FinishReason.ERROR:
        raise ApiError(500, "the engine failed in this request", code="engine_failed")
    if delta.finish_reason is FinishReason.ABORT:
        raise unavailable("the request was aborted because the worker is stopping", code="stopping")
