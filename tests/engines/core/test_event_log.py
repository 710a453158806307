"""What others hear of the cache is what is in it."""

from engines.core.blocks import extend_hashes
from engines.core.event_log import KvEventLog
from engines.core.events import AllBlocksCleared, BlockRemoved, BlockStored, Medium
from tests.engines.core.event_index import EventIndex

TOKENS = tuple(range(8))


def names(salt=""):
    hashes = []
    extend_hashes(hashes, TOKENS, 2, salt)
    return hashes


def gathering(**options):
    log = KvEventLog(2, **options)
    log.gather()
    assert log.take() == (AllBlocksCleared(),)
    return log


def stored(hashes, start, end, medium=Medium.DEVICE, salt=""):
    """The event of blocks [start, end)."""
    parent = hashes[start - 1] if start else None
    return BlockStored(tuple(hashes[start:end]), parent, TOKENS[2 * start : 2 * end], 2, salt, medium)


def test_media_have_the_names_that_routers_know():
    """vLLM's words on the wire: its routers work with our workers."""
    assert (Medium.DEVICE.value, Medium.HOST.value) == ("GPU", "CPU")


def test_blocks_of_one_step_come_as_one_event_with_their_parent():
    """A prompt of a thousand blocks is not a thousand messages."""
    log, hashes = gathering(), names("s")
    log.stored(Medium.DEVICE, hashes[:1], None, TOKENS[:2], "s")
    log.stored(Medium.DEVICE, hashes[1:4], hashes[0], TOKENS[2:8], "s")
    assert log.take() == (stored(hashes, 0, 1, salt="s"), stored(hashes, 1, 4, salt="s"))
    assert log.take() == ()


def test_only_the_first_copy_comes_and_only_the_last_goes():
    """Two sequences that computed the same at once hold it twice; nobody else needs to know."""
    log, hashes = gathering(), names()
    log.stored(Medium.DEVICE, hashes[:2], None, TOKENS[:4], "")
    log.stored(Medium.DEVICE, hashes, None, TOKENS, "")
    assert log.take() == (stored(hashes, 0, 2), stored(hashes, 2, 4))
    for digest in reversed(hashes):
        log.removed(Medium.DEVICE, digest)
    assert log.take() == (BlockRemoved((hashes[3], hashes[2]), Medium.DEVICE),)
    assert log.copies(Medium.DEVICE) == {hashes[0]: 1, hashes[1]: 1}


def test_a_gap_in_what_is_new_makes_two_events():
    """A stored event is one run of blocks, each behind the one before."""
    log, hashes = gathering(), names()
    log.stored(Medium.DEVICE, hashes[:2], None, TOKENS[:4], "")
    log.stored(Medium.DEVICE, hashes, None, TOKENS, "")
    log.removed(Medium.DEVICE, hashes[3])
    log.take()
    log.stored(Medium.DEVICE, hashes, None, TOKENS, "")
    assert log.take() == (stored(hashes, 3, 4),)


def test_order_is_kept_between_media_and_kinds():
    """Removals gather only until something else happens."""
    log, hashes = gathering(), names()
    log.stored(Medium.DEVICE, hashes, None, TOKENS, "")
    log.copied(hashes[:3], source=Medium.DEVICE, target=Medium.HOST)
    log.removed(Medium.DEVICE, hashes[3])
    log.removed(Medium.DEVICE, hashes[2])
    log.removed(Medium.HOST, hashes[2])
    log.stored(Medium.DEVICE, hashes[2:3], hashes[1], TOKENS[4:6], "")
    assert log.take() == (
        stored(hashes, 0, 4),
        stored(hashes, 0, 3, Medium.HOST),
        BlockRemoved((hashes[3], hashes[2]), Medium.DEVICE),
        BlockRemoved((hashes[2],), Medium.HOST),
        stored(hashes, 2, 3),
    )


def test_nothing_is_gathered_until_somebody_wants_to_know():
    """A worker without subscribers pays nothing; whoever comes later learns all."""
    log, hashes = KvEventLog(2), names()
    log.stored(Medium.DEVICE, hashes, None, TOKENS, "")
    log.removed(Medium.DEVICE, hashes[3])
    log.cleared()
    log.stored(Medium.DEVICE, hashes[:2], None, TOKENS[:4], "")
    assert log.take() == ()
    log.gather()
    assert EventIndex(log.take()).hashes(Medium.DEVICE) == set(hashes[:2])


def test_clearing_forgets_what_was_not_told_yet():
    """After a fault nothing before it matters."""
    log, hashes = gathering(), names()
    log.stored(Medium.DEVICE, hashes, None, TOKENS, "")
    log.removed(Medium.DEVICE, hashes[3])
    log.cleared()
    log.stored(Medium.DEVICE, hashes[:1], None, TOKENS[:2], "")
    assert log.take() == (AllBlocksCleared(), stored(hashes, 0, 1))


def test_events_that_nobody_takes_are_bounded_and_then_come_anew():
    """A subscriber that hangs must not fill the worker's memory, and must not miss anything after."""
    log, hashes = gathering(max_pending=3), names()
    log.stored(Medium.DEVICE, hashes[:3], None, TOKENS[:6], "")
    assert repr(log) == "<KvEventLog device=3 host=0 pending=3>"
    log.stored(Medium.DEVICE, hashes[3:], hashes[2], TOKENS[6:], "")
    log.removed(Medium.DEVICE, hashes[3])
    assert repr(log) == "<KvEventLog device=3 host=0 pending=0>"
    events = log.take()
    assert events[0] == AllBlocksCleared()
    assert EventIndex(events) == EventIndex(log.snapshot())
    log.removed(Medium.DEVICE, hashes[2])
    assert log.take() == (BlockRemoved((hashes[2],), Medium.DEVICE),)


def test_a_snapshot_has_parents_first_even_after_they_came_anew():
    """Whoever replays it must never meet a child without its parent."""
    log, hashes = gathering(), names()
    log.stored(Medium.DEVICE, hashes, None, TOKENS, "")
    for digest in reversed(hashes):
        log.removed(Medium.DEVICE, digest)
    log.stored(Medium.DEVICE, hashes, None, TOKENS, "")
    log.copied(hashes, source=Medium.DEVICE, target=Medium.HOST)
    index = EventIndex(log.snapshot())
    assert index.hashes(Medium.DEVICE) == index.hashes(Medium.HOST) == set(hashes)
