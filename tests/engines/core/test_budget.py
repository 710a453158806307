"""How a step's tokens are shared."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.budget import StepBudget
from engines.core.latency_guard import LatencyGuard, LatencySettings
from engines.core.sequence import GenerateRequest, Sequence
from engines.step_cost import StepCost
from policies.lane import Lane

COST = StepCost(base_s=0.010, per_row_s=0.001, per_prefill_token_s=0.0001)
URGENT, BULK = Lane.INTERACTIVE, Lane.BULK


def seated(num_tokens, num_computed, slot=0, lane=URGENT):
    request = GenerateRequest("r", (1,) * num_tokens, lane=lane)
    made = Sequence(request, 999, 0, (lane.rank, 0, 0.0, slot), tokens=list(range(num_tokens)))
    made.num_computed, made.slot = num_computed, slot
    return made


def decoding(slot=0, lane=URGENT):
    return seated(9, 8, slot, lane)


def budget(tokens=512, rows=64, cost=COST, **latency):
    return StepBudget(LatencyGuard(LatencySettings(**latency), cost), tokens, rows)


def granted(step, *sequences):
    """Tokens a sequence, in the order asked."""
    for sequence in sequences:
        step.take(sequence)
    found = {id(grant.sequence): grant.num_tokens for grant in step.grants}
    return [found.get(id(sequence), 0) for sequence in sequences]


def test_prompts_take_what_decoding_leaves():
    """In their order; what is over gets no row at all."""
    step = budget(60, cost=StepCost())
    assert granted(step, decoding(), seated(50, 0), seated(30, 0), seated(5, 0)) == [1, 50, 9, 0]
    assert not step.can_seat(URGENT)


def test_prompts_beside_decoding_are_cut_to_the_time_they_may_take():
    """All of them together: (50 - 11) ms at 0.1 ms a token."""
    assert granted(budget(), decoding(), seated(300, 0), seated(300, 0)) == [1, 300, 90]


def test_a_prompt_alone_takes_the_whole_step():
    """Nobody's gap is at stake."""
    assert granted(budget(), seated(600, 0)) == [512]


def test_bulk_rows_go_in_while_the_objective_holds():
    """(10 + 8) ms alone may become 20.16 ms: two more rows."""
    step = budget(bulk_growth=1.12)
    tokens = granted(step, *(decoding(slot) for slot in range(8)), *(decoding(slot, BULK) for slot in range(8, 14)))
    assert tokens == [1] * 10 + [0] * 4
    outlook = step.outlook(num_seated_bulk=6)
    assert outlook.lanes == (URGENT,) * 8 + (BULK,) * 2
    assert outlook.modelled_urgent_s == pytest.approx(0.018)
    assert outlook.modelled_s == pytest.approx(0.020)
    assert outlook.objective_s == pytest.approx(0.018 * 1.12)
    assert (outlook.bulk_left_out, outlook.is_lifted) == (4, False)


def test_a_bulk_prompt_gets_what_the_objective_leaves():
    """A few tokens are better than none: they ride along."""
    assert granted(budget(itl_p95_s=0.02), decoding(), seated(400, 0, 1, BULK)) == [1, 90]


def test_a_bulk_prompt_does_not_dribble_along_by_a_token_or_two():
    """The model would allow five; a device takes so few no faster than as many rows. A short rest is no prompt."""
    limit = {"itl_p95_s": 0.01155}
    assert granted(budget(**limit), decoding(), seated(400, 0, 1, BULK)) == [1, 0]
    assert granted(budget(**limit), decoding(), seated(400, 395, 1, BULK)) == [1, 5]


def test_bulk_is_not_added_to_an_urgent_prompts_step():
    """It would be added to a TTFT, whatever the objective for gaps."""
    assert granted(budget(itl_p95_s=0.5), decoding(), seated(50, 0), decoding(1, BULK)) == [1, 50, 0]


def test_bulk_alone_decodes_all_and_prefills_a_short_step():
    """Some 18 ms of prompt beside two rows."""
    sequences = [decoding(0, BULK), decoding(1, BULK), seated(400, 0, 2, BULK), seated(400, 0, 3, BULK)]
    assert granted(budget(max_step_s=0.03005), *sequences) == [1, 1, 180, 0]


def test_bulk_alone_prefills_the_smallest_chunk_in_any_case():
    """However long its decodes take, and only one chunk; a small one, for whoever arrives waits it out."""
    sequences = [*(decoding(slot, BULK) for slot in range(30)), seated(400, 0, 30, BULK), seated(400, 0, 31, BULK)]
    assert granted(budget(), *sequences) == [1] * 30 + [8, 0]


@pytest.mark.parametrize(("sequence", "share"), [(decoding(1, BULK), 1), (seated(400, 0, 1, BULK), 32)])
def test_a_lift_is_the_smallest_share_of_one(sequence, share):
    """In spite of the objective, and said so."""
    step = budget(cost=StepCost(0.010, 0.005, 0.001))
    assert granted(step, decoding(), sequence) == [1, 0]
    step.lift()
    assert granted(step, sequence, decoding(2, BULK)) == [share, 0]
    assert step.outlook(num_seated_bulk=2).is_lifted


