"""How far predicted hits are believed."""

from cache_affinity.fusion import LEAST_TOKENS, START_CONFIDENCE, HitConfidence, fused


def test_an_engine_without_reports_keeps_the_start():
    """Absence of a report is not zero."""
    confidence = HitConfidence()
    confidence.observe(1000, None)
    assert confidence.value == START_CONFIDENCE


def test_reports_of_zero_wear_it_down_and_good_ones_restore_it():
    """An engine whose cache is off must stop attracting requests, and may come back."""
    confidence = HitConfidence()
    for _ in range(60):
        confidence.observe(1000, 0)
    assert confidence.value < 0.01
    for _ in range(60):
        confidence.observe(1000, 1200)
    assert 0.99 < confidence.value <= 1.0


def test_small_predictions_and_odd_reports_stay_in_bounds():
    """Block rounding teaches nothing, and no report leads outside 0..1."""
    confidence = HitConfidence()
    confidence.observe(63, 0)
    assert confidence.value == START_CONFIDENCE
    confidence.observe(100, -50)
    assert 0.0 <= confidence.value <= 1.0


def test_what_the_engine_told_counts_before_what_was_predicted():
    """A prediction that goes a block further is the same hit, and one that goes less far is old news."""
    assert fused(176, 1.0, 180, 1.0) == 176
    assert fused(176, 1.0, 0, 1.0) == 176
    assert fused(0, 1.0, LEAST_TOKENS - 1, 1.0) == 0


def test_what_was_routed_there_a_moment_ago_counts_before_it_is_told():
    """A burst of siblings meets where the first of them is being read."""
    assert fused(0, 1.0, 1000, 0.9) == 900
    assert fused(512, 1.0, 1000, 0.9) == 900


def test_an_engine_whose_word_does_not_hold_is_believed_less():
    """Its reports teach how much of what it tells it then hits."""
    assert fused(1000, 0.5, 0, 1.0) == 500
