"""Step plans on the real model: batching, forking, forgetting, and what a fault leaves."""

import contextlib
import threading
import time

import numpy as np
import pytest

from engines.core.plan import EngineFault, Fork, Row, StepPlan, Truncate
from engines.gguf.runner import GgufRunner, RunnerSettings
from tests.engines.near_tie import assert_near_equal, bare_run, choice_of

pytestmark = pytest.mark.model

_PREFIX = "You are a careful assistant. Answer in one short sentence and stay with what you know. " * 6
_QUESTIONS = ["What is a cat?", "Name a colour.", "Count to five:", "The capital of France is"]
_NUM_TOKENS = 16


@pytest.fixture
def prompts(model):
    """Four prompts with a long common prefix; the second value is its length in tokens."""
    prefix = model.encode(_PREFIX, special=False)
    return [prefix + model.encode(f"\n{question}", special=False) for question in _QUESTIONS], len(prefix)


def _plan(*rows, memory=(), number=1):
    return StepPlan(number, tuple(memory), tuple(rows))


def _prefill(runner, slot, tokens, start=0):
    """The last token's logits after all `tokens` went in, in chunks."""
    for at in range(0, len(tokens), runner.max_step_tokens):
        chunk = tuple(tokens[at : at + runner.max_step_tokens])
        logits = runner.execute(_plan(Row(slot, start + at, chunk, num_samples=1)))
    return logits[0]


def _decode(runner, lasts, num_tokens=_NUM_TOKENS):
    """Greedy tokens of several slots in one batch; `lasts`: slot -> (tokens so far, first token)."""
    outputs = {slot: [token] for slot, (_, token) in lasts.items()}
    while len(next(iter(outputs.values()))) < num_tokens:
        rows = [Row(slot, lasts[slot][0] + len(out) - 1, (out[-1],), num_samples=1) for slot, out in outputs.items()]
        logits = runner.execute(_plan(*rows))
        for out, row in zip(outputs.values(), logits, strict=True):
            out.append(choice_of(row).best)
    return outputs


def test_forked_and_batched_sequences_answer_as_alone(runner, prompts):
    """The point of the engine: a shared prefix is computed once and changes nothing."""
    sequences, shared = prompts
    bare = [bare_run(runner, prompt, _NUM_TOKENS) for prompt in sequences]
    _prefill(runner, 0, sequences[0][:shared])
    forks = [Fork(0, slot, shared) for slot in range(1, 5)]
    rows = [Row(slot, shared, tuple(prompt[shared:]), num_samples=1) for slot, prompt in enumerate(sequences, start=1)]
    logits = runner.execute(_plan(*rows, memory=forks))
    lasts = {
        slot: (len(prompt), choice_of(row).best)
        for (slot, prompt), row in zip(enumerate(sequences, start=1), logits, strict=True)
    }
    for out, alone in zip(_decode(runner, lasts).values(), bare, strict=True):
        assert_near_equal(out, alone)


