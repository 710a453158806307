"""Which relay an attempt gets: by what was asked for, and how long may be waited for it."""

from gateway.audio.relay import TranscriptStream, TranscriptWhole
from gateway.input_relay import InputRelay
from gateway.parts import Call
from gateway.relay import Relay, WholeRelay
from gateway.request import InferenceRequest
from gateway.reserving import UNREPORTED_BYTES
from gateway.settings import TimeoutSection
from gateway.story import Story
from gateway.streaming import StreamRelay
from gateway.translated import TranslatedStream, TranslatedWhole
from gateway.turn import Turn
from gateway.vector_answers import AnswerHead
from gateway.wanted import Inputs, Transcript


def relay_for(call: Call, request: InferenceRequest, turn: Turn | None, timeouts: TimeoutSection, now: float) -> Relay:
    """The relay of one attempt that begins now. `turn`: None for what was answered before, which nobody waits for."""
    first_token_s = timeouts.first_token_s if request.is_streaming else timeouts.total_s
    if call.deadline is not None:
        first_token_s = min(first_token_s, max(0.001, call.deadline - now))
    answer, sink, story = call.answer, call.sink, call.story
    on_first = _nobody_waits if turn is None else turn.lease.prefilled
    if request.inputs is not None:
        assert turn is not None, "only what is generated is answered without one"
        return _of_inputs(call, request, request.inputs, turn, timeouts, first_token_s=first_token_s)
    if request.translate is not None:
        estimated = 0 if turn is None else turn.decision.prompt_tokens
        translation = request.translate(_head(story, request, estimated))
        if not request.is_streaming:
            return TranslatedWhole(answer, sink, timeouts, first_token_s, translation=translation)
        num = request.num_choices
        return TranslatedStream(
            answer, sink, timeouts, first_token_s, on_first=on_first, num_choices=num, translation=translation
        )
    if not request.is_streaming:
        return WholeRelay(answer, sink, timeouts, first_token_s)
    return StreamRelay(
        answer,
        sink,
        timeouts,
        first_token_s,
        on_first=on_first,
        wants_usage=request.wants_usage,
        num_choices=request.num_choices,
    )


def _of_inputs(
    call: Call, request: InferenceRequest, inputs: Inputs, turn: Turn, timeouts: TimeoutSection, *, first_token_s: float
) -> Relay:
    answer, sink, wanted = call.answer, call.sink, inputs.wanted
    if not isinstance(wanted, Transcript):
        head = _head(call.story, request, _unreported(call.story, turn, inputs))
        return InputRelay(answer, sink, timeouts, first_token_s, inputs=inputs, head=head)
    if not request.is_streaming:
        return TranscriptWhole(answer, sink, timeouts, first_token_s, wanted=wanted)
    on_first = turn.lease.prefilled
    return TranscriptStream(answer, sink, timeouts, first_token_s, on_first=on_first, wanted=wanted)


def _nobody_waits() -> None:
    """No prompt is being read."""


def _head(story: Story, request: InferenceRequest, estimated_tokens: int) -> AnswerHead:
    return AnswerHead(story.request_id, request.model, int(story.started_at), estimated_tokens)


def _unreported(story: Story, turn: Turn, inputs: Inputs) -> int:
    """What its client is told that was read where no engine says: as much as will be charged."""
    reserved = story.reserved_tokens or 0
    if inputs.num_tokens is not None:
        return reserved
    return max(reserved, round(turn.decision.key.total_bytes / UNREPORTED_BYTES))
