"""The parts of a limit that several gateways enforce add up to it, and never to more."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.quota_share import share_of

LIMITS = st.integers(0, 10_000)


def test_a_lone_gateway_has_the_whole_limit():
    """One process with a shared store and nobody else, also before it was told so."""
    assert [share_of(7, number=1, processes=1, living=living) for living in (0, 1)] == [7, 7]


@given(LIMITS, st.integers(1, 64), st.data())
@settings(deadline=None)
def test_the_processes_of_one_node_have_exactly_the_limit_together(limit, processes, data):
    """Whatever each of them knows of the others, starting and dying ones included."""
    living = data.draw(st.lists(st.integers(0, processes), min_size=processes, max_size=processes))
    parts = [
        share_of(limit, number=number, processes=processes, living=seen) for number, seen in enumerate(living, start=1)
    ]
    assert sum(parts) == limit
    assert max(parts) - min(parts) <= 1


@given(LIMITS, st.lists(st.integers(1, 8), min_size=2, max_size=6))
@settings(deadline=None)
def test_several_nodes_never_have_more_than_the_limit(limit, nodes):
    """No node knows its place among the others, so a remainder is left."""
    living = sum(nodes)
    parts = [
        share_of(limit, number=number, processes=processes, living=living)
        for processes in nodes
        for number in range(1, processes + 1)
    ]
    assert limit - living < sum(parts) <= limit
