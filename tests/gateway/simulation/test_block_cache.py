"""KV memory as names: what can be hit, who holds it, what goes first."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.simulation.block_cache import FRONT, GONE, BlockCache


def filled(*paths, num_blocks=8):
    """A cache that has computed these paths, one after the other, and holds none."""
    cache = BlockCache(num_blocks)
    for path in paths:
        compute(cache, path)
    return cache


def compute(cache, path):
    """One sequence that computes a path and lets go of it."""
    depth = cache.depth(path)
    cache.share(path[:depth])
    assert cache.allocate(len(path) - depth)
    for index in range(depth, len(path)):
        assert cache.publish(path[index], path[index - 1] if index else FRONT)
    cache.release(path, 0)


def test_what_was_let_go_of_can_be_hit_up_to_its_first_gap():
    """A hit is a leading part."""
    cache = filled([1, 2, 3])
    assert cache.depth([1, 2, 9, 3]) == 2
    assert cache.depth([9, 1]) == 0
    assert cache.num_free == 8


def test_the_least_recently_held_tail_is_evicted_first():
    """Heads outlive tails, so what is cached has no holes."""
    cache = filled([1, 2, 3], [1, 7])
    assert cache.allocate(5)
    assert (cache.depth([1, 2, 3]), cache.depth([1, 7])) == (2, 2)
    assert cache.evictions == 1


def test_what_is_held_is_not_evicted():
    """Its holder computes on it."""
    cache = filled([1, 2])
    cache.share([1, 2])
    assert not cache.allocate(7)
    assert cache.num_free == 6
    assert cache.allocate(6)
    assert cache.depth([1, 2]) == 2


def test_a_block_computed_twice_has_its_name_once():
    """The second stays nameless and is blank afterwards."""
    cache = filled([1])
    assert cache.allocate(1)
    assert not cache.publish(1, FRONT)
    cache.release([], 1)
    assert cache.num_free == 8


def test_changes_are_told_once_to_who_listens():
    """They become KV events."""
    cache = filled(num_blocks=2)
    assert cache.take_changes() == ()
    cache.changes = []
    compute(cache, [1, 2])
    compute(cache, [5])
    assert list(cache.take_changes()) == [(1, FRONT), (2, 1), (2, GONE), (5, FRONT)]
    assert cache.take_changes() == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=30))
def test_all_blocks_are_accounted_for(prompts):
    """Whatever is computed in whatever order."""
    cache = BlockCache(6)
    for prompt in prompts:
        path = [hash(tuple(prompt[: index + 1])) & 0xFFFF for index in range(len(prompt))]
        compute(cache, list(dict.fromkeys(path)))
        cache.check_integrity(0)
        assert len(cache.names) <= 6
