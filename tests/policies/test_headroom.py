"""Who must leave seats free, and for whom."""

import pytest

from policies.entry import Entry, Picked
from policies.flow import Flow
from policies.headroom import Headroom, HeadroomSettings
from policies.lane import Lane
from policies.offer import Offer

SETTINGS = HeadroomSettings(share=0.25, backlog=2, about_s=10.0)


def flow_of(tenant, *, waiting=0, in_flight=0, lane=Lane.INTERACTIVE, weight=1.0):
    """A flow and its first entry."""
    flow = Flow(tenant, weight, 0.0)
    entries = [Entry(tenant, lane) for _ in range(max(1, waiting))]
    for entry in entries[: waiting or 1]:
        flow.push(entry)
    if not waiting:
        flow.pop(entries[0])
    flow.in_flight = in_flight
    return flow, entries[0]


def dispatched(headroom, flow, now, lane=Lane.INTERACTIVE):
    """One of the flow's requests got a turn."""
    headroom.dispatched(Picked(Entry(flow.tenant, lane), Offer(0.0, 1), flow, 1.0, 0.0), now)


def test_a_flood_leaves_room_while_somebody_without_a_backlog_is_about():
    """From the other's turn on, for as long as it is thought to be about."""
    headroom = Headroom(SETTINGS)
    flood, entry = flow_of("alder", waiting=9, in_flight=5)
    guest, _ = flow_of("birch", in_flight=1)
    assert not headroom.must_leave(entry, 0.0), "nobody else was seen"
    dispatched(headroom, guest, 1.0)
    dispatched(headroom, flood, 2.0)
    assert headroom.must_leave(entry, 10.9)
    assert not headroom.must_leave(entry, 11.0)


def test_nobody_leaves_room_for_another_flood_or_for_itself():
    """Two floods divide all seats by the queue's order alone."""
    headroom = Headroom(SETTINGS)
    flood, entry = flow_of("alder", waiting=9, in_flight=5)
    other, _ = flow_of("birch", waiting=3, in_flight=1)
    dispatched(headroom, other, 0.0)
    dispatched(headroom, flow_of("alder", in_flight=1)[0], 0.0)
    assert not headroom.must_leave(entry, 1.0)
    assert flood.in_flight == 5


def test_a_flood_may_hold_as_much_by_weight_as_those_it_leaves_room_for():
    """So many small tenants cannot keep a large one out for ever."""
    headroom = Headroom(SETTINGS)
    guest, _ = flow_of("birch", in_flight=2)
    dispatched(headroom, guest, 0.0)
    assert not headroom.must_leave(flow_of("alder", waiting=9, in_flight=4, weight=2.0)[1], 1.0)
    assert headroom.must_leave(flow_of("alder", waiting=9, in_flight=5, weight=2.0)[1], 1.0)


def test_who_does_not_flood_takes_the_last_seats():
    """A few waiting at once are no flood."""
    headroom = Headroom(SETTINGS)
    dispatched(headroom, flow_of("birch", in_flight=1)[0], 0.0)
    assert not headroom.must_leave(flow_of("alder", waiting=2, in_flight=5)[1], 1.0)


def test_bulk_leaves_no_room():
    """It has no time to lose."""
    headroom = Headroom(SETTINGS)
    dispatched(headroom, flow_of("birch", in_flight=1, lane=Lane.BULK)[0], 0.0, Lane.BULK)
    assert not headroom.must_leave(flow_of("alder", waiting=9, in_flight=5, lane=Lane.BULK)[1], 1.0)


def test_two_flows_a_lane_are_remembered():
    """However many come."""
    headroom = Headroom(SETTINGS)
    for number in range(50):
        dispatched(headroom, flow_of(f"tenant-{number}")[0], float(number))
    assert repr(headroom) == "<Headroom about=['tenant-48', 'tenant-49']>"


def test_seats_are_a_share_rounded_down():
    """A replica of a few seats leaves none."""
    assert [SETTINGS.seats(limit) for limit in (0, 3, 4, 32)] == [0, 0, 1, 8]
    for wrong in ({"share": 1.0}, {"share": -0.1}, {"backlog": -1}, {"about_s": -1.0}):
        with pytest.raises(ValueError, match="share below 1"):
            HeadroomSettings(**wrong)
