"""Each message of a gateway counts once, in whatever order and however often it comes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.gossip_order import WINDOW, MessageOrder


def test_messages_in_order_all_count():
    """The usual case: nothing is late, nothing lost."""
    order = MessageOrder()
    assert [order.take(seq) for seq in range(5, 300)] == [(True, True)] * 295
    assert (order.num_late, order.num_lost) == (0, 0)
    assert repr(order) == "<MessageOrder up to 299, 0 lost, 0 late>"


def test_a_repeated_message_counts_once():
    """Also the one that was the newest."""
    order = MessageOrder()
    assert [order.take(seq) for seq in (7, 7, 8, 7, 8)] == [(True, True), (False, False), (True, True)] + [
        (False, False)
    ] * 2
    assert order.num_late == 3


def test_one_that_was_overtaken_counts_but_is_not_the_newest():
    """Its prompts are news, its loads are not."""
    order = MessageOrder()
    assert [order.take(seq) for seq in (1, 3, 2)] == [(True, True), (True, True), (True, False)]


def test_what_came_before_the_first_that_was_heard_is_of_no_concern():
    """Whoever listens late has lost nothing, and takes nothing from before."""
    order = MessageOrder()
    order.take(1000)
    assert order.take(999) == (False, False)
    order.take(1000 + 2 * WINDOW)
    assert order.num_lost == 2 * WINDOW - 1 - (WINDOW - 1), "those that nobody waits for any more"


def test_a_lost_message_is_told_once_nobody_waits_for_it():
    """One that is late by less may still come."""
    order = MessageOrder()
    order.take(1)
    order.take(3)
    assert order.num_lost == 0
    order.take(2 + WINDOW - 1)
    assert order.num_lost == 0
    assert order.take(2)[0]
    order.take(1 + 3 * WINDOW)
    lost = order.num_lost
    assert not order.take(4)[0]
    assert order.num_lost == lost > 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=80))
def test_no_message_ever_counts_twice(seqs):
    """Whatever the order: so an answer teaches once."""
    order, taken, newest = MessageOrder(), set(), 0
    for seq in seqs:
        counts, is_newest = order.take(seq)
        assert not (counts and seq in taken)
        assert is_newest == (seq > newest if newest else True)
        newest = max(newest, seq)
        taken.add(seq)
    assert order.num_lost >= 0
