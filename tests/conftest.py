"""What holds for every test: a shared machine may be slow for a moment, and that alone fails nobody."""

import gc

import pytest

from policies import redis_link

CALL_PATIENCE_S = 10.0
collect_ignore = ["peers"]  # run by `make test-peers`, in an environment that has those clients


def pytest_collection_finish():
    """Thousands of tests are many objects that live to the end: no garbage collection looks through them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def calls_in_time(request, monkeypatch):
    """No answer of a Redis that lives is too late. Whoever holds its Redis up asks for `bounded_calls`."""
    if "bounded_calls" not in request.fixturenames and request.node.get_closest_marker("chaos") is None:
        monkeypatch.setattr(redis_link, "CALL_S", CALL_PATIENCE_S)


@pytest.fixture
def bounded_calls():
    """Calls to a Redis are given up after the product's own time."""
