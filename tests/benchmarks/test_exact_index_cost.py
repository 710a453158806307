"""The benchmark of the exact index measures what it says, and the index keeps far from its targets' wrong side."""

from tests.benchmarks.exact_index_cost import NUM_BLOCKS, TARGETS, events_per_s, filled, measure, memory_mb, table_of


def test_the_look_up_meets_as_many_ends_as_there_are_replicas():
    """Else it would measure an easy case."""
    index, chain = filled()
    found = index.hits(chain).tokens
    assert sorted(found.values()) == [16 * number for number in range(1, NUM_BLOCKS + 1)]


def test_memory_and_events_stay_within_their_targets_with_a_wide_margin():
    """A machine under load is slower; twice the structure would not be."""
    assert memory_mb(60_000) * 2_000_000 / 60_000 < TARGETS["mb_for_2m_blocks"]
    assert events_per_s(NUM_BLOCKS, 6400) > TARGETS["events_blocks_per_s"]


def test_every_target_is_measured(monkeypatch):
    """A table for the terminal."""
    monkeypatch.setattr("tests.benchmarks.exact_index_cost.cpu_us", lambda call, **_: (call(), 1.0)[1])
    found = measure(6400)
    assert found.keys() >= TARGETS.keys()
    assert table_of(found).row_count == len(found)
