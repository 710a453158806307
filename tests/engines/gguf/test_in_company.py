"""Requests of every kind on the real model: cut, cached, drafted, preempted, among others. Each answers as if alone."""

import asyncio
import json
import random
from dataclasses import replace

import pytest

from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams
from engines.worker.grammars import GrammarCompiler, GrammarKind, GrammarSpec
from policies.lane import Lane
from tests.engines.gguf.bare import device_of
from tests.engines.gguf.driven_model import DrivenModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

NUM_TOKENS = 8
KV_TOKENS = 96
SYSTEM = "You are a patient librarian by a river. You answer briefly, kindly and in order. "
CODE = "def area(width, height):\n    return width * height\n\ndef area_of(width, height):\n    return width"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FREE = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
SAMPLINGS = {
    "greedy": (SYSTEM + "What is a cat?", replace(FREE, logprobs=2), False),
    "copied": (CODE, FREE, False),
    "penalised": (CODE, replace(FREE, frequency_penalty=0.4, repetition_penalty=1.2, min_tokens=4, ignore_eos=False), False),
    "drawn": (SYSTEM + "Tell a story.", replace(FREE, temperature=0.9, top_p=0.9, seed=7, logprobs=0), False),
    "drawn twice": (SYSTEM + "Tell a story.", replace(FREE, temperature=1.2, top_k=20, min_p=0.02, seed=8), False),
    "json": (SYSTEM + "A person as JSON:", replace(FREE, logprobs=1), True),
    "drawn json": (SYSTEM + "A person as JSON:", replace(FREE, temperature=0.8, seed=3), True),
}  # fmt: skip


@pytest.fixture(scope="module")
def device(model):
    """Steps so short that what the library computes does not depend on their shape."""
    compiler = GrammarCompiler(model, model.vocab_size)
    grammar = asyncio.run(compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))))
    compiler.close()
    requests = {
        name: GenerateRequest(name, tuple(model.encode(text, special=False)), sampling, grammar=grammar if is_json else None)
        for name, (text, sampling, is_json) in SAMPLINGS.items()
    }  # fmt: skip
    with device_of(model, requests) as device:
        yield device


def logprobs(driven, id_):
    return [each for delta in driven.deltas[id_] for each in delta.logprobs or ()]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_request_that_is_cut_cached_drafted_and_preempted_answers_as_alone(device, name):
    """Each of it and all of it, to the bit: tokens, the logits behind them, the log probabilities told."""
    request, told = device.requests[name], []

    def check(driven, id_):
        device.check_equal(name, driven.given(id_))
        told.append(logprobs(driven, id_))

    driven = DrivenModel(device, max_step_tokens=8)
    driven.ask(request, "chunked")
    driven.run()
    check(driven, "chunked")
    driven.check_nothing_is_held()

    sizes = {"max_step_tokens": 16, "kv_tokens": KV_TOKENS, "max_drafts": 8, "host_tokens": 256}
    driven = DrivenModel(device, **sizes)
    driven.ask(request, "drafted")
    driven.run()
    check(driven, "drafted")
    driven.ask(replace(request, lane=Lane.BULK), "preempted")
    while len(driven.output("preempted")) < 3:
        driven.step()
    assert driven.add("intruder", range(1000, 1000 + KV_TOKENS - 1), SamplingParams(max_tokens=1)) is None
    driven.step(lambda: driven.abort("intruder"))
    driven.run()
    check(driven, "preempted")
    assert driven.last("preempted").cached_tokens == (len(request.prompt) - 1) // 16 * 16 > 0
    statistics = driven.scheduler.statistics()
    assert statistics.preemptions == 1
    assert statistics.host.restored_tokens > 0
    assert statistics.accepted_tokens > 0 or name not in ("copied", "json")
    driven.check_nothing_is_held()
    assert len(told[0]) == (len(device.alone[name].tokens) if request.sampling.logprobs is not None else 0)
    if device.bare.is_exact:
        assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("company", [["greedy", "json"], ["copied"], ["drawn twice", "penalised", "drawn json"]])
def test_a_seed_draws_the_same_whoever_shares_the_batch(device, company):
    """To the bit: others come before it and stay longer, so that its cells lie in order."""
    driven = DrivenModel(device, mixes_prompts=True)
    for number, name in enumerate(company):
        other = device.requests[name]
        longer = replace(other.sampling, max_tokens=2 * NUM_TOKENS, ignore_eos=True, logit_bias=((1, 0.5),))
        driven.ask(replace(other, sampling=longer, salt=str(number), grammar=None), f"other {number}")
        driven.step()
    driven.ask(replace(device.requests["drawn"], salt="own"), "drawn")
    driven.run()
    device.check_equal("drawn", driven.given("drawn"))
    assert driven.finished[0] == "drawn"


@pytest.mark.parametrize("seed", [0, 2])
def test_a_crowd_of_all_kinds_answers_as_each_alone(device, seed):
    """Lanes, salts, arrivals, aborts and sizes at random, in too few cells; rounding apart, nobody is disturbed."""
    chance = random.Random(seed)
    sizes = {"kv_tokens": chance.choice([80, 96, 112]), "max_step_tokens": chance.choice([16, 24, 48])}
    mixes, host_tokens = chance.random() < 0.5, chance.choice([0, 256])
    driven = DrivenModel(
        device,
        mixes_prompts=mixes, max_drafts=8, host_tokens=host_tokens, watermark_ratio=0, **sizes
    )  # fmt: skip
    arrivals = [(name, f"{name} {copy}") for name in device.requests for copy in range(2)]
    chance.shuffle(arrivals)
    leaving = set(chance.sample([id_ for _, id_ in arrivals], 3))
    for name, id_ in arrivals:
        salt, lane = chance.choice(["", "", "alder"]), chance.choice(list(Lane))
        driven.ask(replace(device.requests[name], salt=salt, lane=lane), id_)
        for _ in range(chance.randrange(4)):
            driven.step()
            for other in [other for other in leaving if driven.deltas.get(other)]:
                driven.abort(other)
    driven.run()
    for name, id_ in arrivals:
        if driven.last(id_).finish_reason in (FinishReason.LENGTH, FinishReason.STOP):
            device.check_same(name, driven.given(id_))
    driven.check_nothing_is_held()
    statistics = driven.scheduler.statistics()
    assert min(statistics.preemptions, statistics.evictions, statistics.cached_tokens) > 0
