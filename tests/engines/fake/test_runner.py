"""The fake runner tells the truth about cells, and does what it is told."""

import numpy as np
import pytest

from engines.core.plan import Discard, EngineFault, Fork, Restore, Row, Runner, Save, StepPlan, Truncate
from engines.fake.cells import CellError
from engines.fake.model import FIRST_WORD, IM_END, VOCAB_SIZE, FakeModel
from engines.fake.runner import FakeRunner, scripted_token
from engines.step_cost import StepCost

MODEL = FakeModel()


def row(slot, start, *tokens, num_samples=1, blocks=()):
    return Row(slot, start, tuple(FIRST_WORD + 20 + token for token in tokens), num_samples, tuple(blocks))


def execute(runner, *rows, memory=(), number=1):
    return runner.execute(StepPlan(number, tuple(memory), rows))


def slot_runner(**options):
    return FakeRunner(num_slots=4, kv_tokens=32, max_step_tokens=16, eos_every=0, **options)


def test_is_a_runner_with_logits_of_the_documented_shape():
    """A row of float32 for each sampling row, none for the others."""
    runner: Runner = slot_runner()
    logits = execute(runner, row(0, 0, 1, 2), row(1, 0, 3, num_samples=0))
    assert (logits.shape, logits.dtype) == ((1, VOCAB_SIZE), np.float32)
    assert execute(runner, row(2, 0, 3, num_samples=0)).shape == (0, VOCAB_SIZE)


def test_logits_depend_on_every_visible_token_and_nothing_else():
    """A wrong token anywhere in the prefix must change the answer; slot and chunks must not."""
    whole = execute(slot_runner(), row(0, 0, 1, 2, 3))
    chunked = slot_runner()
    execute(chunked, row(3, 0, 1, 2, num_samples=0))
    assert (execute(chunked, row(3, 2, 3)) == whole).all()
    for other in ((9, 2, 3), (1, 9, 3), (1, 2, 9), (2, 3)):
        assert (execute(slot_runner(), row(0, 0, *other)) != whole).any()


def test_a_fork_shares_cells_and_a_truncation_gives_them_back():
    """A shared token uses one cell until its last holder lets go."""
    runner = slot_runner()
    execute(runner, row(0, 0, 1, 2, 3))
    logits = execute(runner, row(1, 2, 3), memory=[Fork(0, 1, 2)])
    assert (logits == execute(slot_runner(), row(0, 0, 1, 2, 3))).all()
    assert runner.num_used_cells == 4
    execute(runner, row(2, 0, 1), memory=[Truncate(0, 0)])
    assert runner.num_used_cells == 4
    runner.clear()
    assert runner.num_used_cells == 0


@pytest.mark.parametrize(
    ("rows", "memory", "message"),
    [
        ([row(0, 1, 1)], [], "holds 3 tokens and is written at 1"),
        ([row(1, 2, 1)], [], "holds 0 tokens and is written at 2"),
        ([row(1, 0, 1)], [Fork(0, 1, 4)], "fork of 4 tokens from slot 0 with 3"),
        ([row(0, 3, 1)], [Fork(0, 0, 1)], "not empty"),
        ([row(1, 0, 1)], [Truncate(0, 4)], "truncated to 4"),
        ([row(1, 0, *range(16)), row(2, 0, *range(16))], [], "at most 16"),
        ([row(1, 0, 1), row(1, 0, 2)], [], "slots"),
        ([row(4, 0, 1)], [], "slots"),
    ],
)
def test_impossible_plans_are_faults(rows, memory, message):
    """Each is a mistake that a real device would turn into silent nonsense."""
    runner = slot_runner()
    execute(runner, row(0, 0, 1, 2, 3))
    with pytest.raises(EngineFault, match=message):
        execute(runner, *rows, memory=memory)


