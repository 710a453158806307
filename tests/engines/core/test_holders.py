"""Slots that hold cached blocks, and what the device is told about them."""

import pytest

from engines.core.eviction import EvictionPolicy
from engines.core.holders import SlotHolders
from engines.core.plan import Fork, Truncate


def opened(holders, path=(), new=(), is_urgent=True):
    """A slot with a hit and newly published blocks; returns (slot, dropped)."""
    result = holders.open(path, is_urgent=is_urgent)
    for block in new:
        holders.extend(result.slot, block)
    return result.slot, result.dropped


def test_a_hit_is_forked_from_a_running_holder():
    """A shared prefix costs no computation while its first owner still runs."""
    holders = SlotHolders(2, 4)
    first, _ = opened(holders, new=(10, 11))
    second, _ = opened(holders, path=(10,))
    assert holders.take_operations() == (Fork(first, second, 4),)
    holders.check_integrity([first, second], {10, 11})


def test_a_finished_slot_keeps_its_full_blocks_only():
    """The partial tail is cut: it belongs to no cached block."""
    holders = SlotHolders(2, 4)
    slot, _ = opened(holders, new=(10, 11))
    holders.retain(slot)
    assert holders.take_operations() == (Truncate(slot, 8),)
    assert repr(holders) == "<SlotHolders active=0 retained=1 free=1>"


def test_a_finished_slot_without_anything_of_its_own_is_freed():
    """What another slot holds too needs no second holder."""
    holders = SlotHolders(2, 4)
    first, _ = opened(holders, new=(10,))
    second, _ = opened(holders, path=(10,))
    holders.retain(second)
    assert Truncate(second, 0) in holders.take_operations()
    assert repr(holders) == "<SlotHolders active=1 retained=0 free=1>"
    holders.check_integrity([first], {10})


def test_the_next_turn_takes_over_the_slot_that_holds_just_its_prefix():
    """A conversation stays in its slot: no fork, no second copy of the path."""
    holders = SlotHolders(2, 4)
    slot, _ = opened(holders, new=(10, 11))
    holders.retain(slot)
    holders.take_operations()
    assert holders.open((10, 11), is_urgent=True).slot == slot
    assert holders.take_operations() == ()


def test_eviction_truncates_every_retained_holder_and_frees_the_empty():
    """The pool and the cells must lose a block together."""
    holders = SlotHolders(3, 4)
    first, _ = opened(holders, new=(10, 11))
    second, _ = opened(holders, path=(10,), new=(12,))
    holders.retain(first)
    holders.retain(second)
    holders.take_operations()
    assert holders.evict(11) == ()
    assert holders.take_operations() == (Truncate(first, 0),)  # block 10 is with the second too
    assert holders.evict(12) == ()
    assert holders.evict(10) == ()
    assert holders.take_operations() == (Truncate(second, 0),)
    holders.check_integrity([], set())


def test_eviction_in_mid_path_drops_what_lies_behind():
    """Cells behind a hole are of no use, so their blocks are reported to be forgotten."""
    holders = SlotHolders(1, 4)
    slot, _ = opened(holders, new=(10, 11, 12))
    holders.retain(slot)
    assert holders.evict(11) == (12,)
    assert holders.take_operations() == (Truncate(slot, 4),)


def test_without_a_free_slot_the_least_recently_used_gives_up():
    """Retained slots are a cache, seats are a promise."""
    holders = SlotHolders(2, 4)
    slots = [opened(holders, new=(block,))[0] for block in (10, 11)]
    for slot in slots:
        holders.retain(slot)
    slot, dropped = opened(holders)
    assert (slot, dropped) == (slots[0], (10,))


def test_a_slot_that_only_bulk_has_used_gives_up_before_an_older_urgent_one():
    """Where slots are few a flood of bulk must not cost people their warm prefixes."""
    holders = SlotHolders(2, 4)
    warm, _ = opened(holders, new=(10,))
    bulk, _ = opened(holders, new=(11,), is_urgent=False)
    holders.retain(warm)
    holders.retain(bulk)
    assert opened(holders, is_urgent=False) == (bulk, (11,))
    assert opened(holders) == (warm, (10,))


