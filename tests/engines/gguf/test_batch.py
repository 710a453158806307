"""Writing a step into llama.cpp's batch."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.plan import Row
from engines.gguf.batch import StepBatch
from engines.gguf.library import open_library

_ROWS = st.lists(
    st.builds(
        Row,
        slot=st.integers(0, 255),
        start=st.integers(0, 8000),
        tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8).map(tuple),
        num_samples=st.integers(0, 1),
    ).flatmap(
        lambda row: st.integers(0, len(row.tokens)).map(lambda num_samples: replace(row, num_samples=num_samples))
    ),
    min_size=1,
    max_size=8,
)


@given(steps=st.lists(_ROWS, min_size=1, max_size=3))
@settings(max_examples=50, deadline=None)
def test_the_struct_reads_back_as_the_rows(steps):
    """What C sees is each token at its position in its slot, and nothing of the step before."""
    batch = StepBatch(open_library(), 64)
    for rows in steps:
        num_samples = batch.fill(rows)
        expected = [
            (token, row.start + at, row.slot, at >= len(row.tokens) - row.num_samples)
            for row in rows
            for at, token in enumerate(row.tokens)
        ]
        c = batch.struct
        seen = [(c.token[i], c.pos[i], c.seq_id[i][0], bool(c.logits[i])) for i in range(c.n_tokens)]
        assert seen == expected
        assert all(c.n_seq_id[i] == 1 for i in range(c.n_tokens))
        assert num_samples == sum(row.num_samples for row in rows)
