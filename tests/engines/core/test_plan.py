"""What a step says of itself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.plan import Row, StepPlan


@given(sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=6))
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_the_rows(sizes):
    """Decoding rows, with drafts or without, are rows to a cost model; prompts are prefill tokens."""
    rows = tuple(Row(slot, 0, (7,) * length, min(samples, length)) for slot, (length, samples) in enumerate(sizes))
    plan = StepPlan(1, (), rows)
    assert plan.counts() == (plan.num_decode_rows, plan.num_prefill_tokens)
    assert plan.num_decode_rows == sum(len(row.tokens) for row in rows if row.is_decode)
    assert sum(plan.counts()) == plan.num_tokens
