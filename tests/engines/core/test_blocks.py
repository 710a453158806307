"""Names of blocks, and who holds them."""

import hashlib
import struct

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engines.core.blocks import BlockPool, PoolStatistics, extend_hashes, hash_block
from engines.core.eviction import EvictionPolicy


def published(pool, *digests, is_urgent=True):
    """A held path of published blocks."""
    blocks = pool.allocate(len(digests), is_urgent=is_urgent).blocks
    for index, digest in enumerate(digests):
        pool.publish(blocks[index], digest, blocks[index - 1] if index else None)
    return blocks


def test_digest_is_sha256_of_parent_tokens_and_the_first_blocks_salt():
    """Events and other workers name blocks by this digest, so its bytes are a contract."""
    first = hash_block(b"", [1, 70000], "salt")
    assert first == hashlib.sha256(struct.pack("<II", 1, 70000) + b"salt").digest()
    assert hash_block(first, [3, 4], "salt") == hashlib.sha256(first + struct.pack("<II", 3, 4)).digest()


def test_only_full_blocks_get_names_and_only_once():
    """A partial tail has no name; tokens appended later extend the chain and never change it."""
    hashes = []
    extend_hashes(hashes, [1, 2, 3, 4, 5], 2, "s")
    before = list(hashes)
    extend_hashes(hashes, [1, 2, 3, 4, 5, 6], 2, "s")
    assert len(before) == 2
    assert hashes[:2] == before
    assert len(hashes) == 3


def test_salt_or_any_earlier_token_changes_all_names():
    """A hit means that everything before, and the tenant, are the same."""
    plain, salted, other = [], [], []
    extend_hashes(plain, [1, 2, 3, 4], 2, "")
    extend_hashes(salted, [1, 2, 3, 4], 2, "a")
    extend_hashes(other, [9, 2, 3, 4], 2, "")
    assert not set(plain) & set(salted)
    assert not set(plain) & set(other)


def test_released_blocks_can_be_hit_until_handed_out_again():
    """Eviction is lazy: the name goes when the block does."""
    pool = BlockPool(3)
    blocks = published(pool, b"a", b"b")
    pool.release(blocks)
    assert repr(pool) == "<BlockPool used=0 cached=2 blank=1>"
    assert pool.match([b"a", b"b", b"c"]) == blocks
    assert pool.allocate(2, is_urgent=True).evicted == (blocks[1],)
    assert pool.match([b"a", b"b"]) == blocks[:1]


def test_blocks_that_several_hold_are_freed_only_by_all_of_them():
    """What a newcomer would find is known before anybody gives up a seat for it."""
    pool = BlockPool(6)
    shared = published(pool, b"a", b"b")
    pool.share(shared, is_urgent=True)
    own = pool.allocate(2, is_urgent=True).blocks
    assert pool.num_freed_by([[*shared, *own]], ()) == 2
    assert pool.num_freed_by([[*shared, *own], shared], ()) == 4
    assert pool.num_freed_by([[*shared, *own], shared], shared[:1]) == 3
    pool.check_integrity([[*shared, *own], shared])


def test_tail_goes_first_and_blank_blocks_before_it():
    """The front of a prefix is what others share, so it lives longest."""
    pool = BlockPool(4)
    blocks = published(pool, b"a", b"b", b"c")
    pool.release(blocks)
    assert pool.allocate(4, is_urgent=True).evicted == (blocks[2], blocks[1], blocks[0])


def test_a_touched_prefix_outlives_younger_ones():
    """Least recently used means used, not made."""
    pool = BlockPool(2)
    old, young = published(pool, b"old"), published(pool, b"young")
    pool.release(old)
    pool.release(young)
    pool.share(pool.match([b"old"]), is_urgent=True)
    pool.release(old)
    assert pool.allocate(1, is_urgent=True).evicted == young


def test_what_only_bulk_has_held_goes_before_what_is_older_and_urgent():
    """A flood of bulk pushes out its own, not the conversations of people, however long they pause."""
    pool = BlockPool(6)
    warm, bulk = published(pool, b"w1", b"w2"), published(pool, b"b1", b"b2", is_urgent=False)
    pool.release(warm)
    pool.release(bulk)
    younger = published(pool, b"c", is_urgent=False)
    pool.release(younger)
    assert pool.allocate(6, is_urgent=False).evicted == (bulk[1], bulk[0], *younger, warm[1], warm[0])


def test_a_block_that_an_urgent_sequence_hits_is_urgent_from_then_on():
    """A system prompt first seen in a bulk job is worth keeping once people use it, even if bulk is its last holder."""
    pool = BlockPool(3)
    bulk = published(pool, b"a", b"b", is_urgent=False)
    pool.share(bulk[:1], is_urgent=True)
    pool.release(bulk[:1])
    pool.release(bulk)
    other = published(pool, b"c", is_urgent=False)
    pool.release(other)
    assert pool.urgent_blocks() == {bulk[0]}
    assert pool.allocate(3, is_urgent=False).evicted == (bulk[1], *other, bulk[0])


