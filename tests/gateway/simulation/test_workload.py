"""Streams of requests: repeatable, at the rate asked for, with the sharing asked for."""

from itertools import islice, pairwise

import numpy as np
import pytest

from gateway.simulation.workload import Conversations, Flood, PoissonStream, Shape, Spread, Trace
from policies.lane import Lane
from tests.gateway.simulation.kit import ask

SHAPE = Shape(200, Spread(50, 0.5), Spread(20, 0.5), num_systems=3, mean_turns=4, num_open=5, max_prompt_tokens=900)


def poisson(seed=1, rate_per_s=10.0, **options):
    return PoissonStream("alder", Lane.STANDARD, SHAPE, rate_per_s=rate_per_s, seed=seed, **options)


def test_the_same_seed_gives_the_same_requests():
    """Two runs are compared, so they must be asked the same."""
    assert list(islice(poisson().arrivals(), 50)) == list(islice(poisson().arrivals(), 50))
    assert list(islice(poisson().arrivals(), 5)) != list(islice(poisson(seed=2).arrivals(), 5))


def test_requests_come_at_the_rate_in_order_and_carry_tenant_lane_and_patience():
    """The mean of 2,000 gaps is within some per cent of what was asked for."""
    requests = list(islice(poisson(patience_s=3.0).arrivals(), 2000))
    assert all(one.arrival_s < other.arrival_s for one, other in pairwise(requests))
    assert requests[-1].arrival_s == pytest.approx(200.0, rel=0.1)
    assert {(r.tenant, r.lane, r.patience_s) for r in requests} == {("alder", Lane.STANDARD, 3.0)}
    assert len({r.id for r in requests}) == 2000


def test_requests_come_only_in_the_active_part_of_a_period():
    """At the full rate then, so that a day's peak keeps its height."""
    requests = list(islice(poisson(active=(5.0, 15.0), period_s=20.0).arrivals(), 1000))
    assert all(5.0 <= request.arrival_s % 20.0 < 15.0 for request in requests)
    assert requests[-1].arrival_s == pytest.approx(200.0, rel=0.15)


def test_a_stream_needs_a_rate_and_has_no_follow_up():
    """An open loop does not care how others fared."""
    with pytest.raises(ValueError, match="rate"):
        poisson(rate_per_s=0.0)
    assert poisson().follow_up(ask("a"), 1.0) is None


def test_a_turn_repeats_the_conversation_so_far():
    """What makes caches worth having: a prompt begins with an earlier prompt and its answer."""
    conversations = Conversations(SHAPE, np.random.default_rng(3))
    turns = [conversations.next_turn() for _ in range(200)]
    histories = {(*prompt, answer) for prompt, answer in turns}
    later = [prompt for prompt, _ in turns if len(prompt) > 2]
    assert len(later) > 100
    assert all(prompt[:-1] in histories for prompt in later)
    assert len({prompt[0] for prompt, _ in turns}) == 3
    assert max(sum(passage.num_tokens for passage in prompt) for prompt, _ in turns) <= 900


def test_lengths_keep_their_mean_and_bounds():
    """A log-normal has a long tail, which is cut."""
    rng = np.random.default_rng(4)
    drawn = [Spread(100, 1.0).draw(rng) for _ in range(4000)]
    assert np.mean(drawn) == pytest.approx(100, rel=0.1)
    assert min(drawn) >= 1
    assert max(drawn) <= 800
    assert Spread(100).draw(rng) == 100
    assert Spread(0.1, 0.5).draw(rng) == 1


def test_a_flood_keeps_its_depth():
    """One comes for each that ends, at once."""
    flood = Flood("birch", Lane.BULK, SHAPE, depth=3, seed=1, start_s=2.0)
    first = list(flood.arrivals())
    assert [request.arrival_s for request in first] == [2.0] * 3
    following = flood.follow_up(first[0], 7.0)
    assert following.arrival_s == 7.0
    assert len({*(request.id for request in first), following.id}) == 4


def test_a_trace_is_told_in_order_of_arrival():
    """Whatever the order of its lines."""
    trace = Trace([ask("late", at=2.0), ask("early", at=1.0)])
    assert [request.id for request in trace.arrivals()] == ["early", "late"]
    assert trace.follow_up(ask("a"), 1.0) is None
