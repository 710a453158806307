"""What rests on more observations takes the place of what rests on fewer, wherever it was learned."""

import pytest

from cache_affinity.capacity import LEAST_FACTOR, MOST_FACTOR, CapacityFactor
from cache_affinity.fusion import HitConfidence
from cache_affinity.ratio import LEAST, MOST, TokenRatio


def value_of(one):
    """The learned number."""
    match one:
        case HitConfidence():
            return one.value
        case CapacityFactor():
            return one.logarithm
        case _:
            return one.bytes_per_token


@pytest.mark.parametrize(
    ("make", "low", "high"), [(HitConfidence, 0.2, 0.6), (CapacityFactor, -0.5, 0.5), (TokenRatio, 2.0, 5.0)]
)
def test_more_observations_win_and_of_as_many_the_larger_value(make, low, high):
    """A maximum: so in whatever order gateways hear of each other, all come to the same."""
    one = make()
    one.adopt(low, 5)
    assert (value_of(one), one.num_observations) == (low, 5)
    one.adopt(high, 4)
    assert value_of(one) == low
    one.adopt(high, 5)
    assert value_of(one) == high
    one.adopt(low, 5)
    assert value_of(one) == high
    one.adopt(low, 6)
    assert (value_of(one), one.num_observations) == (low, 6)


def test_what_cannot_be_is_taken_for_the_nearest_that_can():
    """A number from elsewhere is within the same bounds as one's own."""
    confidence, factor, ratio = HitConfidence(), CapacityFactor(), TokenRatio()
    for told, most in ((-1e9, False), (1e9, True)):
        for one in (confidence, factor, ratio):
            one.adopt(told, 1 + most)
        assert confidence.value == (1.0 if most else 0.0)
        assert factor.value == pytest.approx(MOST_FACTOR if most else LEAST_FACTOR)
        assert ratio.bytes_per_token == (MOST if most else LEAST)


def test_own_observations_count():
    """Weights are what was seen, here or elsewhere."""
    confidence, ratio = HitConfidence(), TokenRatio()
    confidence.observe(1000, 500)
    confidence.observe(1000, None)
    ratio.observe(4000, 1000)
    ratio.observe(4000, 1)
    assert (confidence.num_observations, ratio.num_observations) == (1, 1)