def test_a_preempted_sequence_recomputed_goes_on_as_before(runner, prompts):
    """Preemption loses KV, never words."""
    prompt = prompts[0][3]
    bare = bare_run(runner, prompt, _NUM_TOKENS)
    first = choice_of(_prefill(runner, 2, prompt)).best
    half = _decode(runner, {2: (len(prompt), first)}, _NUM_TOKENS // 2)[2]
    runner.execute(_plan(memory=[Truncate(2, 0)]))
    again = choice_of(_prefill(runner, 5, prompt + half)).best
    rest = _decode(runner, {5: (len(prompt) + len(half), again)}, _NUM_TOKENS // 2)[5]
    assert_near_equal(half + rest, bare)


def test_a_shortened_slot_goes_on_from_where_it_was_cut(runner, prompts):
    """A prefix hit on an idle slot keeps its head and replaces its tail."""
    sequences, shared = prompts
    bare = bare_run(runner, sequences[1], _NUM_TOKENS)
    _prefill(runner, 3, sequences[0])
    tail = tuple(sequences[1][shared:])
    logits = runner.execute(_plan(Row(3, shared, tail, num_samples=1), memory=[Truncate(3, shared)]))
    out = _decode(runner, {3: (len(sequences[1]), choice_of(logits[0]).best)})[3]
    assert_near_equal(out, bare)


def test_an_emptied_slot_leaves_nothing(runner, prompts):
    """The next tenant of a slot sees nothing of the last one: logits are those of a fresh runner, to the bit."""
    secret, other = prompts[0][0], prompts[0][3][-6:]
    fresh = _prefill(runner, 0, other).copy()
    runner.clear()
    _prefill(runner, 0, secret)
    runner.execute(_plan(memory=[Fork(0, 1, len(secret)), Truncate(0, 0), Truncate(1, 0)]))
    assert runner._library.c.llama_memory_seq_pos_max(runner._memory, 0) == -1
    np.testing.assert_array_equal(_prefill(runner, 0, other), fresh)


def test_a_fork_survives_its_source(runner, prompts):
    """Shared cells live until their last holder lets go."""
    prompt = prompts[0][0]
    bare = bare_run(runner, prompt, 4)
    _prefill(runner, 0, prompt[:-1])
    runner.execute(_plan(memory=[Fork(0, 1, len(prompt) - 1), Truncate(0, 0)]))
    logits = runner.execute(_plan(Row(1, len(prompt) - 1, tuple(prompt[-1:]), num_samples=1)))
    assert_near_equal(_decode(runner, {1: (len(prompt), choice_of(logits[0]).best)}, 4)[1], bare)


def test_forking_shares_cells(model, runner):
    """Eight forks of a prefix fit where eight copies would not."""
    prefix = model.encode("word " * 600, special=False)[:600]
    _prefill(runner, 0, prefix)
    runner.execute(_plan(memory=[Fork(0, slot, 600) for slot in range(1, 8)]))
    logits = runner.execute(_plan(*(Row(slot, 600, (100 + slot,), num_samples=1) for slot in range(8))))
    assert logits.shape == (8, model.vocab_size)


def test_only_sampling_rows_give_logits_in_their_order(runner, prompts):
    """Row i of the answer belongs to the i-th row that samples, whatever lies between."""
    a, b, c = (tuple(prompt[-5:]) for prompt in prompts[0][:3])
    alone = {}
    for tokens in (a, c):
        alone[tokens] = _prefill(runner, 0, tokens).copy()
        runner.clear()
    logits = runner.execute(
        _plan(Row(4, 0, a, num_samples=1), Row(1, 0, b, num_samples=0), Row(7, 0, c, num_samples=1))
    )
    assert logits.shape[0] == 2
    assert logits.dtype == np.float32
    for row, tokens in zip(logits, (a, c), strict=True):
        np.testing.assert_allclose(row, alone[tokens], atol=0.5)
        assert np.abs(row - alone[a if tokens == c else c]).max() > 1


def test_logits_are_those_the_library_names_row_by_row(runner, prompts):
    """Copying all rows at once relies on their order in the library's memory."""
    rows = [Row(slot, 0, tuple(prompts[0][slot][: 20 + slot]), num_samples=1) for slot in range(3)]
    together = runner.execute(_plan(*rows)).copy()
    for index, row in enumerate(rows):
        runner.clear()
        alone = runner.execute(_plan(row))[0]
        assert choice_of(alone).best == choice_of(together[index]).best or choice_of(alone).gap < 0.5


def test_a_step_without_rows_only_moves_memory(runner, prompts):
    """The scheduler may free slots when nothing runs."""
    _prefill(runner, 0, prompts[0][0])
    assert runner.execute(_plan(memory=[Truncate(0, 0)])).shape == (0, runner.vocab_size)


def test_no_room_is_a_fault_and_clearing_heals(model):
    """The scheduler counts cells; if it miscounts, the step fails and the worker goes on."""
    runner = GgufRunner(model, RunnerSettings(4, 256, 128, 1, 1))
    tokens = tuple(model.encode("word " * 300, special=False)[:128])
    runner.execute(_plan(Row(0, 0, tokens, num_samples=0)))
    runner.execute(_plan(Row(1, 0, tokens, num_samples=0)))
    with pytest.raises(EngineFault, match=r"no room .* \(step 7\)"):
        runner.execute(_plan(Row(2, 0, tokens, num_samples=1), number=7))
    assert "faulted" in repr(runner)
    with pytest.raises(AssertionError, match="not cleared"):
        runner.execute(_plan(Row(2, 0, tokens, num_samples=1)))
    runner.clear()
    assert np.isfinite(runner.execute(_plan(Row(2, 0, tokens, num_samples=1)))).all()
    runner.close()


def test_every_cell_can_be_used(model):
    """`kv_tokens` is a promise to the scheduler, to the last token."""
    runner = GgufRunner(model, RunnerSettings(2, 512, 256, 1, 1))
    tokens = tuple(model.encode("word " * 300, special=False)[:256])
    runner.execute(_plan(Row(0, 0, tokens, num_samples=0)))
    assert runner.execute(_plan(Row(1, 0, tokens, num_samples=1))).shape[0] == 1
    runner.close()


def test_a_step_budget_above_the_cells_is_harmless(model):
    """Small caches are set without touching the step budget; a step is then bounded by the cells."""
    tokens = tuple(model.encode("word " * 300, special=False)[:257])
    with contextlib.closing(GgufRunner(model, RunnerSettings(4, 256, 512, 1, 1))) as runner:
        assert runner.max_step_tokens == 512
        with pytest.raises(AssertionError, match="at most 256"):
            runner.execute(_plan(Row(0, 0, tokens, num_samples=1)))
        assert runner.execute(_plan(Row(0, 0, tokens[:256], num_samples=1))).shape[0] == 1


def test_holes_left_by_others_are_filled(model):
    """Cells come free in pieces; a long row must fit in the pieces."""
    tokens = tuple(model.encode("word " * 300, special=False)[:64])
    with contextlib.closing(GgufRunner(model, RunnerSettings(4, 256, 128, 1, 1))) as runner:
        for slot in range(4):
            runner.execute(_plan(Row(slot, 0, tokens, num_samples=0)))
        runner.execute(_plan(memory=[Truncate(slot, 4) for slot in (0, 2)]))
        assert runner.execute(_plan(Row(1, 64, tokens + tokens[:56], num_samples=1))).shape[0] == 1


def test_an_unknown_token_is_a_fault(runner):
    """The library checks ids itself and says so."""
    with pytest.raises(EngineFault, match="refused the step"):
        runner.execute(_plan(Row(0, 0, (49152,), num_samples=1)))


@pytest.mark.parametrize(
    "plan",
    [
        _plan(memory=[Fork(0, 1, 3)]),  # the target is not empty
        _plan(memory=[Fork(0, 2, 99)]),  # the source is shorter
        _plan(memory=[Truncate(0, 99)]),
        _plan(Row(0, 4, (1,), num_samples=1)),  # a position is left out
        _plan(Row(0, 1, (1,), num_samples=1)),  # a position is there already
        _plan(Row(2, 0, (), num_samples=1)),
        _plan(Row(2, 0, (1,), num_samples=1), Row(2, 1, (1,), num_samples=1)),
        _plan(Row(2, 0, (1,) * 257, num_samples=1)),
    ],
)
def test_a_plan_against_the_contract_is_a_bug_of_ours(runner, plan):
    """The scheduler's mistakes are caught before they silently change an answer."""
    runner.execute(_plan(Row(0, 0, (1, 2, 3), num_samples=0), Row(1, 0, (5,), num_samples=0)))
    with pytest.raises(AssertionError):
        runner.execute(plan)


def test_other_threads_run_during_a_step(model, runner):
    """The API thread streams while the model computes: the longest gap it sees is far below the step's length."""
    tokens = tuple(model.encode("word " * 300, special=False)[:256])
    done = threading.Event()
    thread = threading.Thread(target=lambda: (runner.execute(_plan(Row(0, 0, tokens, num_samples=1))), done.set()))
    start = time.perf_counter()
    thread.start()
    ticks = 0
    while not done.is_set():
        ticks += 1
    elapsed = time.perf_counter() - start
    thread.join()
    assert ticks > 1000 * elapsed, f"{ticks} ticks in {elapsed:.3f} s: the step kept the interpreter to itself"


def test_a_closed_runner_is_closed_twice_and_never_used_again(model):
    """Every end is harmless, whatever came before it."""
    runner = GgufRunner(model, RunnerSettings(1, 256, 16, 1, 1))
    runner.close()
    runner.close()
    assert "closed" in repr(runner)
    with pytest.raises(AssertionError, match="closed"):
        runner.execute(_plan())
    with pytest.raises(AssertionError, match="closed"):
        runner.clear()


def test_repr_tells_how_full_it_is(runner, prompts):
    """The first thing one looks at."""
    _prefill(runner, 3, prompts[0][0][:4])
    assert repr(runner) == "<GgufRunner open, 1 of 8 slots in use, 2048 KV tokens>"


@pytest.mark.parametrize(
    "sizes",
    [(0, 256, 16, 1, 1), (257, 4096, 512, 1, 1), (8, 256, 4, 1, 1), (16, 8, 16, 1, 1), (1, (1 << 24) + 1, 16, 1, 1),
     (1, 256, 16, 0, 1), (1, 256, 16, 1, 513)],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(sizes):
    """Each bound has its sentence; the library's own answer would be an assertion in C."""
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        RunnerSettings(*sizes)


def test_the_most_slots_work(model):
    """256 sequences are the library's bound and ours."""
    runner = GgufRunner(model, RunnerSettings(256, 512, 256, 1, 1))
    logits = runner.execute(_plan(*(Row(slot, 0, (100,), num_samples=1) for slot in range(256))))
    assert logits.shape == (256, model.vocab_size)
    runner.close()