def test_with_slru_what_was_hit_again_outlives_what_came_later():
    """A scan of prompts that nobody asks twice costs those that are asked again nothing."""
    pool = BlockPool(8, EvictionPolicy.SLRU)
    popular, once = published(pool, b"a", b"b"), published(pool, b"c", b"d")
    pool.release(popular)
    pool.share(pool.match([b"a", b"b"]), is_urgent=True)
    pool.release(popular)
    pool.release(once)
    assert pool.next_to_go(8) == [once[1], once[0], popular[1], popular[0]]
    assert pool.allocate(8, is_urgent=True).evicted == (once[1], once[0], popular[1], popular[0])
    assert pool.num_blank == 0


def test_a_lost_name_is_told_once_children_first():
    """Events follow it: nobody may hear of a child whose parent is gone."""
    lost = []
    pool = BlockPool(3, on_lost=lost.append)
    pool.release(published(pool, b"a", b"b"))
    pool.allocate(2, is_urgent=True)
    assert lost == [b"b"]
    pool.allocate(1, is_urgent=True)
    assert lost == [b"b", b"a"]


def test_an_evicted_urgent_block_is_bulks_when_bulk_gets_it():
    """Whose a block was does not outlive what was in it."""
    pool = BlockPool(2)
    pool.release(published(pool, b"a", b"b"))
    pool.release(published(pool, b"c", is_urgent=False))
    assert len(pool.urgent_blocks()) == 1
    pool.check_integrity([])


def test_failed_allocation_changes_nothing():
    """A check that fails must leave the cache alone."""
    pool = BlockPool(2)
    pool.release(published(pool, b"a"))
    before = pool.statistics()
    assert pool.allocate(3, is_urgent=True) is None
    assert pool.statistics() == before == PoolStatistics(used=0, cached=1, blank=1, evictions=0)


def test_sharing_counts_each_holder():
    """A block is free only when its last holder has let go."""
    pool = BlockPool(1)
    blocks = published(pool, b"a")
    pool.share(blocks, is_urgent=True)
    pool.release(blocks)
    assert pool.num_free == 0
    assert pool.num_free_in(blocks) == 0
    pool.release(blocks)
    assert pool.num_free == pool.num_free_in(blocks) == 1


def test_double_free_and_double_publication_are_bugs():
    """Accounting that is off must be loud."""
    pool = BlockPool(2)
    blocks = published(pool, b"a")
    with pytest.raises(AssertionError, match="published twice"):
        pool.publish(blocks[0], b"a", None)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(blocks)
    with pytest.raises(AssertionError, match="without a holder"):
        pool.publish(blocks[0], b"x", None)


def test_of_two_blocks_with_one_name_the_held_one_is_hit():
    """Both were computed at once; taking the held one costs no free block."""
    pool = BlockPool(2)
    idle, held = published(pool, b"a"), published(pool, b"a")
    pool.release(idle)
    assert pool.match([b"a"]) == held
    pool.check_integrity([held])


def test_integrity_check_sees_a_leak():
    """The check that runs when idle must find what it is for."""
    pool = BlockPool(2)
    pool.allocate(1, is_urgent=True)
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])


class PoolMachine(RuleBasedStateMachine):
    """Sequences that match, grow, publish and leave, over few blocks and fewer names."""

    @initialize(num_blocks=st.integers(1, 10), policy=st.sampled_from(list(EvictionPolicy)))
    def make(self, num_blocks, policy):
        self.pool = BlockPool(num_blocks, policy)
        self.held: list[list[int]] = []
        self.urgent: set[int] = set()  # blocks that an urgent sequence has held since they were blank

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5), is_urgent=st.booleans())
    def open(self, tokens, is_urgent):
        names = []
        extend_hashes(names, tokens, 1, "")
        path = self.pool.match(names)
        missing = len(names) - len(path)
        fits = missing <= self.pool.num_free - self.pool.num_free_in(path)
        if fits:
            self.pool.share(path, is_urgent=is_urgent)
            blocks = [*path, *self.allocate(missing, is_urgent, path).blocks]
            if is_urgent:
                self.urgent.update(blocks)
            for index in range(len(path), len(names)):
                self.pool.publish(blocks[index], names[index], blocks[index - 1] if index else None)
            self.held.append(blocks)

    @rule(is_urgent=st.booleans())
    def grow(self, is_urgent):
        allocation = self.allocate(1, is_urgent)
        if allocation is not None:
            self.held.append(list(allocation.blocks))

    def allocate(self, num_blocks, is_urgent, path=()):
        """Allocate, and see that nothing urgent went while something of bulk's was left. `path`: just shared."""
        before = self.pool.cached_blocks() - {block for blocks in [*self.held, path] for block in blocks}
        allocation = self.pool.allocate(num_blocks, is_urgent=is_urgent)
        if allocation is None:
            return None
        kept = before - set(allocation.evicted)
        flags = [block in self.urgent for block in allocation.evicted]
        assert flags == sorted(flags)
        assert not any(flags) or kept <= self.urgent
        self.urgent.difference_update(allocation.blocks)
        if is_urgent:
            self.urgent.update(allocation.blocks)
        return allocation

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def is_sound(self):
        if hasattr(self, "pool"):
            self.pool.check_integrity(self.held)
            assert self.pool.urgent_blocks() == self.urgent & self.pool.cached_blocks()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
