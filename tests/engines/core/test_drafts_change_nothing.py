"""With drafts or without, whatever happens around it, a request's output is the same: exactly, token for token."""

from dataclasses import replace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engines.core.latency_guard import LatencySettings
from engines.core.sequence import FinishReason, SamplingParams
from engines.fake.model import IM_END
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.crowd import alone, assert_nothing_is_held, crowd, play, scripts
from tests.engines.core.driven import NO_TIME, words
from tests.engines.core.toy_grammar import ToyGrammar

MODERATE = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LETTERS = words(*range(8))


def expected(request, eos_every):
    """The output of a request that has an engine without drafts to itself, and its logprobs."""
    return summary(alone(request["prompt"], request["sampling"], eos_every, grammar=request["grammar"]), "alone")


def summary(driven, id_):
    deltas = driven.deltas[id_]
    logprobs = None if deltas[0].logprobs is None else [each for delta in deltas for each in delta.logprobs]
    last = deltas[-1]
    return driven.output(id_), logprobs, last.finish_reason, last.stop_token, last.num_output


@st.composite
def grammars(draw):
    """None mostly; automata of some states that loop, force or end."""
    if draw(st.booleans()):
        return None
    num_states = draw(st.integers(1, 5))
    moves = {
        state: draw(st.dictionaries(st.sampled_from(LETTERS), st.integers(0, num_states - 1), min_size=1, max_size=3))
        for state in range(num_states - draw(st.integers(0, 1)) or 1)
    }
    return ToyGrammar(moves, frozenset(draw(st.sets(st.sampled_from(list(moves))))))


@st.composite
def requests(draw):
    """Repetitive prompts, and sampling that keeps to few letters, so that drafts hold about half of the time."""
    stem = draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    bias = tuple((letter, 20.0) for letter in LETTERS[: draw(st.sampled_from([1, 2, 3]))])
    output_penalty = draw(st.sampled_from([0.0, 0.0, 0.5, 2.0]))
    sampling = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.7, 1.5])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        seed=draw(st.integers(0, 3)),
        max_tokens=draw(st.sampled_from([1, 2, 5, 12, 30])),
        min_tokens=draw(st.sampled_from([0, 0, 4])),
        frequency_penalty=output_penalty,
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        logprobs=draw(st.sampled_from([None, 0, 2])),
        stop_token_ids=frozenset(draw(st.sets(st.sampled_from(LETTERS), max_size=1))),
        ignore_eos=draw(st.booleans()),
        logit_bias=draw(st.sampled_from([(), bias])),
    )
    return {
        "prompt": words(*(stem * draw(st.integers(1, 6)))),
        "sampling": sampling,
        "lane": draw(st.sampled_from(list(Lane))),
        "salt": draw(st.sampled_from(["", "", "a"])),
        "grammar": draw(grammars()),
    }


@st.composite
def engines(draw):
    """Sizes from cramped to ample, in both styles, all with drafts."""
    max_seqs = draw(st.sampled_from([1, 2, 4]))
    return {
        "style": draw(st.sampled_from(["slots", "pages"])),
        "block_size": draw(st.sampled_from([1, 2, 3, 4, 16])),
        "max_seqs": max_seqs,
        "num_slots": max_seqs + draw(st.integers(0, 3)),
        "max_step_tokens": max_seqs + draw(st.integers(0, 40)),
        "kv_tokens": draw(st.integers(80, 96)),
        "host_tokens": draw(st.sampled_from([0, 64])),
        "eos_every": draw(st.sampled_from([0, 7])),
        "max_drafts": draw(st.sampled_from([1, 3, 8])),
        "max_step_drafts": draw(st.sampled_from([2, 32])),
        "cost": draw(st.sampled_from([NO_TIME, StepCost(0.01, 0.001, 0.0002), StepCost(0.01, 0.005, 0.002)])),
        "latency": LatencySettings(itl_p95_s=draw(st.sampled_from([None, 0.02]))),
    }


@given(engine=engines(), arrivals=st.lists(st.tuples(requests(), st.integers(0, 3)), min_size=1, max_size=12))
@MODERATE
def test_output_does_not_depend_on_drafts(engine, arrivals):
    """Greedy or drawn, penalised, masked, preempted, stopped inside drafts: what a user gets is what they would get."""
    crowded = crowd(engine, arrivals)
    for index, (request, _) in enumerate(arrivals):
        assert summary(crowded, str(index)) == expected(request, engine["eos_every"])
        if request["grammar"] is not None and not request["sampling"].stop_token_ids:
            output = [token for token in crowded.output(str(index)) if token != IM_END]
            assert request["grammar"].begins(output)
    statistics = crowded.scheduler.statistics()
    event(f"preempted: {statistics.preemptions > 0}")
    event(f"some drafts held: {statistics.accepted_tokens > 0}")
    event(f"some drafts failed: {statistics.accepted_tokens < statistics.drafted_tokens}")
    event(f"restored: {statistics.host.restored_tokens > 0}")
    assert_nothing_is_held(crowded)


@given(engine=engines(), script=scripts(requests(), max_size=30))
@MODERATE
def test_drafts_are_given_back_whatever_is_aborted_or_fails(engine, script):
    """Cells and blocks of drafts that came to nothing are nobody's; who goes on goes on as if alone."""
    driven, added = play(engine, script)
    for id_, request in added.items():
        if driven.last(id_).finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert summary(driven, id_) == expected(request, engine["eos_every"])
    assert_nothing_is_held(driven)


def test_a_repetitive_answer_takes_fewer_steps(driven):
    """What drafts are for: an answer that copies its prompt comes several tokens a step."""
    text = words(*range(30))
    bias = SamplingParams(temperature=0, max_tokens=40, logit_bias=((LETTERS[0], 50.0),), ignore_eos=True)
    steps = {}
    for max_drafts in (0, 8):
        engine = driven(max_drafts=max_drafts)
        engine.add("r", text, bias)
        engine.run()
        steps[max_drafts] = len(engine.plans)
        assert engine.output("r") == [LETTERS[0]] * 40
    assert steps[8] < steps[0] / 3


def test_drafts_never_reach_beyond_the_last_token_allowed(driven):
    """A row of drafts must not overrun `max_tokens`, the context or the KV cache."""
    bias = SamplingParams(temperature=0, logit_bias=((LETTERS[0], 50.0),), ignore_eos=True)
    for max_tokens in (1, 2, 3, 7, None):
        engine = driven(max_drafts=8, context_tokens=32)
        engine.add("r", words(1, 2, 3), replace(bias, max_tokens=max_tokens))
        engine.run()
        assert len(engine.output("r")) == (29 if max_tokens is None else max_tokens)
        assert engine.last("r").finish_reason is FinishReason.LENGTH
        assert max(row.start + len(row.tokens) for plan in engine.plans for row in plan.rows) < 32
