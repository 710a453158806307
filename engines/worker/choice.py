"""One choice of an answer: from the engine's tokens to text that may be sent. Pure.

Owns the order of things: bytes become text, text passes the stop strings, chat answers are read for reasoning and
tool calls, what is held back comes out at the end. Log probabilities wait for the next piece of text, so that no chunk
is empty.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engines.core.sequence import FinishReason, SequenceDelta, TokenLogprob
from engines.worker.detokenizer import Detokenizer
from engines.worker.errors import ApiError, invalid, unavailable
from engines.worker.output.parts import Part, merged
from engines.worker.output.reply import ReplyReader
from engines.worker.stops import StopMatcher, StopScanner


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a choice ended: OpenAI's `reason`, and as `stop_reason` the stop string or stop token, if it was one."""

    reason: str
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What may be sent of one choice after one step. Never without any of text, parts and finish.

    `parts`: instead of `text`, where a chat answer is read for reasoning and tool calls.
    """

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    parts: tuple[Part, ...] = ()


class Choice:
    """The growing text of one choice.

    `num_tokens`: generated so far, stop tokens included. `reasoning_tokens`: those of them that were reasoning, None
    where nobody looks for it.
    """

    def __init__(
        self,
        index: int,
        piece_of: Callable[[int], bytes],
        *,
        matcher: StopMatcher | None = None,
        include_stop: bool = False,
        min_tokens: int = 0,
        eos_ids: frozenset[int] = frozenset(),
        reply: ReplyReader | None = None,
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
        self._reply = reply
        self._is_plain = matcher is None and reply is None
        self.reasoning_tokens: int | None = 0 if reply is not None and reply.reads_reasoning else None
        self._logprobs: list[TokenLogprob] = []

    def absorb(self, delta: SequenceDelta) -> Piece | None:
        """What this step adds, or None if all of it is held back. Nothing more after a finish.

        Raises `ApiError` when the engine gave the sequence up.
        """
        if self.finish is not None:
            return None
        if self._is_plain and delta.finish_reason is None:
            return self._absorb_plain(delta)
        _check_alive(delta)
        self.cached_tokens = delta.cached_tokens
        text, parts = self._absorb_tokens(delta)
        if self._scanner is not None and self._scanner.matched is not None:
            self.finish = Finish("stop", self._scanner.matched)
        elif delta.finish_reason is not None:
            tail = self._flush()
            text, parts = (text + tail, parts) if self._reply is None else ("", [*parts, *self._reply.feed(tail)])
            self.finish = self._finish_of(delta)
        if self._reply is not None:
            parts += self._read_to_end(self._reply)
        if not (text or parts) and self.finish is None:
            return None
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Piece(self.index, text, logprobs, self.finish, merged(parts))

    def _absorb_plain(self, delta: SequenceDelta) -> Piece | None:
        """The same, where nothing reads the text and it goes on: what nearly every token of a stream comes to."""
        self.cached_tokens = delta.cached_tokens
        self.num_tokens = delta.num_output
        self._logprobs.extend(delta.logprobs or ())
        text = self._detokenizer.feed([self._piece_of(token) for token in delta.token_ids])
        if not text:
            return None
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Piece(self.index, text, logprobs)

    def _absorb_tokens(self, delta: SequenceDelta) -> tuple[str, list[Part]]:
        logprobs = delta.logprobs or ()
        text, parts = "", list[Part]()
        for position, token in enumerate(delta.token_ids):
            self.num_tokens += 1
            is_stop_token = delta.stop_token is not None and position == len(delta.token_ids) - 1
            if is_stop_token and not self._include_stop:
                break
            self._logprobs.extend(logprobs[position : position + 1])
            new = self._scan(self._detokenizer.feed((self._piece_of(token),)))
            if self._reply is None:
                text += new
            else:
                parts += self._read(self._reply, new)
            if self._is_over():
                return text, parts  # tokens that came with it in one step are not the answer's
        self.num_tokens = delta.num_output
        return text, parts

    def _read(self, reply: ReplyReader, text: str) -> tuple[Part, ...]:
        """What the text of one token brings to a chat answer; the token counts where the text begins or ends."""
        was_reasoning = reply.is_reasoning
        parts = reply.feed(text)
        if self.reasoning_tokens is not None:
            self.reasoning_tokens += was_reasoning or reply.is_reasoning
        return parts

    def _read_to_end(self, reply: ReplyReader) -> tuple[Part, ...]:
        """The rest of a chat answer if it has ended, which enough tool calls do too."""
        if self.finish is None and reply.has_all_calls:
            self.finish = Finish("stop")
        if self.finish is None:
            return ()
        rest = reply.finish(is_cut=self.finish.reason == "length")
        if reply.ends_in_calls and self.finish.reason == "stop":
            self.finish = Finish("tool_calls", self.finish.stop_reason)
        return rest

    def _is_over(self) -> bool:
        is_stopped = self._scanner is not None and self._scanner.matched is not None
        return is_stopped or (self._reply is not None and self._reply.has_all_calls)

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
    if delta.finish_reason is FinishReason.ERROR and "grammar" in delta.error:  # the caller's own is at its bounds
        raise invalid(None, f"the answer cannot follow what was asked for: {delta.error}", code="grammar_failed")
    if delta.finish_reason is FinishReason.ERROR:
        raise ApiError(500, "the engine failed in this request", code="engine_failed")
    if delta.finish_reason is FinishReason.ABORT:
        raise unavailable("the request was aborted because the worker is stopping", code="stopping")
