"""What can never run is refused by a value, before it waits."""

import pytest

from engines.core.admission import RefusalReason, SchedulerSettings, check_size, open_sequence
from engines.core.sequence import GenerateRequest, SamplingParams


def settings(**changes):
    fields = {"max_seqs": 2, "max_step_tokens": 8, "context_tokens": 100, "kv_tokens": 64, "block_size": 16}
    return SchedulerSettings(**(fields | changes))


def request(num_prompt, max_tokens=None, **sampling):
    return GenerateRequest("r", (1,) * num_prompt, SamplingParams(max_tokens=max_tokens, **sampling), arrival=5.0)


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "reason"),
    [
        (0, 1, RefusalReason.EMPTY_PROMPT),
        (60, 4, None),
        (60, 5, RefusalReason.KV_EXCEEDED),
        (63, None, None),
        (64, None, RefusalReason.KV_EXCEEDED),
        (99, 2, RefusalReason.CONTEXT_EXCEEDED),
        (1, 100, RefusalReason.CONTEXT_EXCEEDED),
    ],
)
def test_prompt_and_output_must_fit_context_and_kv(num_prompt, max_tokens, reason):
    """The bound is on the sum; one token over it is refused, the bound itself is not."""
    refusal = check_size(request(num_prompt, max_tokens), settings())
    assert (refusal.reason if refusal else None) == reason
    if refusal:
        assert refusal.reason.is_callers_fault
        assert refusal.message.endswith(".")


def test_refusal_names_the_numbers():
    """A caller must see which number to change."""
    refusal = check_size(request(99, 2), settings())
    assert refusal.message == "This model's context is 100 tokens; the prompt of 99 tokens plus max_tokens 2 is more."


def test_moments_refusals_are_not_the_callers_fault():
    """These three become 503 or 409, never 400."""
    moments = {reason for reason in RefusalReason if not reason.is_callers_fault}
    assert moments == {RefusalReason.DUPLICATE_ID, RefusalReason.QUEUE_FULL, RefusalReason.STOPPING}


def test_open_end_stops_where_context_or_kv_ends():
    """Without max_tokens the smaller of the two bounds ends the sequence."""
    assert open_sequence(request(3), settings(), 9.0, 1).max_length == 64
    assert open_sequence(request(3), settings(context_tokens=50), 9.0, 1).max_length == 50
    assert open_sequence(request(3, 4), settings(), 9.0, 1).max_length == 7


def test_seed_is_the_requests_or_made_of_its_id():
    """A preempted request without a seed must still draw what it drew before."""
    assert open_sequence(request(3, seed=-1), settings(), 9.0, 1).seed == 2**64 - 1
    assert open_sequence(request(3), settings(), 9.0, 1).seed == open_sequence(request(3), settings(), 10.0, 2).seed


def test_arrival_is_never_later_than_now():
    """A clock ahead of ours must not put a request behind all others for ever."""
    assert open_sequence(request(3), settings(), 2.0, 7).order == (0, 0, 2.0, 7)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_seqs": 0},
        {"max_seqs": 9},
        {"kv_tokens": 15},
        {"block_size": 0},
        {"context_tokens": 0},
        {"max_waiting": -1},
        {"watermark_ratio": 1.0},
    ],
)
def test_settings_that_cannot_work_are_refused(changes):
    """A misconfigured worker says so at start, not in its first step."""
    with pytest.raises(ValueError, match=r"must|less|holds"):
        settings(**changes)
