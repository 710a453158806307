"""The rule for real models' greedy runs."""

import numpy as np
import pytest

from tests.engines.near_tie import Choice, assert_near_equal, choice_of

_BARE = [Choice(1, 2, 3.0), Choice(5, 6, 0.2), Choice(7, 8, 3.0)]


def test_an_equal_run_passes():
    """Equality needs no rule."""
    assert_near_equal([1, 5, 7], _BARE)


def test_the_second_of_a_near_tie_passes_and_nothing_later_is_compared():
    """After a near-tie the texts part, and comparing on would compare different questions."""
    assert_near_equal([1, 6, 99, 99], _BARE)


@pytest.mark.parametrize("ours", [[2, 5, 7], [1, 9, 7], [1, 5, 8], [1, 5]])
def test_a_clear_difference_fails(ours):
    """A wide gap, a third choice and a missing token are bugs, not rounding."""
    with pytest.raises(AssertionError):
        assert_near_equal(ours, _BARE)


def test_choice_names_the_two_best_and_their_gap():
    """The rule stands on this reading of the logits."""
    assert choice_of(np.array([0.0, 4.0, 1.0, 3.5], np.float32)) == Choice(1, 3, 0.5)
