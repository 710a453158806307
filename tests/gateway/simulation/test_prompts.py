"""Tokens and routing keys are of the same text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.prefix import FINE_BLOCK_BYTES, FINE_BYTES
from gateway.simulation.prompts import BYTES_PER_TOKEN, Passage, key_of, num_tokens, tokens_of

PROMPTS = st.lists(st.builds(Passage, st.integers(0, 3), st.integers(1, 700)), min_size=1, max_size=4).map(tuple)


def shared(left, right):
    """How many leading items two sequences share."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


@settings(deadline=None, max_examples=150)
@given(PROMPTS, PROMPTS)
def test_equal_borders_mean_equal_tokens(left, right):
    """A hit that the router predicts must be one that an engine can make."""
    keys = key_of(left, "m", "s"), key_of(right, "m", "s")
    num_borders = shared(keys[0].hashes, keys[1].hashes)
    predicted = keys[0].sizes[num_borders - 1] // BYTES_PER_TOKEN if num_borders else 0
    tokens = tokens_of(left), tokens_of(right)
    assert shared(*tokens) >= predicted
    common = shared(left, right)
    in_common = num_tokens(left[:common])
    assert predicted >= in_common, "equal passages are seen by both"
    assert len(tokens[0]) == num_tokens(left) == keys[0].total_bytes // BYTES_PER_TOKEN


def test_a_longer_passage_goes_on_where_the_shorter_one_ends():
    """A message that was cut is a prefix of the whole one, for the engine and, by blocks, for the router."""
    short, long = (Passage(9, 600),), (Passage(9, 1000),)
    assert tokens_of(long)[:600] == tokens_of(short)
    keys = key_of(short, "m", "s"), key_of(long, "m", "s")
    assert shared(keys[0].hashes, keys[1].hashes) == FINE_BYTES // FINE_BLOCK_BYTES, "2,400 bytes: no whole block more"


def test_tokens_are_small_and_differ_by_content():
    """Small ints are shared by Python: a million tokens are 8 MB, not 36."""
    tokens = tokens_of((Passage(1, 512),))
    assert max(tokens) < 256
    assert shared(tokens, tokens_of((Passage(2, 512),))) < 8


def test_another_tenant_shares_no_border():
    """The salt enters the key as in life."""
    prompt = (Passage(1, 512),)
    assert shared(key_of(prompt, "m", "alder").hashes, key_of(prompt, "m", "birch").hashes) == 0
