"""Drafts and grammars on the real model: the same words, valid JSON, logits for each draft."""

import json
import queue

import numpy as np
import pytest

from engines.core.admission import SchedulerSettings
from engines.core.engine import Engine
from engines.core.holders import SlotHolders
from engines.core.plan import Row, StepPlan, Truncate
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams
from engines.gguf.runner import GgufRunner, RunnerSettings
from engines.worker.grammars import GrammarCompiler, GrammarKind, GrammarSpec
from tests.engines.near_tie import assert_near_equal, bare_run

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

_CODE = "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n"
_COPY = f"<|im_start|>user\nRepeat this code exactly:\n{_CODE * 2}<|im_end|>\n<|im_start|>assistant\n"
_ASK = "<|im_start|>user\nDescribe a person as JSON with name, age and skills.<|im_end|>\n<|im_start|>assistant\n"
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
        "skills": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "age", "skills"],
    "additionalProperties": False,
}


def _engine(model, max_drafts):
    settings = SchedulerSettings(
        max_seqs=4,
        max_step_tokens=128,
        context_tokens=1024,
        kv_tokens=1024,
        eos_ids=model.eos_ids,
        max_drafts=max_drafts,
        max_step_drafts=16,
    )
    runner = GgufRunner(model, RunnerSettings(4, 1024, 128, 1, 1, num_drafts=16))
    return Engine(runner, Scheduler(settings, SlotHolders(4)), checks_when_idle=True)


def _run(model, max_drafts, requests):
    """The tokens and last deltas of requests made together; and how many drafts held."""
    engine, deltas = _engine(model, max_drafts), queue.Queue()
    engine.start()
    tokens, ends = {request.id: [] for request in requests}, {}
    try:
        for request in requests:
            assert engine.submit(request, deltas.put) is None
        while len(ends) < len(requests):
            delta = deltas.get(timeout=100)
            tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                ends[delta.request_id] = delta
        return tokens, ends, engine.load()
    finally:
        engine.stop()


def _request(model, id_, text, grammar=None, **sampling):
    return GenerateRequest(id_, tuple(model.encode(text, special=True)), SamplingParams(**sampling), grammar=grammar)


@pytest.fixture(scope="module")
def grammar(model):
    """The schema, compiled for the model's vocabulary."""
    import asyncio

    compiler = GrammarCompiler(model, model.vocab_size)
    try:
        return asyncio.run(compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(_SCHEMA))))
    finally:
        compiler.close()


def test_each_draft_has_the_logits_of_its_place(model, runner):
    """What verification compares: tokens computed together see what they would see one after the other."""
    tokens = tuple(model.encode(_CODE, special=False)[:24])
    runner.execute(StepPlan(0, (), (Row(0, 0, tokens[:20], num_samples=0), Row(1, 0, tokens[:3], num_samples=0))))
    rows = (Row(0, 20, tokens[20:24], num_samples=4), Row(1, 3, (tokens[3],), num_samples=1))
    together = runner.execute(StepPlan(1, (), rows)).copy()
    assert together.shape == (5, model.vocab_size)
    runner.execute(StepPlan(2, (Truncate(0, 20), Truncate(1, 3)), ()))
    for index, token in enumerate(tokens[20:24]):
        alone = runner.execute(StepPlan(3, (), (Row(0, 20 + index, (token,), num_samples=1),)))[0]
        assert np.abs(alone - together[index]).max() < 1.0
        assert np.corrcoef(alone, together[index])[0, 1] > 0.999


def test_greedy_text_is_the_bare_models_with_and_without_drafts(model, runner):
    """By the near-tie rule, since a row of several tokens is another kernel's work than several rows of one."""
    request = _request(model, "copy", _COPY, temperature=0, max_tokens=40, ignore_eos=True)
    bare = bare_run(runner, request.prompt, 40)
    for max_drafts in (0, 8):
        tokens, ends, load = _run(model, max_drafts, [request])
        assert_near_equal(tokens["copy"], bare)
        assert ends["copy"].num_output == 40
        assert (load.accepted_tokens > 5) is (max_drafts > 0)
        assert load.faults == 0


@pytest.mark.parametrize("max_drafts", [0, 8])
def test_answers_under_a_schema_parse_and_validate(model, grammar, max_drafts):
    """Greedy and drawn, beside a request without a grammar: each masked answer is an instance of the schema."""
    masked = [
        _request(model, f"json-{seed}", _ASK, grammar, temperature=float(seed > 0), seed=seed, max_tokens=120)
        for seed in range(3)
    ]
    free = _request(model, "free", _COPY, temperature=0, max_tokens=30)
    tokens, ends, load = _run(model, max_drafts, [*masked, free])
    for request in masked:
        assert (ends[request.id].finish_reason, ends[request.id].error) == (FinishReason.STOP, "")
        found = json.loads(b"".join(model.piece(token) for token in tokens[request.id]))
        assert found.keys() == {"name", "age", "skills"}
        assert isinstance(found["name"], str)
        assert 1 <= found["age"] <= 99
        assert all(isinstance(skill, str) for skill in found["skills"])
        assert len(found["skills"]) <= 3
    assert (load.drafted_tokens > 0) is (max_drafts > 0)
    assert load.faults == 0
