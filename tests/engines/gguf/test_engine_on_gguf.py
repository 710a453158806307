"""The real engine on the real model: requests that share a prefix answer as each would alone."""

import queue

import pytest

from engines.core.admission import SchedulerSettings
from engines.core.engine import Engine
from engines.core.holders import SlotHolders
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams
from engines.gguf.runner import GgufRunner, RunnerSettings
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


def _run(engine, prompts, salt):
    """Submit all at once; per prompt its tokens and its last delta."""
    deltas = queue.Queue()
    greedy = SamplingParams(temperature=0, max_tokens=_NUM_TOKENS, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        request = GenerateRequest(f"{salt}-{number}", prompt, greedy, salt=salt)
        assert engine.submit(request, deltas.put) is None
    tokens = {f"{salt}-{number}": [] for number in range(len(prompts))}
    ends = {}
    while len(ends) < len(prompts):
        delta = deltas.get(timeout=60)
        tokens[delta.request_id] += delta.token_ids
        if delta.finish_reason is not None:
            ends[delta.request_id] = delta
    return [(tokens[key], ends[key]) for key in tokens]


def _engine(model, num_slots, max_seqs, kv_tokens):
    settings = SchedulerSettings(
        max_seqs=max_seqs, max_step_tokens=128, context_tokens=model.context_tokens, kv_tokens=kv_tokens
    )
    runner = GgufRunner(model, RunnerSettings(num_slots, kv_tokens, 128, 1, 1))
    return Engine(runner, Scheduler(settings, SlotHolders(num_slots)), checks_when_idle=True)


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
