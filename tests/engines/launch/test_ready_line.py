"""The ready line that scripts read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.launch.ready_line import parse_ready_line, ready_line


def test_a_worker_line_is_read():
    """The form that workers print."""
    line = parse_ready_line("ready url=http://127.0.0.1:9100/v1 model=demo engine=gguf\n")
    assert line is not None
    assert (line.url, line.base_url) == ("http://127.0.0.1:9100/v1", "http://127.0.0.1:9100")
    assert (line.get("model"), line.get("engine"), line.get("absent")) == ("demo", "gguf", "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ready",
        "ready url=",
        "ready model=x",
        "already url=http://x/v1",
        "ready url=http://x and more",
        "READY url=x",
    ],
)
def test_other_lines_are_not_ready_lines(text):
    """A library that prints on stdout must not make a worker ready."""
    assert parse_ready_line(text) is None


values = st.from_regex(r"[!-~]{1,20}", fullmatch=True)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.from_regex(r"[a-z_]{1,10}", fullmatch=True), values, max_size=6), values)
def test_what_is_written_is_read_back(fields, url):
    """Keys we do not know yet survive: later versions add to the line."""
    line = ready_line(**{**fields, "url": url})
    assert parse_ready_line(str(line)) == line


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=200))
def test_any_text_is_read_without_raising(text):
    """Children print anything; what counts as a ready line has an address."""
    line = parse_ready_line("ready " + text)
    assert line is None or line.url


def test_a_value_with_a_space_is_refused_where_it_is_made():
    """A broken ready line would be silent trouble for every script."""
    with pytest.raises(AssertionError, match="cannot carry"):
        ready_line(url="http://x/v1", model="a b")
