"""One prefix, many requests, on the real model: computed once, forked in no time, never shared between salts."""

import contextlib
import time

import pytest

from engines.core.plan import Fork, StepPlan, Truncate
from engines.core.sequence import SamplingParams
from engines.gguf.runner import GgufRunner, RunnerSettings
from tests.engines.gguf.bare import Device
from tests.engines.gguf.driven_model import DrivenModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

ONE = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
MAX_FORK_S = 0.005  # issue 7: of 500 tokens


@pytest.fixture(scope="module")
def device(model):
    """A runner with slots for all."""
    with contextlib.closing(GgufRunner(model, RunnerSettings(40, 1024, 512, 1, 1))) as runner:
        yield Device(model, runner, None, {}, {})


@pytest.fixture(scope="module")
def text(model):
    """More than six hundred tokens."""
    return model.encode("Rule: the librarian winds the clock in room seven at noon. " * 50, special=False)


def test_a_prefix_is_computed_once_for_thirty_two_and_forked_in_no_time(device, text):
    """By the step log; then, on the same cells, what a fork of 500 tokens takes of this thread's time."""
    prefix = text[:512]
    driven = DrivenModel(device, max_seqs=32, mixes_prompts=False)
    for number in range(32):
        assert driven.add(str(number), (*prefix, 100 + number), ONE) is None
    driven.run()
    positions = [
        position
        for plan in driven.plans
        for row in plan.rows
        for position in range(row.start, min(len(prefix), row.start + len(row.tokens)))
    ]
    assert sorted(positions) == list(range(len(prefix)))
    cached = sorted(driven.last(str(number)).cached_tokens for number in range(32))
    assert cached == [0, *[len(prefix)] * 31]
    driven.check_nothing_is_held()
    source = driven.runner.slots().index(tuple(prefix))
    target = driven.runner.slots().index(())
    took = []
    for _ in range(5):
        started = time.thread_time()
        device.runner.execute(StepPlan(0, (Fork(source, target, 500),), ()))
        took.append(time.thread_time() - started)
        device.runner.execute(StepPlan(0, (Truncate(target, 0),), ()))
    assert min(took) < MAX_FORK_S


def test_two_salts_never_share_a_cell(device, text):
    """Not while both are there, not when one is over, not by way of host memory."""
    prompt = tuple(text[:40])
    driven = DrivenModel(device, kv_tokens=96, host_tokens=512)
    long = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    for salt in ("alder", "birch"):
        assert driven.add(salt, prompt, long, salt=salt) is None
    driven.step()
    assert driven.runner.num_used_cells == 2 * len(prompt), "a cell of each salt for each token"
    driven.run()
    assert [driven.last(salt).cached_tokens for salt in ("alder", "birch")] == [0, 0]
    assert driven.add("flood", text[100:190], ONE, salt="flood") is None
    driven.run()
    for salt, cached in (("cedar", 0), ("alder", 32)):
        assert driven.add(f"{salt} again", prompt, ONE, salt=salt) is None
        driven.run()
        assert driven.last(f"{salt} again").cached_tokens == cached
    assert driven.scheduler.statistics().host.restored_tokens == 32
