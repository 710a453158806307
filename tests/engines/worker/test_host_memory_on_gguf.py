"""Host memory with a real model: what was evicted is copied back, and the answer is the same."""

import contextlib

import pytest

from engines.core.sequence import GenerateRequest, SamplingParams
from engines.gguf.library import open_library
from engines.gguf.model import GgufModel
from engines.gguf.runner import GgufRunner, RunnerSettings
from engines.worker.engine_options import EngineOptions
from engines.worker.loaded import load_engine
from tests.engines.near_tie import assert_near_equal, bare_run
from tests.engines.worker.processes import until

pytestmark = [pytest.mark.model, pytest.mark.timeout(180)]

NUM_TOKENS = 16
STORY = "A quiet library by the river had seven rooms, and in each of them a clock told another time. " * 9


class Asker:
    """Sends prompts to a loaded engine, one at a time."""

    def __init__(self, loaded):
        self.loaded = loaded
        self.num_asked = 0

    def __call__(self, text, salt="a", max_tokens=NUM_TOKENS):
        """(output tokens, cached tokens)."""
        self.num_asked += 1
        deltas = []
        prompt = tuple(self.loaded.model.encode(text, special=False))
        request = GenerateRequest(
            f"r{self.num_asked}", prompt, SamplingParams(max_tokens=max_tokens, temperature=0), salt=salt
        )
        assert self.loaded.engine.submit(request, deltas.append) is None
        until(lambda: deltas and deltas[-1].finish_reason is not None, patience_s=90)
        assert not deltas[-1].error
        return [token for delta in deltas for token in delta.token_ids], deltas[-1].cached_tokens


@pytest.fixture(scope="module")
def bare(demo_model):
    """The bare library's greedy continuation of the story."""
    model = GgufModel(demo_model, open_library())
    with contextlib.closing(GgufRunner(model, RunnerSettings(1, 512, 256, threads=1, threads_batch=1))) as runner:
        return bare_run(runner, model.encode(STORY, special=False), NUM_TOKENS)


def test_an_evicted_conversation_is_restored_and_answers_the_same(demo_model, bare):
    """Asked, flooded out of a small cache, asked again: from host memory, by the near-tie rule; for its own salt only."""
    options = EngineOptions("gguf", demo_model, "demo", 2, 640, 256, 1, 1, host_kv_mb=64, checks_when_idle=True)
    loaded = load_engine(options)
    loaded.start()
    try:
        ask = Asker(loaded)
        first, cached = ask(STORY)
        assert cached == 0
        for number in range(5):
            ask(f"Room {number}. " + f"shelf {number} and chair {number}, " * 30, max_tokens=1)
        until(lambda: loaded.engine.load().running == 0)
        restored_before = loaded.engine.load().kv_restored_tokens
        again, cached = ask(STORY)
        load = loaded.engine.load()
        assert load.kv_restored_tokens - restored_before == cached
        assert cached > 0.9 * len(loaded.model.encode(STORY, special=False)) - 16
        assert load.prefix_host_hit_tokens >= cached
        assert_near_equal(first, bare)
        assert_near_equal(again, bare)
        assert ask(STORY, salt="b")[1] == 0
        until(lambda: loaded.engine.load().running == 0)
        assert loaded.engine.load().faults == 0
    finally:
        loaded.close()
