"""One choice: tokens in, text that may be sent out."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.sequence import FinishReason, SequenceDelta, TokenLogprob
from engines.worker.choice import Choice, Finish
from engines.worker.errors import ApiError
from engines.worker.stops import StopMatcher

VOCABULARY = [b"", b"E", b"N", b"D", b"the ", b"EN", b"TRY ", b"\xf0\x9f", b"\xab\x96", b"DING"]
EOS = 0


def deltas(tokens, *, finish=FinishReason.LENGTH, stop_token=None, logprobs=False, per_step=1):
    """What an engine would deliver for these tokens."""
    result = []
    for start in range(0, len(tokens), per_step):
        step = tuple(tokens[start : start + per_step])
        last = start + per_step >= len(tokens)
        result.append(
            SequenceDelta(
                "id",
                step,
                prompt_tokens=3,
                cached_tokens=1,
                num_output=start + len(step),
                logprobs=tuple(TokenLogprob(token, -0.5) for token in step) if logprobs else None,
                finish_reason=finish if last else None,
                stop_token=stop_token if last else None,
            )
        )
    return result


def choice(stops=(), **options) -> Choice:
    matcher = StopMatcher(stops) if stops else None
    return Choice(0, VOCABULARY.__getitem__, matcher=matcher, eos_ids=frozenset({EOS}), **options)


def run(one: Choice, steps):
    return [piece for step in steps if (piece := one.absorb(step)) is not None]


def text(pieces) -> str:
    return "".join(piece.text for piece in pieces)


def test_an_end_token_is_counted_and_not_shown():
    """Usage is what was generated."""
    one = choice()
    pieces = run(one, deltas([4, EOS], finish=FinishReason.STOP, stop_token=EOS))
    assert (text(pieces), one.finish, one.num_tokens) == ("the ", Finish("stop", None), 2)


def test_a_stop_token_is_named_and_shown_only_on_request():
    """vLLM's `stop_reason` and `include_stop_str_in_output`."""
    steps = deltas([4, 3], finish=FinishReason.STOP, stop_token=3)
    shown, hidden = choice(include_stop=True), choice()
    assert text(run(hidden, steps)) == "the "
    assert text(run(shown, steps)) == "the D"
    assert hidden.finish == shown.finish == Finish("stop", 3)


def test_a_stop_string_over_several_tokens_is_never_sent():
    """Held back while it could match, gone when it does; nothing after it, and its tokens are counted."""
    one = choice(["END"])
    pieces = run(one, deltas([4, 1, 2, 3, 4, 4]))
    assert [piece.text for piece in pieces] == ["the ", ""]
    assert pieces[-1].finish == Finish("stop", "END")
    assert one.num_tokens == 4


def test_a_false_start_is_released_as_soon_as_it_cannot_match():
    """`EN` waits, `TRY` frees it."""
    pieces = run(choice(["END"]), deltas([4, 5, 6]))
    assert [piece.text for piece in pieces] == ["the ", "ENTRY "]
    assert pieces[-1].finish == Finish("length")


def test_held_text_and_half_characters_come_out_at_the_end():
    """The whole text is the streamed text."""
    assert text(run(choice(["END"]), deltas([4, 5]))) == "the EN"
    assert text(run(choice(["END"]), deltas([5, 7]))) == "EN\ufffd"


def test_the_first_tokens_can_be_kept_from_stopping():
    """`min_tokens` tokens neither match a stop string nor begin one."""
    one = choice(["END"], min_tokens=3)
    assert text(run(one, deltas([1, 2, 3, 4, 5, 3, 4]))) == "ENDthe "
    assert one.finish == Finish("stop", "END")


def test_log_probabilities_wait_for_text():
    """No chunk without text; every token shown has its entry; the end token has none."""
    one = choice(["END"])
    pieces = run(one, deltas([4, 5, 6, EOS], logprobs=True, finish=FinishReason.STOP, stop_token=EOS))
    assert [len(piece.logprobs) for piece in pieces] == [1, 2, 0]


@pytest.mark.parametrize(("reason", "status"), [(FinishReason.ERROR, 500), (FinishReason.ABORT, 503)])
def test_an_engine_that_gives_up_is_an_error(reason, status):
    """Not a short answer."""
    with pytest.raises(ApiError) as caught:
        run(choice(), deltas([4], finish=reason))
    assert caught.value.status == status


def test_a_grammar_at_its_bounds_is_the_callers():
    """The worker is well, and the same request would end the same way."""
    (last,) = deltas([4], finish=FinishReason.ERROR)
    with pytest.raises(ApiError) as caught:
        run(choice(), [replace(last, error="The grammar takes too much time to apply.")])
    assert (caught.value.status, caught.value.code) == (400, "grammar_failed")
    assert "too much time" in caught.value.message


def test_nothing_comes_after_the_finish():
    """A delta that was on its way when a stop string matched changes nothing."""
    one = choice(["D"])
    run(one, deltas([3]))
    assert one.absorb(deltas([4, 4])[0]) is None
    assert one.num_tokens == 1


@given(
    tokens=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    per_step=st.integers(1, 4),
    stops=st.lists(st.sampled_from(["END", "ENDING", "EN", "🫖", "the E", "D"]), max_size=3),
    include=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_text_does_not_depend_on_steps_and_no_piece_is_empty(tokens, per_step, stops, include):
    """Streamed equals whole, for any tokens, stops and step sizes (P47)."""
    whole = b"".join(VOCABULARY[token] for token in tokens).decode(errors="replace")
    ends = [(whole.find(stop) + len(stop), stop) for stop in stops if stop in whole]
    if ends:
        end = min(ends)[0]
        longest = max((stop for at, stop in ends if at == end), key=len)
        whole = whole[: end if include else end - len(longest)]
    one = choice(stops, include_stop=include)
    pieces = run(one, deltas(tokens, per_step=per_step, logprobs=True))
    single = choice(stops, include_stop=include)
    singly = run(single, deltas(tokens, logprobs=True))
    assert (one.num_tokens, one.finish) == (single.num_tokens, single.finish)
    assert [each for piece in pieces for each in piece.logprobs] == [
        each for piece in singly for each in piece.logprobs
    ]
    assert text(pieces) == whole
    assert all(piece.text or piece.finish for piece in pieces)
    assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish == one.finish is not None


@given(
    tokens=st.lists(st.integers(1, len(VOCABULARY) - 1), min_size=1, max_size=12),
    per_step=st.integers(1, 3),
    logprobs=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_a_choice_that_nobody_reads_for_stops_gives_what_one_gives_whose_stop_never_comes(tokens, per_step, logprobs):
    """The short way for plain text changes no piece."""
    steps = deltas(tokens, per_step=per_step, logprobs=logprobs)
    plain, scanned = choice(), choice(["\x00"])
    assert run(plain, steps) == run(scanned, steps)
    assert (plain.num_tokens, plain.cached_tokens, plain.finish) == (
        scanned.num_tokens,
        scanned.cached_tokens,
        scanned.finish,
    )
