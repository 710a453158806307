"""How a step's tokens are shared."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.budget import share_budget
from engines.core.sequence import GenerateRequest, Sequence


def seated(num_tokens, num_computed, slot=0):
    made = Sequence(GenerateRequest("r", (1,) * num_tokens), 99, 0, (0, 0, 0.0, slot), tokens=list(range(num_tokens)))
    made.num_computed, made.slot = num_computed, slot
    return made


def granted(sequences, budget):
    return [(grant.sequence.slot, grant.num_tokens) for grant in share_budget(sequences, budget)]


def test_decoding_comes_before_prefill_remainders():
    """Decode never starves, however long the prompts before it in order are."""
    assert granted([seated(50, 0, 1), seated(9, 8, 2), seated(30, 0, 3)], 60) == [(2, 1), (1, 50), (3, 9)]


def test_what_is_left_out_waits():
    """A prefill without budget has no row at all."""
    assert granted([seated(50, 0, 1), seated(50, 0, 2)], 50) == [(1, 50)]


def test_more_decoding_than_budget_is_a_bug():
    """Settings forbid it."""
    with pytest.raises(AssertionError, match="more decoding"):
        share_budget([seated(2, 1), seated(2, 1)], 1)


def test_a_grants_row_starts_where_computing_stopped():
    """The last token's logits are wanted only when the row reaches it."""
    sequence = seated(10, 4, slot=3)
    rows = [grant.row() for budget in (3, 9) for grant in share_budget([sequence], budget)]
    assert [(row.slot, row.start, row.tokens, row.samples) for row in rows] == [
        (3, 4, (4, 5, 6), False),
        (3, 4, (4, 5, 6, 7, 8, 9), True),
    ]


@given(sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 39)), max_size=8), spare=st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_budget_is_never_exceeded_and_never_wasted(sizes, spare):
    """All of it is used while anybody has uncomputed tokens."""
    sequences = [seated(total, min(done, total - 1), slot) for slot, (total, done) in enumerate(sizes)]
    budget = len(sequences) + spare
    used = sum(num for _, num in granted(sequences, budget))
    assert used == min(budget, sum(sequence.num_uncomputed for sequence in sequences))
