"""KV on its way to host memory and back, on the real model: what comes back is what was computed."""

import contextlib
import sys

import numpy as np
import psutil
import pytest

from engines.core.plan import Discard, EngineFault, Fork, Restore, Row, Save, StepPlan, Truncate
from engines.gguf.runner import GgufRunner, RunnerSettings
from tests.engines.near_tie import choice_of

pytestmark = pytest.mark.model


@pytest.fixture
def tokens(model):
    """Two hundred tokens of ordinary text."""
    return tuple(model.encode("The librarian looks up a book about gardens, and reads it. " * 30, special=False)[:200])


def _plan(*rows, memory=()):
    return StepPlan(1, tuple(memory), tuple(rows))


def _next(runner, slot, start, token):
    return runner.execute(_plan(Row(slot, start, (token,), num_samples=1)))[0].copy()


def _fill(runner, slot, tokens):
    runner.execute(_plan(Row(slot, 0, tokens, num_samples=0)))


def _same(one, other):
    """The same cells in another place: kernels see another layout, so logits agree but for rounding."""
    assert np.abs(one - other).mean() < 0.5
    assert choice_of(one).best == choice_of(other).best or choice_of(one).gap < 0.5


def test_a_restored_sequence_goes_on_as_the_computed_one(runner, tokens):
    """The host tier's whole point: a copy instead of a computation."""
    _fill(runner, 0, tokens)
    runner.execute(_plan(memory=[Save(0, 7, 200)]))
    computed = _next(runner, 0, 200, 100)
    runner.execute(_plan(memory=[Truncate(0, 0), Restore(7, 5, 200)]))
    _same(_next(runner, 5, 200, 100), computed)


@pytest.mark.parametrize("num_tokens", [1, 16, 199])
def test_a_head_alone_can_be_saved_and_a_head_of_that_restored(runner, tokens, num_tokens):
    """Blocks leave one after the other, and a hit may be shorter than what was saved."""
    _fill(runner, 0, tokens[:num_tokens])
    computed = _next(runner, 0, num_tokens, 100)
    runner.clear()
    _fill(runner, 0, tokens)
    runner.execute(_plan(memory=[Save(0, 1, num_tokens), Save(0, 2, 200), Truncate(0, 0)]))
    for handle, slot in ((1, 2), (2, 3)):
        runner.execute(_plan(memory=[Restore(handle, slot, num_tokens)]))
        _same(_next(runner, slot, num_tokens, 100), computed)


def test_saving_leaves_the_slot_as_it_was(runner, tokens):
    """The device keeps its copy, and the spare sequence keeps nothing."""
    _fill(runner, 0, tokens)
    runner.execute(_plan(memory=[Save(0, 1, 50), Discard(1)]))
    before = _next(runner, 0, 200, 100)
    runner.execute(_plan(memory=[Truncate(0, 200), Save(0, 2, 120), Save(0, 3, 200)]))
    np.testing.assert_array_equal(_next(runner, 0, 200, 100), before)
    assert runner._library.c.llama_memory_seq_pos_max(runner._memory, runner.num_slots) == -1


def test_what_is_saved_may_be_restored_again_and_again(runner, tokens):
    """Restoring takes nothing from the host."""
    _fill(runner, 0, tokens[:32])
    runner.execute(_plan(memory=[Save(0, 1, 32), Truncate(0, 0), Restore(1, 2, 32), Restore(1, 3, 8)]))
    logits = runner.execute(_plan(Row(2, 32, (100,), num_samples=1), Row(3, 8, tokens[8:32], num_samples=1)))
    assert np.isfinite(logits).all()


def test_a_shared_prefix_is_saved_whole(runner, tokens):
    """Cells that carry several slots' numbers belong to each of them."""
    _fill(runner, 0, tokens)
    runner.execute(_plan(memory=[Fork(0, 1, 100), Save(1, 9, 100), Truncate(1, 0), Restore(9, 4, 100)]))
    expected = _next(runner, 0, 200, 100)
    runner.execute(_plan(Row(4, 100, tokens[100:], num_samples=0)))
    _same(_next(runner, 4, 200, 100), expected)


def test_a_saved_token_takes_what_is_said(runner, tokens, model):
    """The bound on host memory is kept in tokens, so a token's price must be true."""
    assert runner.host_bytes_per_token >= model.kv_token_bytes
    for handle, num_tokens in enumerate((1, 100, 200)):
        _fill(runner, handle, tokens[:num_tokens])
        before = runner._saved.num_bytes
        runner.execute(_plan(memory=[Save(handle, handle, num_tokens)]))
        fixed = runner._saved.num_bytes - before - num_tokens * runner.host_bytes_per_token
        assert 0 <= fixed < 4096


