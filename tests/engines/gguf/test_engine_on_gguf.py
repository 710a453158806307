"""The real engine on the real model: requests that share a prefix answer as each would alone."""

import queue

import pytest

from engines.core.admission import SchedulerSettings
from engines.core.engine import Engine
from engines.core.holders import SlotHolders
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams
from engines.gguf.runner import GgufRunner, RunnerSettings
from engines.step_cost import StepCost, StepCostFitter
from policies.lane import Lane
from tests.engines.near_tie import assert_near_equal, bare_run

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

_SYSTEM = "<|im_start|>system\nYou are a patient librarian who answers briefly and kindly. " * 5 + "<|im_end|>\n"
_ASKED = ["What is a cat?", "Name a colour.", "Count to five.", "What is the capital of France?", "Say hello."]
_NUM_TOKENS = 12


def _prompts(model):
    system = model.encode(_SYSTEM, special=True)
    for asked in _ASKED:
        turn = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        yield tuple(system + model.encode(turn, special=True))


def _run(engine, prompts, salt, lanes=()):
    """Submit all, bulk first and the others when one of it has begun; per prompt its tokens and its last delta."""
    deltas = queue.Queue()
    greedy = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True)
    lanes = lanes or [Lane.INTERACTIVE] * len(prompts)
    keys = [f"{salt}-{number}" for number in range(len(prompts))]
    tokens, ends = {key: [] for key in keys}, {}
    waves = [[n for n, lane in enumerate(lanes) if (lane is Lane.BULK) is is_bulk] for is_bulk in (True, False)]
    for wave in waves:
        for number in wave:
            request = GenerateRequest(keys[number], prompts[number], greedy, lanes[number], salt=salt)
            assert engine.submit(request, deltas.put) is None
        while len(ends) < len(prompts) and (wave is waves[-1] or (wave and not any(tokens.values()))):
            delta = deltas.get(timeout=60)
            tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                ends[delta.request_id] = delta
    return [(tokens[key], ends[key]) for key in keys]


class _Fixed(StepCostFitter):
    """Does not learn: what it believes is what a test wants."""

    def observe(self, rows, prefill_tokens, seconds):
        pass


def _engine(model, num_slots, max_seqs, kv_tokens, fitter=None):
    settings = SchedulerSettings(
        max_seqs=max_seqs, max_step_tokens=128, context_tokens=model.context_tokens, kv_tokens=kv_tokens
    )
    runner = GgufRunner(model, RunnerSettings(num_slots, kv_tokens, 128, 1, 1))
    return Engine(runner, Scheduler(settings, SlotHolders(num_slots)), fitter=fitter, checks_when_idle=True)


@pytest.mark.parametrize(("max_seqs", "kv_tokens"), [(4, 2048), (5, 192)], ids=["roomy", "preempting"])
def test_requests_that_share_a_prefix_answer_as_alone(model, runner, max_seqs, kv_tokens):
    """Batched, forked, hit and (in little memory) preempted: the words stay the model's own."""
    prompts = list(_prompts(model))
    bare = [bare_run(runner, prompt, _NUM_TOKENS) for prompt in prompts]
    engine = _engine(model, 8, max_seqs, kv_tokens)
    engine.start()
    try:
        first = _run(engine, prompts, "alder")
        second = _run(engine, prompts, "alder")
        stranger = _run(engine, prompts[:1], "birch")
        assert (engine.load().preemptions > 0) is (kv_tokens < 1000)
    finally:
        engine.stop()
    for round_ in (first, second):
        for (tokens, end), alone in zip(round_, bare, strict=True):
            assert end.finish_reason is FinishReason.LENGTH
            assert_near_equal(tokens, alone)
    assert_near_equal(stranger[0][0], bare[0])
    assert stranger[0][1].cached_tokens == 0
    shared = len(model.encode(_SYSTEM, special=True)) // 16 * 16
    assert max(end.cached_tokens for _, end in second) >= shared


def test_bulk_that_was_left_out_answers_as_alone(model, runner):
    """It keeps its KV and goes on where it was, on the real device too."""
    prompts = list(_prompts(model))
    bare = [bare_run(runner, prompt, _NUM_TOKENS) for prompt in prompts]
    lanes = [Lane.BULK, Lane.INTERACTIVE, Lane.BULK, Lane.STANDARD, Lane.BULK]
    engine = _engine(model, 8, 4, 2048, _Fixed(StepCost(0.005, 0.01, 0.002)))
    engine.start()
    try:
        mixed = _run(engine, prompts, "alder", lanes)
        assert engine.load().bulk_rows_left_out > 0
        assert engine.load().preemptions == 0
    finally:
        engine.stop()
    for (tokens, _), alone in zip(mixed, bare, strict=True):
        assert_near_equal(tokens, alone)
