"""Both styles of KV for every test that asks."""

import pytest

from tests.engines.core.driven import Driven


@pytest.fixture(params=["slots", "pages"])
def style(request) -> str:
    """The two ways in which engines keep KV."""
    return request.param


@pytest.fixture
def driven(style):
    """Makes engines of this style, driven by hand."""
    return lambda **options: Driven(style, **options)