def test_a_free_slot_has_forgotten_whose_it_was():
    """Else every slot would count as urgent after a while."""
    holders = SlotHolders(2, 4)
    first, _ = opened(holders)
    holders.retain(first)
    bulk, _ = opened(holders, new=(10,), is_urgent=False)
    warm, _ = opened(holders, new=(11,))
    assert bulk == first
    holders.retain(warm)
    holders.retain(bulk)
    assert opened(holders) == (bulk, (10,))


def test_a_bulk_slot_that_alone_holds_what_people_had_is_urgent():
    """The urgent slot is freed as redundant; what it stood for must not go as bulk's."""
    holders = SlotHolders(3, 4)
    warm, _ = opened(holders, new=(10,))
    heir, _ = opened(holders, path=(10,), new=(11,), is_urgent=False)
    holders.retain(warm)
    other, _ = opened(holders, new=(12,), is_urgent=False)
    holders.retain(heir)
    holders.retain(other)
    last, _ = opened(holders)
    assert opened(holders) == (other, (12,))
    holders.check_integrity([last, other], {10, 11}, {10})


def test_with_slru_a_slot_that_was_hit_again_outlives_younger_ones():
    """The policy of blocks is that of slots."""
    left = {}
    for policy in EvictionPolicy:
        holders = SlotHolders(6, 4)
        holders.policy = policy
        holders.clear()
        slots = [opened(holders, new=(number,))[0] for number in range(6)]
        holders.retain(slots[0])
        assert opened(holders, path=(0,))[0] == slots[0]
        for slot in slots:
            holders.retain(slot)
        assert holders.next_to_go() == opened(holders)[0]
        left[policy] = holders.retained()[-1] == slots[0]
    assert left == {EvictionPolicy.LRU: False, EvictionPolicy.SLRU: True}


def test_what_would_give_itself_up_is_known_before():
    """It is saved first, if that is worth it; the rules are those of opening."""
    holders = SlotHolders(2, 4)
    first, second = (opened(holders, new=(block, block + 1))[0] for block in (10, 20))
    assert holders.next_to_go() is None
    holders.retain(first)
    holders.retain(second)
    assert holders.retained() == (first, second)
    assert holders.next_to_go((10, 11)) is None, "it is taken over as it is"
    assert holders.next_to_go((10,)) == second, "the source of a fork goes last of all"
    assert holders.next_to_go() == first
    assert (holders.path_of(first), holders.slot_with(20), holders.num_free) == ((10, 11), second, 0)
    assert opened(holders)[0] == first
    assert (holders.path_of(second), holders.slot_with(21)) == ((20, 21), second)


def test_a_forked_source_counts_as_used():
    """A system prompt that is hit again and again must not be the first to go."""
    holders = SlotHolders(3, 4)
    busy, _ = opened(holders, new=(10, 11))
    idle, _ = opened(holders, new=(12,))
    holders.retain(busy)
    holders.retain(idle)
    opened(holders, path=(10,))
    assert opened(holders)[0] == idle


def test_the_source_itself_is_cut_when_it_is_the_only_slot():
    """A hit must never be lost to the hunt for a slot to put it in."""
    holders = SlotHolders(1, 4)
    slot, _ = opened(holders, new=(10, 11))
    holders.retain(slot)
    holders.take_operations()
    assert opened(holders, path=(10,)) == (slot, (11,))
    assert holders.take_operations() == (Truncate(slot, 4),)
    holders.check_integrity([slot], {10})


def test_the_source_of_a_fork_is_not_sacrificed_for_its_target():
    """Even if it is the least recently used."""
    holders = SlotHolders(2, 4)
    source, _ = opened(holders, new=(10, 11))
    other, _ = opened(holders, new=(12,))
    holders.retain(source)
    holders.retain(other)
    holders.take_operations()
    assert opened(holders, path=(10,)) == (other, (12,))
    assert holders.take_operations() == (Truncate(other, 0), Fork(source, other, 4))


def test_more_sequences_than_slots_is_a_bug():
    """The scheduler has no more seats than there are slots."""
    holders = SlotHolders(1, 4)
    holders.open((), is_urgent=True)
    with pytest.raises(AssertionError, match="more sequences than slots"):
        holders.open((), is_urgent=True)


def test_clear_frees_every_slot_and_forgets_operations():
    """After a fault the device is empty and told nothing of before."""
    holders = SlotHolders(2, 4)
    holders.retain(opened(holders, new=(10,))[0])
    holders.clear()
    assert holders.take_operations() == ()
    assert repr(holders) == "<SlotHolders active=0 retained=0 free=2>"
