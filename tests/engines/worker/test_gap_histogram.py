"""Gaps between tokens, as Prometheus is told of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from engines.worker.gap_histogram import GapHistogram

BOUNDS = (0.01, 0.25, 1.0)


def told(collector):
    """The samples as text, but for the time at which a histogram of the library's own was made."""
    registry = CollectorRegistry()
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#") and "_created" not in line]


def histogram():
    return GapHistogram("gap_seconds", "Gaps.", ("model",), ("m",), BOUNDS)


@given(gaps=st.lists(st.sampled_from([0.0, 0.005, 0.01, 0.02, 0.25, 0.5, 1.0, 7.0]), max_size=20))
@settings(max_examples=50, deadline=None)
def test_it_tells_what_the_librarys_own_would(gaps):
    """Dashboards are made for that: bounds count as inside, buckets add up."""
    ours = histogram()
    theirs = Histogram("gap_seconds", "Gaps.", ("model",), registry=None, buckets=BOUNDS)
    for gap in gaps:
        ours.count(gap, 1)
        theirs.labels("m").observe(gap)
    theirs.labels("m")
    assert told(ours) == told(theirs)


@pytest.mark.parametrize(("num_tokens", "bucket"), [(1, "0.25"), (25, "0.01")])
def test_tokens_of_one_step_share_its_gap(num_tokens, bucket):
    """Drafts that held came at once; each counts with its part of the time."""
    ours = histogram()
    ours.count(0.2, num_tokens)
    lines = told(ours)
    first = next(line for line in lines if not line.endswith(" 0.0"))
    assert f'le="{bucket}"' in first
    assert f'gap_seconds_count{{model="m"}} {float(num_tokens)}' in lines
    assert 'gap_seconds_sum{model="m"} 0.2' in lines