def test_cells_run_out():
    """The bound of the device is real."""
    runner = slot_runner()
    for slot in (0, 1):
        execute(runner, row(slot, 0, *range(16)))
    with pytest.raises(CellError, match="out of cells"):
        execute(runner, row(2, 0, 1))


def test_paged_rows_see_their_blocks():
    """Sharing by table gives the same logits as owning."""
    runner = slot_runner(pages_by=2)
    whole = execute(runner, row(0, 0, 1, 2, 3, blocks=(5, 3)))
    assert (execute(runner, row(1, 2, 3, blocks=(5, 7))) == whole).all()
    assert runner.num_used_cells is None


@pytest.mark.parametrize(
    ("bad", "memory", "message"),
    [
        (row(1, 2, 3, blocks=(6, 7)), [], "not written"),
        (row(1, 2, 3, blocks=(5,)), [], "do not hold"),
        (row(1, 0, 3, blocks=(9,)), [Fork(0, 1, 2)], "pages by block table"),
    ],
)
def test_wrong_tables_are_faults(bad, memory, message):
    """Reading a page that belongs elsewhere is the bug that paging invites."""
    runner = slot_runner(pages_by=2)
    execute(runner, row(0, 0, 1, 2, 3, blocks=(5, 3)))
    with pytest.raises(CellError, match=message):
        execute(runner, bad, memory=memory)


def test_a_step_lasts_what_the_model_says():
    """Isolation can only be studied if a step costs what its batch costs."""
    slept = []
    runner = slot_runner(cost=StepCost(1.0, 0.1, 0.01), sleep=slept.append, stalls={2: 60.0})
    execute(runner, row(0, 0, 1), row(1, 0, 1, 2, 3))
    execute(runner, row(0, 1, 1), number=2)
    assert slept == pytest.approx([1.0 + 0.1 + 0.03, 61.1])


def test_scripted_steps_fail():
    """Faults on demand, with the type that devices raise."""
    runner = slot_runner(failing_steps=frozenset({2}))
    execute(runner, row(0, 0, 1))
    with pytest.raises(EngineFault, match="step 2"):
        execute(runner, row(0, 1, 1), number=2)


def test_no_step_after_close():
    """Closing twice is harmless, using it afterwards is a bug."""
    runner = slot_runner()
    runner.close()
    runner.close()
    assert runner.is_closed
    with pytest.raises(AssertionError, match="after close"):
        execute(runner, row(0, 0, 1))


def test_ends_come_rarely_and_only_words_are_said():
    """max_tokens normally decides, and answers are readable."""
    runner = FakeRunner(num_slots=1, kv_tokens=4096, max_step_tokens=1, eos_every=50)
    said = []
    token = FIRST_WORD + 30
    for position in range(1000):
        token = int(execute(runner, Row(0, position, (token,), num_samples=1))[0].argmax())
        said.append(token)
    assert 5 < said.count(IM_END) < 45
    assert all(token >= FIRST_WORD or token == IM_END for token in said)


def answer(prompt):
    """What the script of a prompt makes the runner say."""
    tokens, said = MODEL.encode(prompt, special=True), []
    while (token := scripted_token(tokens)) not in (IM_END, None):
        tokens.append(token)
        said.append(token)
    return b"".join(MODEL.piece(each) for each in said).decode()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("[[say hello ☃]]", "hello ☃"),
        ("<|im_start|>user\n[[say the first]]<|im_end|>\n<|im_start|>assistant\n", "the first"),
        ("[[say one]] and [[say two]]<|im_end|>\n<|im_start|>assistant\n", "two"),
        ("[[say not closed", ""),
        ("no script", ""),
    ],
)
def test_a_script_in_the_prompt_is_what_is_said(prompt, expected):
    """End-to-end tests need exact answers, in chat and in plain completions."""
    assert answer(prompt) == expected


