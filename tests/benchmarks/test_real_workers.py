"""The parts of the report on real workers that measure nothing."""

from collections import Counter

import pytest

from gateway.simulation.recording import Recording
from gateway.simulation.trace_files import read_recording
from tests.benchmarks.real_workers import MAX_TOKENS, MIN_TURNS, SCALE, TRACE, conversations, most_sustained


@pytest.mark.parametrize("most", range(-1, 8))
def test_the_highest_rate_that_holds_is_found_in_few_runs(most):
    """Every answer, none and all included; a run costs minutes."""
    asked = []

    def holds(rate):
        asked.append(rate)
        return rate <= most

    assert most_sustained(holds, range(8)) == max(most, 0)
    assert len(asked) == len(set(asked)) <= 4


def test_conversations_are_whole_long_enough_and_short_of_prompts():
    """Each turn kept begins as another one does, beyond the block that all have; none is above what is read in time."""
    recording = read_recording(TRACE).first(3000)
    kept = conversations(recording, 10_000)
    assert 100 < len(kept.requests) < 1500
    assert all(request.prompt_tokens <= MAX_TOKENS * SCALE for request in kept.requests)
    shared = Counter(name for request in kept.requests for name in set(request.blocks[1:]))
    with_more = [request for request in kept.requests if len(request.blocks) > 1]
    assert sum(max(shared[name] for name in one.blocks[1:]) >= MIN_TURNS for one in with_more) > 0.9 * len(with_more)
    facts, of_all = kept.facts(), Recording(recording.requests, recording.block_tokens).facts()
    assert facts.oracle_hit_tokens / facts.prompt_tokens > of_all.oracle_hit_tokens / of_all.prompt_tokens
    assert [one.number for one in conversations(recording, 50).requests] == [one.number for one in kept.requests[:50]]
