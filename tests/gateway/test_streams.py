"""Streams as a client sees them."""

import asyncio
import json

import pytest

from tests.gateway.client import COMPLETIONS
from tests.gateway.kit import chat, completion
from tests.scripted_engine import Cut, Framing, Reply, answer, sse

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)


@both_ways
async def test_a_stream_arrives_whole_with_one_end_marker(launch):
    """Role, tokens, finish and one [DONE]."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo"))
    got = await gateway.post(chat(stream=True))
    assert (got.status, got.text, got.roles, got.is_done, got.is_complete) == (200, "Hello", 1, True, True)
    assert got.usage is None
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.completion_tokens, record.attempts) == ("finished", 2, 1)
