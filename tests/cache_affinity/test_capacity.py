"""The learned capacity: guesses that are off by two come back, and what says nothing teaches nothing."""

import random
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.capacity import LEAST_FACTOR, MOST_FACTOR, STEP, CapacityFactor, Remembered
from cache_affinity.prefix import prefix_key
from cache_affinity.shadow import ShadowIndex

NUMBERS = st.integers(0, 100_000)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.floats(0, 1), st.none() | NUMBERS, NUMBERS), max_size=300))
@settings(max_examples=80, deadline=None)
def test_it_stays_within_its_bounds_and_moves_in_small_steps(reports):
    """Whatever engines report."""
    factor = CapacityFactor()
    for held, more, age, reported, total in reports:
        before = factor.value
        factor.observe(Remembered(held, held + more, age), reported, total)
        assert LEAST_FACTOR * 0.999 <= factor.value <= MOST_FACTOR * 1.001
        assert abs(factor.value / before - 1) <= 1.1 * STEP
        if reported is None:
            assert factor.value == before


def test_young_misses_and_exact_hits_teach_nothing():
    """A burst's sibling that was not read yet was not evicted; a hit as predicted is no news."""
    factor = CapacityFactor()
    factor.observe(Remembered(50_000, 50_000, 0.01), 0, 60_000)
    factor.observe(Remembered(50_000, 50_000, 1.0), 50_000, 60_000)
    factor.observe(Remembered(0, 40_000, 0.0), 0, 60_000)
    assert (factor.value, factor.num_observations) == (1.0, 0)
    factor.observe(Remembered(50_000, 50_000, 0.9), 10_000, 60_000)
    assert factor.value < 1.0
    factor.observe(Remembered(10_000, 50_000, 0.9), 50_000, 60_000)
    assert repr(factor) == "<CapacityFactor 1.01 after 2 reports>"


class Engine:
    """A true cache: whole messages by their chain, least recently used first out, tails before heads."""

    def __init__(self, capacity_bytes):
        self.capacity_bytes = capacity_bytes
        self.held = OrderedDict()

    def read(self, key):
        """Bytes found of the prompt, which is then held."""
        found = 0
        for border, size in zip(key.hashes, key.sizes, strict=True):
            if border not in self.held:
                break
            found = size
        for index in range(len(key.hashes) - 1, -1, -1):
            self.held[key.hashes[index]] = key.sizes[index] - (key.sizes[index - 1] if index else 0)
            self.held.move_to_end(key.hashes[index])
        while sum(self.held.values()) > self.capacity_bytes:
            self.held.popitem(last=False)
        return found


@pytest.mark.parametrize("guess", [0.5, 2.0])
def test_a_capacity_guessed_wrongly_by_two_is_learned(guess):
    """One engine, conversations that come back after more or less other work."""
    rng, truth = random.Random(3), 400_000
    engine, shadow = Engine(truth), ShadowIndex(round(truth * guess), 10_000)
    turns = [[b"%d" % number * 800] for number in range(60)]
    for now in range(2000):
        number = min(int(rng.expovariate(1 / 14)), 59)
        turns[number].append(b"%d %d" % (now, number) * 100)
        if len(turns[number]) > 12:
            turns[number] = [b"new %d" % now * 300]
        key = prefix_key("m", "s", turns[number])
        reported = engine.read(key)
        shadow.learn_capacity(shadow.insert(key, float(now)), reported, key.total_bytes)
    assert shadow.capacity_bytes == pytest.approx(truth, rel=0.3)


def test_the_price_of_room_is_what_of_the_old_is_asked_for_again():
    """Nothing while there is room; little where old prompts never come back; much where they do."""
    once, again = ShadowIndex(10_000, 1000), ShadowIndex(10_000, 1000)
    assert once.lost_bytes(9_000) == 0.0
    for now in range(200):
        once.insert(prefix_key("m", "s", [b"%03d" % now * 200]), float(now))
        again.insert(prefix_key("m", "s", [b"%03d" % (now % 16) * 200]), float(now))
    assert 0.0 < once.lost_bytes(1000) < 50
    assert again.lost_bytes(1000) > 150
    assert once.reuse < 0.05
    assert 0.3 < again.reuse <= 1.0
    again.forget()
    assert again.lost_bytes(1000) == 0.0
