"""The vocabulary of KV events: names of blocks, salts as digests, engine hashes folded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.kv_events import (
    HASH_MASK,
    AllCleared,
    BlocksRemoved,
    KvBatch,
    TokenChain,
    fold,
    names,
    pack,
    root,
    salt_digest,
)

TOKENS = st.lists(st.integers(0, 2**31), max_size=80)


@settings(deadline=None, max_examples=60)
@given(TOKENS, TOKENS, st.integers(1, 8))
def test_prompts_share_exactly_the_names_of_the_blocks_they_share(left, right, size):
    """A name stands for all tokens up to its block: the first blocks agree as long as the tokens do."""
    first, second = names(1, pack(left), size), names(1, pack(right), size)
    shared = next((place for place, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    num_shared = (min(len(left), len(right)) if shared is None else shared) // size
    assert first[:num_shared] == second[:num_shared]
    assert not set(first[num_shared:]) & set(second[num_shared:])


@settings(deadline=None, max_examples=60)
@given(TOKENS, st.integers(1, 8))
def test_a_chain_can_be_continued_from_any_block(tokens, size):
    """Names behind a parent are those of the whole prompt."""
    whole = names(5, pack(tokens), size)
    for cut in range(1, len(whole)):
        assert names(whole[cut - 1], pack(tokens[cut * size :]), size) == whole[cut:]


def test_salt_adapter_and_block_size_each_start_another_chain():
    """Equal prompts of two tenants share no name."""
    starts = {root("", "", 16), root("salt/a", "", 16), root("salt/b", "", 16), root("", "a", 16), root("", "", 32)}
    assert len(starts) == 5
    assert root("b", "a", 16) != root("ab", "", 16)


def test_names_fit_60_bits():
    """Two digits of a Python int: what keeps millions of them small."""
    assert all(0 <= name <= HASH_MASK for name in names(root("s", "", 4), pack(range(400)), 4))


def test_what_besides_tokens_a_block_stands_for_changes_its_name_and_all_behind_it():
    """The placeholder tokens of two pictures are the same; their blocks are not."""
    packed = pack(range(48))
    plain = names(1, packed, 16)
    pictured = names(1, packed, 16, (b"", b"a picture", b""))
    assert pictured[0] == plain[0]
    assert not set(pictured[1:]) & set(plain)


def test_the_block_with_the_last_token_is_not_asked_for():
    """An engine always computes the last token: 32 tokens hit one block of 16, 33 hit two."""
    assert len(TokenChain(pack(range(32))).names(16)) == 1
    assert len(TokenChain(pack(range(33))).names(16)) == 2
    assert TokenChain(b"").names(16) == []


def test_names_of_a_chain_are_made_once_a_block_size():
    """A burst of look-ups of one request hashes once."""
    chain = TokenChain(pack(range(100)), salt="salt/x")
    assert chain.names(16) is chain.names(16)
    assert chain.names(16) != chain.names(8)
    assert chain.names(16)[0] == names(root("salt/x", "", 16), pack(range(16)), 16)[0]


def test_a_hash_folds_the_same_as_bytes_and_as_number():
    """vLLM's number is the last 8 bytes of its bytes, and SGLang's numbers are signed."""
    digest = bytes(range(32))
    assert fold(digest) == fold(int.from_bytes(digest[-8:], "big"))
    assert fold(-1) == fold(2**64 - 1) == HASH_MASK
    assert fold(b"") == 0


def test_a_digest_does_not_show_its_salt_and_cannot_be_taken_for_one():
    """The stream may be read by whoever routes; vLLM refuses slashes in salts, so no salt looks like a digest."""
    digest = salt_digest("a tenant's secret")
    assert "secret" not in digest
    assert digest.startswith("salt/")
    assert digest == salt_digest("a tenant's secret") != salt_digest("another")
    assert salt_digest("\ud800").startswith("salt/")


@pytest.mark.parametrize("wrong", [[-1], [2**32], ["a"], [None], [1.5]])
def test_what_is_no_token_id_is_not_packed(wrong):
    """`pack` raises, as it says."""
    with pytest.raises((OverflowError, TypeError)):
        pack(wrong)


def test_only_a_batch_that_begins_by_clearing_is_a_snapshot():
    """What came before such a batch does not matter."""
    assert KvBatch(3, (AllCleared(), BlocksRemoved((1,)))).is_snapshot
    assert not KvBatch(3, (BlocksRemoved((1,)), AllCleared())).is_snapshot
    assert not KvBatch(3, ()).is_snapshot
