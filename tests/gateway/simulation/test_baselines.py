"""The rules that others route by."""

from random import Random

import pytest

from gateway.simulation.baseline_view import BaselineView, SentBlocks
from gateway.simulation.baselines import (
    Additive,
    AdditiveSettings,
    BoundedLoadHash,
    BoundedLoadSettings,
    LeastLoaded,
    LeastLoadedSettings,
    LongestPrefixSettings,
    LongestPrefixThreshold,
    RandomReplica,
    RoundRobin,
)
from gateway.simulation.block_cache import FRONT, BlockCache
from gateway.simulation.direct_front import DirectFront
from gateway.simulation.fronts import TraceFlight
from gateway.simulation.recording import BlockKeys, RecordedRequest

SIZE = 16
KEYS = BlockKeys(SIZE)


def view(num=4, num_blocks=100):
    """Idle replicas."""
    return BaselineView([BlockCache(num_blocks) for _ in range(num)], SIZE, [f"r{number}" for number in range(num)])


def ask(*blocks, number=0):
    """A prompt of these blocks and a bit."""
    length = SIZE * len(blocks) + 1
    return RecordedRequest(number, "t", 0.0, length, 10, blocks, KEYS.key((*blocks, 900 + number), length))


def hold(seen, number, *blocks):
    """Let a replica's cache hold blocks."""
    assert seen.caches[number].allocate(len(blocks))
    for index, block in enumerate(blocks):
        assert seen.caches[number].publish(block, blocks[index - 1] if index else FRONT)


def test_round_robin_goes_round():
    """Each the same number of times."""
    rule = RoundRobin(view(), Random(1))
    chosen = [rule.choose(ask(1))[0] for _ in range(8)]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert chosen[:4] == chosen[4:]


def test_random_finds_everyone():
    """By its own seed."""
    rule = RandomReplica(view(), Random(1))
    assert {rule.choose(ask(1))[0] for _ in range(100)} == {0, 1, 2, 3}


@pytest.mark.parametrize(("by_tokens", "expected"), [(False, 2), (True, 3)])
def test_least_loaded_by_requests_or_tokens(by_tokens, expected):
    """Few long prompts may be more than many short ones."""
    seen = view()
    for load, (requests, tokens) in zip(seen.loads, [(3, 90), (2, 95), (1, 80), (2, 40)], strict=True):
        load.num_requests, load.unread_tokens = requests, tokens
    assert LeastLoaded(seen, Random(1), LeastLoadedSettings(by_tokens)).choose(ask(1)) == (expected, 0)


def test_bounded_load_hash_keeps_to_its_replica_until_that_has_its_share():
    """Then the next on the ring takes it, always the same one."""
    seen = view()
    rule = BoundedLoadHash(seen, Random(1), BoundedLoadSettings(prefix_tokens=2 * SIZE, load_factor=1.25))
    home, _ = rule.choose(ask(1, 2, 3))
    assert rule.choose(ask(1, 2, 7, number=5))[0] == home  # the same head
    seen.loads[home].num_requests = 2
    next_home, _ = rule.choose(ask(1, 2, 3))
    assert next_home != home
    assert rule.choose(ask(1, 2, 9))[0] == next_home
    for load in seen.loads:
        load.num_requests = 2
    assert rule.choose(ask(1, 2, 3))[0] == home


def test_bounded_load_hash_spreads_heads():
    """Over all replicas."""
    rule = BoundedLoadHash(view(), Random(1), BoundedLoadSettings(SIZE, 1.25))
    assert {rule.choose(ask(block))[0] for block in range(200)} == {0, 1, 2, 3}


def test_longest_prefix_goes_where_enough_was_sent():
    """Below the threshold the shortest queue takes it."""
    seen = view()
    rule = LongestPrefixThreshold(seen, Random(1), LongestPrefixSettings(least_share=0.5))
    first, _ = rule.choose(ask(1, 2, 3, 4))
    seen.loads[first].num_requests = 1
    assert rule.choose(ask(1, 2, 3, 5)) == (first, 3)
    assert rule.choose(ask(1, 8, 8, 8, 8))[0] != first


def test_longest_prefix_gives_up_affinity_where_loads_are_uneven():
    """By number and by factor, both."""
    seen = view()
    rule = LongestPrefixThreshold(seen, Random(1), LongestPrefixSettings(uneven_by=4, uneven_times=2.0))
    first, _ = rule.choose(ask(1, 2, 3, 4))
    for load in seen.loads:
        load.num_requests = 10
    seen.loads[first].num_requests = 15
    assert rule.choose(ask(1, 2, 3, 5))[0] == first
    seen.loads[first].num_requests = 21
    assert rule.choose(ask(1, 2, 3, 6))[0] != first


def test_additive_weighs_overlap_against_load():
    """A heavier weight goes further out of its way for a hit."""
    for weight, expected in ((0.5, {0, 2, 3}), (4.0, {1})):
        seen = view()
        hold(seen, 1, 1, 2, 3)
        seen.loads[1].blocks, seen.loads[1].num_requests = 6, 1
        found = {Additive(seen, Random(seed), AdditiveSettings(weight)).choose(ask(1, 2, 3))[0] for seed in range(20)}
        assert found == expected


def test_additive_by_shares_and_by_what_was_sent():
    """Normalised, and without events."""
    seen = view()
    rule = Additive(seen, Random(1), AdditiveSettings(2.0, is_normalised=True, by_events=False))
    first, hit = rule.choose(ask(1, 2, 3))
    assert hit == 0
    seen.loads[first].num_requests = 1
    assert rule.choose(ask(1, 2, 3)) == (first, 3)
    weak = Additive(seen, Random(1), AdditiveSettings(0.1, is_normalised=True, by_events=False))
    assert weak.choose(ask(1, 2, 3))[0] != first


def test_what_was_sent_is_forgotten_tail_first():
    """Its bound is reached, and what is left has no holes."""
    sent = SentBlocks(3)
    sent.note([1, 2, 3])
    sent.note([7])
    assert (sent.depth([1, 2, 3]), sent.depth([7]), len(sent)) == (2, 1, 3)


def test_loads_are_nothing_when_all_is_answered():
    """What a request weighs is given back, whatever it hit."""
    seen = view()
    front = DirectFront([(RoundRobin(seen, Random(1)), seen)])
    flights = [TraceFlight(ask(1, 2, 3, number=number), 0.0, 0) for number in range(6)]
    for flight in flights:
        assert front.arrive(flight, 0.0) == (flight,)
    assert [load.num_requests for load in seen.loads] in ([2, 2, 1, 1], [1, 2, 2, 1], [1, 1, 2, 2], [2, 1, 1, 2])
    for flight in flights:
        front.first_token(flight, 1.0)
    assert [load.unread_tokens for load in seen.loads] == [0, 0, 0, 0]
    front.finished(flights, 2.0)
    assert [(load.num_requests, load.blocks) for load in seen.loads] == [(0, 0)] * 4
