"""Gateways that see the same spread what comes at once: each takes some requests of others for placed before its own."""

from collections import Counter

import pytest

from cache_affinity.prefix import PrefixKey
from policies.lane import Lane
from routing.query import RouteQuery
from routing.unseen import MOST, UNHEARD_S, Unseen, with_unseen
from tests.routing.gossipers import Gateway, in_order

WORDS = "alpha beta gamma delta " * 100


def key_of(number):
    return PrefixKey((number * 0x9E3779B97F4A7C15 % 2**64,), (100,), 100)


def imagined(gateway, model="m"):
    """What it takes others to do with a model."""
    return gateway.pool.unseen_of(model)


def bursts(gateways, num, size):
    """Every gateway sends a request before it hears of the others', again and again; where each burst went."""
    placed = []
    for burst in range(num):
        leases = []
        for number, gateway in enumerate(gateways[:size]):
            lease, decision = gateway.ask(f"{burst} {number} {WORDS}")
            leases.append((gateway, lease))
            placed.append((burst, decision.chosen))
        in_order(*gateways)
        for _, lease in leases:
            lease.end()
        for gateway in gateways:
            gateway.pass_time(0.5)
        in_order(*gateways)
    return placed


def busiest(placed, after):
    """Of the bursts after some: how many of a burst the busiest replica got, on average."""
    counts = {}
    for burst, name in placed:
        if burst >= after:
            counts.setdefault(burst, Counter())[name] += 1
    return sum(max(count.values()) for count in counts.values()) / len(counts)


def test_requests_that_come_to_all_gateways_at_once_do_not_all_meet(monkeypatch):
    """Without the picture of what others do meanwhile, all choose the one that is cheapest for all."""

    def fleet():
        found = [Gateway(number, num_replicas=4) for number in range(1, 7)]
        for gateway in found:
            for number, one in enumerate(
                gateway.pool
            ):  # what a fleet has learned: no two are alike, so nothing is tied
                one.ttft.adopt_rate(0.5 + number / 5, 1000)
        return found

    spread = busiest(bursts(fleet(), 40, 6), after=20)
    monkeypatch.setattr(Unseen, "look", lambda self, now: None)
    herd = busiest(bursts(fleet(), 40, 6), after=20)
    assert herd == 6
    assert spread <= 4


def test_a_gateway_whose_requests_come_alone_imagines_nothing():
    """The others' requests are heard before the next one comes."""
    gateways = [Gateway(number) for number in (1, 2)]
    for number in range(60):
        lease, _ = gateways[number % 2].ask(f"{number} {WORDS}")
        for gateway in gateways:
            gateway.pass_time(2 * UNHEARD_S)
        in_order(*gateways)
        lease.end()
    assert [imagined(gateway).num for gateway in gateways] == [0, 0]


def test_a_replica_that_holds_the_prompt_is_not_left_for_what_is_only_imagined():
    """A hit is certain."""
    gateway = Gateway(1)
    lease, decision = gateway.ask(WORDS, "first", read=True)
    lease.end()
    unseen = imagined(gateway)
    unseen.num, unseen.tokens = MOST, 5000.0
    for number in range(20):
        assert gateway.route(WORDS, "first", str(number)).chosen == decision.chosen
    cold = {gateway.route(f"{number} {WORDS}").chosen for number in range(20)}
    assert len(cold) > 1


def test_what_is_imagined_fills_the_cheapest_first_and_is_in_every_number():
    """The price, the load and the requests of a candidate say the same."""
    gateway = Gateway(1, num_replicas=3)
    gateway.hold("r1", 6, text="x" * 100, read=False)
    rows = gateway.route(WORDS).rows
    seen = with_unseen(rows, 4, 1000.0)
    added = [after[7] - before[7] for before, after in zip(rows, seen, strict=True)]
    assert sum(added) == 4
    assert added[0] < min(added[1:])
    for before, after, num in zip(rows, seen, added, strict=True):
        assert after[6] - before[6] == 1000 * num
        assert after[12] - before[12] == pytest.approx(num * (1000 + (1 + before[5] // 512) * before[10]) * before[8])
    assert with_unseen(rows, 0, 1000.0) == list(rows)


def test_places_in_a_burst_are_drawn_evenly():
    """Every place as often as every other, by the prompt alone."""
    unseen = Unseen()
    assert unseen.before(key_of(5)) == 0
    unseen.num = 3
    drawn = Counter(unseen.before(key_of(number)) for number in range(400))
    assert set(drawn) == {0, 1, 2, 3}
    assert min(drawn.values()) > 80
    assert unseen.before(PrefixKey((), (), 0)) == 0
    assert unseen.before(key_of(7)) == unseen.before(key_of(7))


def test_a_time_that_may_rest_on_an_unheard_request_teaches_no_wrong_speed():
    """Half of what came meanwhile is taken to have been read before it."""
    one, other = (Gateway(number, num_replicas=1) for number in (1, 2))
    lease, _ = one.ask(WORDS)
    second, _ = other.ask("second" + WORDS)
    ahead = lease.tokens_ahead
    in_order(one, other)
    assert lease.tokens_ahead == ahead + second.uncached_tokens // 2
    assert lease.unread_ahead == second.uncached_tokens
    one.pass_time(UNHEARD_S)
    other.ask("third" + WORDS)
    in_order(one, other)
    assert lease.unread_ahead == second.uncached_tokens, "that one came later"


def test_what_is_imagined_is_bounded():
    """However many come at once."""
    one, other = (Gateway(number, seats=10_000) for number in (1, 2))
    for burst in range(40):
        one.ask(f"{burst} {WORDS}", read=True)
        for number in range(40):
            other.ask(f"{burst} {number} {WORDS}", read=True)
        in_order(one, other)
        one.pass_time(1.0)
        other.pass_time(1.0)
    in_order(one, other)
    assert imagined(one).num == MOST
    assert imagined(other).num <= 1


def test_what_others_do_with_one_model_is_not_imagined_of_another():
    """A busy model beside a quiet one, on the same gateways."""
    one, other = (Gateway(number, seats=10_000) for number in (1, 2))
    for gateway in (one, other):
        gateway.add("quiet", model="quiet")
    quiet = RouteQuery("quiet", key_of(1), Lane.INTERACTIVE, "alder")
    for burst in range(40):
        lease = one.pool.lease(one.router.route(quiet, one.now), one.now)
        one.ask(f"{burst} {WORDS}", read=True)
        for number in range(40):
            other.ask(f"{burst} {number} {WORDS}", read=True)
        in_order(one, other)
        one.pass_time(1.0)
        other.pass_time(1.0)
        lease.end()
    assert imagined(one).num == MOST
    assert imagined(one, "quiet").num == 0
    one.pool.remove("quiet")
    assert "quiet" not in one.pool.unseen
