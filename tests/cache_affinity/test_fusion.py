"""How far predicted hits are believed."""

from cache_affinity.fusion import START_CONFIDENCE, HitConfidence


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