def test_rows_are_bounded():
    """Bulk has no place in a step that is full of others, not even lifted."""
    step = budget(rows=2)
    assert granted(step, decoding(0), decoding(1), decoding(2, BULK)) == [1, 1, 0]
    step.lift()
    assert granted(step, decoding(2, BULK)) == [0]
    assert not step.can_seat(BULK)


def test_urgent_ones_cannot_come_after_bulk():
    """What bulk was given rests on what is urgent in the step."""
    step = budget()
    step.take(decoding(0, BULK))
    with pytest.raises(AssertionError, match="asks after bulk"):
        step.take(decoding(1))


def test_a_grants_row_starts_where_computing_stopped():
    """The last token's logits are wanted only when the row reaches it."""
    rows = []
    for tokens in (3, 9):
        step = budget(tokens)
        step.take(seated(10, 4, slot=3))
        rows += [grant.row() for grant in step.grants]
    assert [(row.slot, row.start, row.tokens, row.samples) for row in rows] == [
        (3, 4, (4, 5, 6), False),
        (3, 4, (4, 5, 6, 7, 8, 9), True),
    ]


SIZES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 59), st.sampled_from(list(Lane))), max_size=10)


@given(
    sizes=SIZES,
    tokens=st.integers(10, 90),
    cost=st.sampled_from([COST, StepCost(0.01, 0.01, 0.001), StepCost()]),
    itl_p95_s=st.sampled_from([None, 0.02, 0.05]),
)
@settings(max_examples=200, deadline=None)
def test_no_step_with_bulk_is_over_its_objective_and_no_budget_is_exceeded(sizes, tokens, cost, itl_p95_s):
    """Whoever asks for whatever: the model says so before the step, and says why."""
    step = budget(tokens, cost=cost, itl_p95_s=itl_p95_s)
    sequences = [seated(n, min(done, n - 1), slot, lane) for slot, (n, done, lane) in enumerate(sizes)]
    sequences.sort(key=lambda s: (s.request.lane is BULK, not s.is_decoding))
    granted(step, *sequences)
    counts = [grant.num_tokens for grant in step.grants]
    assert sum(counts) <= tokens
    assert all(1 <= grant.num_tokens <= grant.sequence.num_uncomputed for grant in step.grants)
    outlook = step.outlook(sum(s.request.lane is BULK for s in sequences))
    rows = sum(count == 1 for count in counts)
    assert outlook.modelled_s == pytest.approx(cost.seconds(rows, sum(counts) - rows))
    urgent = [s for s in sequences if s.request.lane is not BULK]
    if BULK in outlook.lanes and urgent:
        assert outlook.modelled_s <= outlook.objective_s
    in_step = {id(grant.sequence) for grant in step.grants}
    assert all(id(s) in in_step for s in urgent if s.is_decoding)
    assert bool(step.grants) == bool(sequences)
    if cost == StepCost():
        assert sum(counts) == min(tokens, sum(s.num_uncomputed for s in sequences)), "some of it was wasted"


def test_what_copies_take_is_taken_from_prompts():
    """Those seated after a copy was planned get less; what was granted before stays, and nobody gets less than none."""
    step = budget()
    granted(step, decoding())
    step.charge(0.02)
    assert granted(step, seated(300, 0)) == [190]
    step.charge(0.01)
    step.charge(0.0)
    assert granted(step, seated(300, 0)) == [0]
    assert step.outlook(0).modelled_s == pytest.approx(COST.seconds(1, 190) + 0.03)


def test_copies_take_from_bulk_too():
    """A bulk step with a copy in it is no longer than one without."""
    step = budget(max_step_s=0.03)
    step.charge(0.01)
    assert granted(step, seated(300, 0, lane=BULK)) == [100]


def test_copies_leave_an_urgent_prompt_alone_all_it_may_have():
    """Nobody decodes: the step is as long as its prompt needs."""
    step = budget()
    step.charge(0.5)
    assert granted(step, seated(300, 0)) == [300]


@given(num=st.integers(0, 8), max_tokens=st.integers(1, 10))
@settings(max_examples=40, deadline=None)
def test_decodes_taken_together_are_those_taken_one_by_one(num, max_tokens):
    """In their order, as far as there is room, and prompts get what they would."""
    sequences, prompt = [decoding(slot) for slot in range(num)], seated(50, 0, slot=9)
    together, apart = budget(max_tokens), budget(max_tokens)
    together.take_decodes(sequences)
    for sequence in sequences:
        apart.take(sequence)
    for step in (together, apart):
        step.take(prompt)
    assert together.grants == apart.grants
    assert repr(together) == repr(apart)


def test_a_row_has_its_block_table_only_where_it_is_asked_for():
    """Engines that page by slot do not look at it, and it grows with the sequence."""
    sequence = decoding()
    sequence.blocks = [4, 5]
    step = budget()
    step.take(sequence)
    (grant,) = step.grants
    assert (grant.row().blocks, grant.row(has_blocks=False).blocks) == ((4, 5), ())
