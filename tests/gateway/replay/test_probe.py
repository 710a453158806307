"""Measuring a replica with a few requests: what is asked, what is made of it, and how it fails."""

import pytest

from gateway.replay.exchange import Heard
from gateway.replay.probe import ProbeFailed, ProbePlan, decoding, probe, reading
from gateway.replay.target import Target
from tests.scripted_engine import ScriptedEngine, answer, status

PLAN = ProbePlan(lengths=(20, 50), rows=(1, 3), answer_tokens=8, repeats=2, salt="x")


async def test_it_asks_for_prompts_alone_and_answers_side_by_side():
    """Every prompt is new text, so that nothing is cached; the number of requests is known before."""
    async with ScriptedEngine() as engine:
        engine.default = answer(*"abcdefgh", prompt_tokens=50)
        seen = []
        found = await probe(Target(engine.url, "", "m"), PLAN, seen.append)
    assert len(engine.requests) == PLAN.num_requests == seen[-1] == 1 + 2 * (2 + 4)
    texts = [request.json["messages"][0]["content"] for request in engine.requests]
    assert len(set(texts)) == len(texts)
    assert [len(text.split()) for text in texts[1:7]] == [20, 50, 16, 16, 16, 16]
    assert [request.json["max_tokens"] for request in engine.requests[1:7]] == [1, 1, 8, 8, 8, 8]
    readings = [one for one in found if one.hops]
    assert [one.prompt_tokens for one in readings] == [50] * 4


@pytest.mark.parametrize(("number", "fault"), [(0, "503"), (1, "503"), (5, "503")])
async def test_a_replica_that_fails_ends_it(number, fault):
    """Wherever it is: a model of half of the measurements would be believed."""
    async with ScriptedEngine() as engine:
        engine.script(*[answer(*"abcdefgh")] * number, status(503, "busy"))
        with pytest.raises(ProbeFailed, match=fault):
            await probe(Target(engine.url, "", "m"), PLAN, lambda _: None)


def heard(*at, sent=0.0, prompt=None, cached=None, output=None):
    """An answer whose pieces came at these times."""
    return Heard(sent, sent, list(at), at[-1], prompt, cached, output)


def test_a_prompt_counts_by_what_was_not_cached():
    """In so many steps; in words where nothing is reported."""
    one = reading(heard(1.5, prompt=3000, cached=500), 999, 2048)
    assert (one.steps, one.row_steps, one.prompt_tokens, one.seconds, one.hops) == (2, 0.0, 2500, 1.5, 1.0)
    assert reading(heard(1.5), 999, 2048).prompt_tokens == 999
    assert reading(heard(1.5, prompt=10, cached=10), 999, 2048).prompt_tokens == 1


def test_gaps_count_while_all_were_decoded():
    """Before the last has begun and after the first has ended there were fewer."""
    early = heard(*(0.1 * n for n in range(20)))
    late = heard(*(1.0 + 0.1 * n for n in range(20)))
    found = list(decoding([early, late]))
    assert [round(one.seconds / one.steps, 6) for one in found] == [0.1, 0.1]
    assert [one.row_steps / one.steps for one in found] == [2.0, 2.0]
    assert found[0].steps == 9


def test_pieces_of_several_tokens_are_several_steps():
    """As engines send them that hold back half characters."""
    [one] = decoding([heard(*(0.1 * n for n in range(10)), output=20)])
    assert one.steps == pytest.approx(18.0)


def test_answers_that_hardly_met_say_nothing():
    """Two gaps are no mean."""
    assert list(decoding([heard(0.0, 0.1, 0.2, 0.3, 0.4, 0.5), heard(0.4, 0.5, 0.6, 0.7, 0.8, 0.9)])) == []
