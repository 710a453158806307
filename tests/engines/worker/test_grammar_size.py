"""How large a pattern is when written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.worker.grammar_size import MOST, paren_depth, pattern_weight


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        ("", 0),
        ("abc", 3),
        ("a{5}", 5),
        ("a{2,7}b", 8),
        ("a{3,}", 3),
        ("(ab){10}", 20),
        ("((a{10}){10}c){10}", 1010),
        ("[a-z]{4}", 4),
        (r"[\]()]{3}\({2}", 5),
        ("a|b*", 2),
        ("a{,4}", 4),
        ("{3}", 0),
        ("(a", 1),
        ("a){2}", 2),
        ("[", 1),
        ("(((a{999999999}){999999999}){999999999})", MOST),
    ],
)
def test_repetitions_multiply(pattern, weight):
    """What stands before a repetition is counted so often, groups as a whole."""
    assert pattern_weight(pattern) == weight


@pytest.mark.parametrize(("pattern", "depth"), [("", 0), ("(a(b)c)", 2), (r"\((", 1), ("))((", 2)])
def test_brackets_nest(pattern, depth):
    """Escaped ones are characters."""
    assert paren_depth(pattern) == depth


@given(st.text("ab(){}[]\\*|,019", max_size=60))
def test_any_text_has_a_bounded_weight(pattern):
    """Malformed ones too: the compiler refuses them later."""
    assert 0 <= pattern_weight(pattern) <= MOST
    assert 0 <= paren_depth(pattern) <= len(pattern)