def test_discarding_gives_the_memory_back_once(runner, tokens):
    """Every ending of a saved state: discarded, cleared with a fault, closed with the runner."""
    _fill(runner, 0, tokens)
    runner.execute(_plan(memory=[Save(0, 1, 200), Save(0, 2, 10)]))
    runner.execute(_plan(memory=[Discard(1)]))
    assert len(runner._saved) == 1
    with pytest.raises(AssertionError, match="nothing is saved under handle 1"):
        runner.execute(_plan(memory=[Discard(1)]))
    runner.clear()
    assert runner._saved.num_bytes == 0
    _fill(runner, 0, tokens)
    runner.execute(_plan(memory=[Save(0, 1, 200)]))
    runner.close()
    assert len(runner._saved) == 0


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (Save(0, 1, 10), "handle 1 is in use"),
        (Save(0, 2, 33), "slot 0 has 32 tokens"),
        (Save(0, 2, 0), "slot 0 has 32 tokens"),
        (Restore(5, 2, 10), "nothing is saved under handle 5"),
        (Restore(1, 2, 33), "handle 1 has 32 tokens"),
        (Restore(1, 2, 0), "handle 1 has 32 tokens"),
        (Restore(1, 0, 10), "slot 0 is not empty"),
        (Discard(5), "nothing is saved under handle 5"),
    ],
)
def test_an_operation_against_the_contract_is_a_bug_of_ours(runner, tokens, operation, said):
    """The scheduler's mistakes are named before they change an answer."""
    _fill(runner, 0, tokens[:32])
    runner.execute(_plan(memory=[Save(0, 1, 32)]))
    with pytest.raises(AssertionError, match=said):
        runner.execute(_plan(memory=[operation]))


def test_no_room_for_what_was_saved_is_a_fault_and_clearing_heals(model, tokens):
    """The scheduler counts the cells; if it miscounts, the worker goes on after a clear."""
    with contextlib.closing(GgufRunner(model, RunnerSettings(3, 256, 256, 1, 1))) as runner:
        _fill(runner, 0, tokens)
        runner.execute(_plan(memory=[Save(0, 1, 200)]))
        model.library.log.write(4, "something older")
        with pytest.raises(EngineFault, match=r"cannot restore 200 saved tokens: .+\.$") as fault:
            runner.execute(_plan(memory=[Restore(1, 1, 200)]))
        assert "something older" not in str(fault.value)
        runner.clear()
        _fill(runner, 0, tokens)


def test_no_host_memory_is_a_fault(runner, tokens, monkeypatch):
    """An allocation that is refused ends the step, not the process."""

    def refuse(size, dtype):
        raise OSError(12, "Cannot allocate memory")

    _fill(runner, 0, tokens)
    monkeypatch.setattr("engines.gguf.saved.mmap.mmap", refuse)
    with pytest.raises(EngineFault, match=r"no host memory for 4\.\d MB"):
        runner.execute(_plan(memory=[Save(0, 1, 200)]))
    assert len(runner._saved) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="how much memory a process holds is told best there")
def test_memory_of_a_state_goes_back_to_the_system_whatever_lies_around_it(runner, tokens):
    """Every other one is given up: half of what they took is free again, and no hole is left in the heap."""
    _fill(runner, 0, tokens)
    resident = psutil.Process().memory_info
    np.ones(20 << 20, np.uint8)  # freed at once: from now on the heap takes blocks of that size itself
    before = resident().rss
    handles = range(1, 25)
    runner.execute(_plan(memory=[Save(0, handle, len(tokens)) for handle in handles]))
    taken = resident().rss - before
    assert taken > 0.9 * runner._saved.num_bytes
    runner.execute(_plan(memory=[Discard(handle) for handle in handles if handle % 2]))
    assert resident().rss - before < 0.6 * taken


def test_the_smallest_runner_saves_too(model):
    """One slot, as many tokens a step: the spare sequence is beside them, not among them."""
    with contextlib.closing(GgufRunner(model, RunnerSettings(1, 256, 1, 1, 1))) as runner:
        _fill(runner, 0, (5,))
        runner.execute(_plan(Row(0, 1, (6,), num_samples=1)))
        runner.execute(_plan(memory=[Save(0, 1, 1), Truncate(0, 0), Restore(1, 0, 1)]))
        assert np.isfinite(_next(runner, 0, 1, 6)).all()


def test_a_runner_without_a_spare_sequence_cannot_save(model):
    """With all 256 sequences in use none is left to cut a head with; it says so."""
    with contextlib.closing(GgufRunner(model, RunnerSettings(256, 512, 256, 1, 1))) as runner:
        assert runner.host_bytes_per_token == 0
