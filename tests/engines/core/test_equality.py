"""Whatever the scheduler does around a request, its greedy output is what it would be alone."""

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engines.core.latency_guard import LatencySettings
from engines.core.sequence import FinishReason, SamplingParams
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.crowd import alone, assert_nothing_is_held, crowd, play, scripts
from tests.engines.core.driven import NO_TIME, words

MODERATE = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def expected(request, eos_every):
    """The answer to a request that has the engine to itself."""
    return alone(request["prompt"], request["sampling"], eos_every).answer("alone")


@st.composite
def requests(draw):
    """Prompts that share prefixes by chance, some of them exact copies, with lanes, salts and sampling."""
    stem = draw(st.lists(st.integers(0, 3), min_size=1, max_size=24))
    cut = draw(st.integers(1, len(stem)))
    tail = draw(st.lists(st.integers(0, 3), max_size=6))
    temperature = draw(st.sampled_from([0.0, 0.0, 0.0, 1.0]))
    return {
        "prompt": words(*([7] * draw(st.sampled_from([0, 0, 9, 16])) + stem[:cut] + tail)),
        "sampling": SamplingParams(
            temperature=temperature, seed=draw(st.integers(0, 3)), max_tokens=draw(st.sampled_from([1, 2, 12, 25, 30]))
        ),
        "lane": draw(st.sampled_from(list(Lane))),
        "priority": draw(st.integers(0, 1)),
        "salt": draw(st.sampled_from(["", "", "a", "b"])),
    }


@st.composite
def engines(draw):
    """Sizes from cramped to ample, in both styles."""
    block_size = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    max_seqs = draw(st.sampled_from([1, 2, 4, 6]))
    return {
        "style": draw(st.sampled_from(["slots", "pages"])),
        "block_size": block_size,
        "max_seqs": max_seqs,
        "mixes_prompts": draw(st.booleans()),
        "num_slots": max_seqs + draw(st.integers(0, 3)),
        "max_step_tokens": max_seqs + draw(st.integers(0, 40)),
        "kv_tokens": draw(st.integers(80, 120)),
        "watermark_ratio": draw(st.sampled_from([0.0, 0.1])),
        "eos_every": draw(st.sampled_from([0, 7])),
        "cost": draw(st.sampled_from([NO_TIME, StepCost(0.01, 0.001, 0.0002), StepCost(0.01, 0.005, 0.002)])),
        "latency": LatencySettings(
            itl_p95_s=draw(st.sampled_from([None, 0.02])),
            min_chunk_tokens=draw(st.sampled_from([1, 3, 32])),
            bulk_chunk_tokens=draw(st.sampled_from([1, 8])),
            bulk_patience_s=draw(st.sampled_from([0.0, 0.1, 1e9])),
        ),
    }


@given(engine=engines(), arrivals=st.lists(st.tuples(requests(), st.integers(0, 3)), min_size=1, max_size=12))
@MODERATE
def test_output_does_not_depend_on_company_chunks_hits_or_preemption(engine, arrivals):
    """The one property that users would notice: others, cramped memory and cached prefixes never change an answer."""
    crowded = crowd(engine, arrivals)
    for index, (request, _) in enumerate(arrivals):
        assert crowded.answer(str(index)) == expected(request, engine["eos_every"])
    statistics = crowded.scheduler.statistics()
    event(f"preempted: {statistics.preemptions > 0}")
    event(f"hit: {statistics.cached_tokens > 0}")
    event(f"evicted: {statistics.evictions > 0}")
    event(f"bulk left out: {statistics.bulk_rows_left_out > 0}")
    event(f"lifted: {statistics.bulk_lifts > 0}")
    assert_nothing_is_held(crowded)


@given(engine=engines(), script=scripts(requests(), max_size=40))
@MODERATE
def test_every_request_ends_once_whatever_is_aborted_or_fails(engine, script):
    """Aborts at every point and failing steps lose nothing: one end for each, nothing held, integrity throughout."""
    driven, added = play(engine, script)
    for id_, request in added.items():
        reason = driven.last(id_).finish_reason
        assert reason is not None
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert driven.answer(id_) == expected(request, engine["eos_every"])
    assert_nothing_is_held(driven)