def test_the_script_decides_the_logits():
    """The marker works through the runner, not only in its function."""
    tokens = MODEL.encode("[[say people]]", special=False)
    runner = FakeRunner(num_slots=1)
    best = int(runner.execute(StepPlan(1, (), (Row(0, 0, tuple(tokens), num_samples=1),)))[0].argmax())
    assert MODEL.piece(best) == b"people"


@pytest.mark.parametrize("pages_by", [None, 2])
def test_what_was_saved_is_restored_as_it_was(pages_by):
    """Into another slot, in part, after the first holder is gone; until it is discarded."""
    runner = slot_runner(pages_by=pages_by)
    execute(runner, row(0, 0, 1, 2, 3, 4, blocks=(5, 3)), memory=[])
    execute(runner, memory=[Save(0, 7, 4, (5, 3))])
    if pages_by is None:
        execute(runner, memory=[Truncate(0, 0)])
    assert runner.num_host_tokens == 4
    logits = execute(runner, row(2, 3, 9, blocks=(0, 1)), memory=[Restore(7, 2, 3, (0, 1))])
    assert (logits == execute(slot_runner(), row(0, 0, 1, 2, 3, 9))).all()
    before = runner.kv_state()
    execute(runner, memory=[Discard(7)])
    assert runner.num_host_tokens == 0
    assert runner.kv_state() != before


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ([Save(0, 1, 4)], "slot 0 are saved, but it holds 3"),
        ([Save(0, 1, 3), Save(0, 1, 3)], "saved twice"),
        ([Restore(1, 1, 1)], "were not saved"),
        ([Save(0, 1, 2), Restore(1, 1, 3)], "were not saved"),
        ([Save(0, 1, 2), Restore(1, 0, 2)], "not empty"),
        ([Save(0, 1, 2), Discard(1), Discard(1)], "not saved"),
        ([Save(0, 1, 3), *(Restore(1, slot, 1) for slot in (1, 2, 3)), *[Save(0, 2, 3)] * 2], "saved twice"),
    ],
)
def test_copies_that_make_no_sense_are_faults(memory, message):
    """A handle is given once and given back once."""
    runner = slot_runner()
    execute(runner, row(0, 0, 1, 2, 3))
    with pytest.raises(CellError, match=message):
        execute(runner, memory=memory)


def test_a_restore_needs_cells_for_all_that_was_saved():
    """As on llama.cpp, where a sequence comes back whole and is then cut."""
    runner = slot_runner()
    execute(runner, row(0, 0, *range(16)))
    execute(runner, row(1, 0, *range(8)), memory=[Save(0, 1, 16)])
    with pytest.raises(CellError, match="out of cells"):
        execute(runner, memory=[Restore(1, 2, 2)])


def test_clear_forgets_what_was_saved():
    """After a fault nothing is relied on."""
    runner = slot_runner()
    execute(runner, row(0, 0, 1, 2, 3))
    execute(runner, memory=[Save(0, 1, 3)])
    runner.clear()
    assert runner.num_host_tokens == 0


def test_a_step_without_rows_takes_no_time_of_rows():
    """Copies alone are no decode."""
    slept = []
    runner = slot_runner(cost=StepCost(1.0, 0.1, 0.01), sleep=slept.append)
    execute(runner, memory=[Truncate(0, 0)])
    assert slept == [0.0]


@pytest.mark.parametrize("pages_by", [None, 4])
def test_each_wanted_token_of_a_row_has_its_own_logits(pages_by):
    """As if the tokens had come one by one: what drafts are verified by."""
    blocks = () if pages_by is None else (0, 1)
    together = slot_runner(pages_by=pages_by)
    logits = execute(together, row(0, 0, 1, 2, 3, 4, num_samples=3, blocks=blocks))
    singly = slot_runner(pages_by=pages_by)
    execute(singly, row(0, 0, 1, num_samples=0, blocks=blocks))
    for index, token in enumerate((2, 3, 4)):
        assert (execute(singly, row(0, 1 + index, token, blocks=blocks))[0] == logits[index]).all()
