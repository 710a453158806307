"""The published trace format."""

import pytest

from gateway.simulation.mooncake import TraceError, read

LINES = [
    b'{"timestamp": 1000, "input_length": 1100, "output_length": 40, "hash_ids": [0, 1, 2]}',
    b"",
    b'{"timestamp": 3000, "input_length": 1536, "output_length": 0, "hash_ids": [0, 1, 3]}',
]


def test_blocks_become_passages_that_share_what_the_trace_shares():
    """The last block holds the rest of the length; an answer has at least one token."""
    first, second = read(LINES)
    assert [(p.content, p.num_tokens) for p in first.prompt] == [(0, 512), (1, 512), (2, 76)]
    assert first.prompt[:2] == second.prompt[:2]
    assert (first.arrival_s, second.arrival_s) == (1.0, 3.0)
    assert (first.answer.num_tokens, second.answer.num_tokens) == (40, 1)
    assert first.prompt_tokens == 1100
    assert first.id != second.id


def test_speed_and_scale():
    """A laptop's model takes a sixteenth of the length."""
    first, second = read(LINES, speed=2.0, scale=16)
    assert second.arrival_s == 1.5
    assert [passage.num_tokens for passage in first.prompt] == [32, 32, 4]
    assert first.answer.num_tokens == 2


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"timestamp": 1}',
        b'{"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": [1]}',
        b'{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": []}',
        b'{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [-1]}',
        b'{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
    ],
)
def test_a_bad_line_is_named(line):
    """A trace of 12,000 lines is not searched by hand."""
    with pytest.raises(TraceError, match="line 2"):
        list(read([LINES[0], line]))
