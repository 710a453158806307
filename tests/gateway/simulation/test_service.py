"""The log of charges: what was charged when, and the gap of two flows against the queue's bound."""

import pytest

from gateway.simulation.service import ServiceLog, service_gap
from policies.entry import Entry, Picked
from policies.flow import Flow
from policies.lane import Lane
from policies.offer import Offer

ALDER, BIRCH = ("alder", Lane.INTERACTIVE), ("birch", Lane.INTERACTIVE)


def picked(flow, charged, weight=1.0):
    """A request of a flow that was charged so much at its dispatch."""
    entry = Entry(*flow, weight=weight)
    return Picked(entry, Offer(0.0, 0), Flow(flow[0], weight, 0.0), charged, 0.0)


def test_charges_count_when_they_are_made_and_corrections_when_they_are_known():
    """Within the interval asked about, its start included and its end not."""
    log, one = ServiceLog(), picked(ALDER, 100.0)
    log.opened(one, 1.0)
    log.opened(picked(BIRCH, 70.0), 1.0)
    log.ended(one, 130.0, 2.0)
    assert log.charged(ALDER, 0.0, 2.0) == 100.0
    assert log.charged(ALDER, 2.0, 3.0) == 30.0
    assert log.charged(BIRCH, 0.0, 1.0) == 0.0


def test_an_account_tells_what_is_still_to_be_corrected():
    """Divided by the weight, as the queue's counters are."""
    log, one, two = ServiceLog(), picked(ALDER, 100.0, weight=2.0), picked(ALDER, 100.0, weight=2.0)
    log.opened(one, 1.0)
    log.opened(two, 2.0)
    log.ended(one, 140.0, 3.0)
    log.ended(two, 80.0, 4.0)
    found = [(change.amount, change.rise, change.fall) for change in log.changes()]
    assert found == [(50.0, 20.0, 0.0), (50.0, 20.0, 10.0), (20.0, 0.0, 10.0), (-10.0, 0.0, 0.0)]


def test_the_gap_is_the_widest_of_any_interval():
    """One runs ahead by 30, the other then by 70: 100 between the two turning points. What was before does not count."""
    log = ServiceLog()
    log.opened(picked(ALDER, 500.0), 0.5)
    for at, flow, charged in ((1.0, ALDER, 30.0), (2.0, BIRCH, 60.0), (3.0, BIRCH, 40.0), (4.0, ALDER, 10.0)):
        log.opened(picked(flow, charged), at)
    gap = service_gap(log, ALDER, BIRCH, quantum_tokens=16.0, since=1.0)
    assert gap.widest == pytest.approx(100.0)
    assert gap.bound == 2 * (16.0 + 500.0)
