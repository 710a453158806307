"""What is kept in host memory, and what goes for it."""

import pytest

from engines.core.blocks import extend_hashes
from engines.core.event_log import KvEventLog
from engines.core.events import Medium
from engines.core.eviction import EvictionPolicy
from engines.core.host_tier import HostSettings, HostStatistics, HostTier
from engines.core.plan import Discard, Restore, Save


def tier(max_tokens=16, policy=EvictionPolicy.LRU):
    return HostTier(HostSettings(max_tokens=max_tokens, min_tokens=2), 2, KvEventLog(2), policy)


def path(host, *tokens, salt=""):
    """Names of a prefix that can be hit on the device."""
    hashes = []
    extend_hashes(hashes, tokens, 2, salt)
    host._log.stored(Medium.DEVICE, hashes, None, tokens, salt)
    return hashes


def test_a_saved_path_is_found_by_any_beginning():
    """The depth counts blocks of one copy from the very front."""
    host = tier()
    hashes = path(host, 1, 2, 3, 4, 5, 6)
    assert host.save(hashes, 7, is_urgent=True) == (Save(7, 1, 6),)
    assert [host.depth(hashes[:2]), host.depth([*hashes, b"more"]), host.depth([b"other"]), host.depth([])] == [
        2,
        3,
        0,
        0,
    ]
    saved = host.shortest_with(hashes[1])
    assert host.restore(saved, 2, 3, is_urgent=True) == Restore(1, 3, 4)
    assert host.statistics() == HostStatistics(6, 16, 1, saved_tokens=6, restored_tokens=4)
    host.check_integrity()


def test_a_beginning_of_what_is_saved_goes_and_its_room_counts():
    """The next turn of a conversation replaces the one before; its copy would be of no use."""
    host = tier(8)
    hashes = path(host, *range(8))
    host.save(hashes[:3], 0, is_urgent=True)
    assert host.save(hashes, 0, is_urgent=True) == (Discard(1), Save(0, 2, 8))
    assert host.statistics().used_tokens == 8
    host.check_integrity()


def test_memory_is_bounded_and_the_least_recently_used_goes():
    """A restored path is used, so it outlives an untouched one."""
    host = tier(8)
    first, second, third = (path(host, number, 0, number, 1) for number in (1, 2, 3))
    host.save(first, 0, is_urgent=True)
    host.save(second, 0, is_urgent=True)
    host.restore(host.shortest_with(first[1]), 2, 0, is_urgent=True)
    assert host.save(third, 0, is_urgent=True) == (Discard(2), Save(0, 3, 4))
    assert [host.depth(each) for each in (first, second, third)] == [2, 0, 2]
    assert host.statistics().discarded_tokens == 4
    host.check_integrity()


def test_bulk_never_pushes_out_what_people_have():
    """It takes what is free and its own; urgent ones take bulk's first, however old their own is."""
    host = tier(8)
    old, bulk, newer, more = (path(host, number, 0, number, 1) for number in (1, 2, 3, 4))
    host.save(old, 0, is_urgent=True)
    host.save(bulk, 0, is_urgent=False)
    assert host.save(newer, 0, is_urgent=True) == (Discard(2), Save(0, 3, 4))
    assert host.save(more, 0, is_urgent=False) == ()
    assert repr(host) == "<HostTier paths=2 blocks=4 of 4>"
    host.check_integrity()


def test_bulks_path_that_an_urgent_one_uses_is_urgent():
    """Whose it is is what matters when it is to go."""
    host = tier(4)
    bulk, other = path(host, 1, 1, 1, 1), path(host, 2, 2, 2, 2)
    host.save(bulk, 0, is_urgent=False)
    host.restore(host.shortest_with(bulk[1]), 2, 0, is_urgent=True)
    assert host.save(other, 0, is_urgent=False) == ()


def test_what_is_about_to_be_restored_is_spared():
    """Making room for a sequence must not cost it the copy that it is seated for."""
    host = tier(4)
    held, other = path(host, 1, 1, 1, 1), path(host, 2, 2, 2, 2)
    host.save(held, 0, is_urgent=True)
    assert host.save(other, 0, is_urgent=True, kept=1) == ()
    longer = path(host, 1, 1, 1, 1, 5, 5)
    assert host.save(longer, 0, is_urgent=True, kept=1) == ()
    assert host.depth(held) == 2


def test_a_path_larger_than_all_memory_is_not_saved():
    """And nothing goes for it in vain."""
    host = tier(4)
    small = path(host, 1, 1)
    host.save(small, 0, is_urgent=True)
    assert host.save(path(host, *range(10, 16)), 0, is_urgent=True) == ()
    assert host.depth(small) == 1


def test_salts_never_meet():
    """Equal tokens of two tenants are two paths."""
    host = tier()
    host.save(path(host, 1, 2, salt="a"), 0, is_urgent=True)
    assert host.depth(path(host, 1, 2, salt="b")) == 0


def test_of_several_copies_the_shortest_is_restored():
    """It is copied whole; what is cut off again was copied in vain."""
    host = tier()
    long, short = path(host, 1, 1, 2, 2, 3, 3), path(host, 1, 1, 4, 4)
    host.save(long, 0, is_urgent=True)
    host.save(short, 0, is_urgent=True)
    assert host.shortest_with(long[0]).handle == 2


def test_handles_are_never_used_again():
    """Not even after a fault: a late discard of an old one must not hit a new one."""
    host = tier()
    hashes = path(host, 1, 2)
    host.save(hashes, 0, is_urgent=True)
    host.clear()
    host._log.cleared()
    assert host.save(path(host, 1, 2), 0, is_urgent=True) == (Save(0, 2, 2),)


def test_with_slru_a_path_that_came_back_outlives_younger_ones():
    """The policy is the pool's."""
    kept = {}
    for policy in EvictionPolicy:
        host = tier(24, policy)
        paths = [path(host, number, 0, number, 1) for number in range(8)]
        for number, hashes in enumerate(paths):
            host.save(hashes, 0, is_urgent=True)
            if number == 1:
                host.restore(host.shortest_with(paths[0][1]), 2, 0, is_urgent=True)
        kept[policy] = [number for number, hashes in enumerate(paths) if host.depth(hashes)]
    assert kept == {EvictionPolicy.LRU: [2, 3, 4, 5, 6, 7], EvictionPolicy.SLRU: [0, 3, 4, 5, 6, 7]}


def test_paged_engines_are_told_the_blocks():
    """They have no slots to copy from."""
    host = tier()
    hashes = path(host, 1, 2, 3, 4)
    assert host.save(hashes, 0, (5, 9), is_urgent=True) == (Save(0, 1, 4, (5, 9)),)
    assert host.restore(host.shortest_with(hashes[0]), 1, 2, (4,), is_urgent=True) == Restore(1, 2, 2, (4,))


@pytest.mark.parametrize("fields", [{"max_tokens": -1}, {"min_tokens": 0}, {"save_s_per_token": -1.0}])
def test_settings_that_make_no_sense_are_refused(fields):
    """At start, by name."""
    with pytest.raises(ValueError, match="host memory"):
        HostSettings(**fields)


def test_an_operators_bytes_are_so_many_tokens():
    """Half a token is none, and a runner that cannot copy keeps nothing."""
    assert HostSettings.max_tokens_in(64 << 20, 23_040) == 2912
    assert HostSettings.max_tokens_in(64 << 20, 0) == 0


def test_without_room_it_is_off():
    """The default: no copies, no cost."""
    assert not tier(0).is_on
    assert not tier(1).is_on
    assert tier(2).is_on
