"""What a request was made of is freed as it ends, by reference counts: nothing is left to the garbage collector.

A ring through a request costs every other request: the collector then looks through all of them, many times a second.
"""

import gc

import pytest

from gateway.parts import Call
from gateway.relay import Relay
from gateway.story import Story
from gateway.turn import Turn, Waiting
from policies.entry import Entry
from tests.gateway.inputs_kit import embeddings, served
from tests.gateway.kit import chat

_OF_A_REQUEST = (Call, Entry, Relay, Story, Turn, Waiting)


@pytest.fixture
def no_collector():
    """The garbage collector does not run; what earlier tests left is cleared."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
async def test_a_served_request_leaves_no_ring(launch, no_collector, is_streaming):
    """Its headers, its turn and its client each knew of the others while it ran."""
    gateway = await launch()
    for _ in range(2):
        answer = await gateway.post(chat(stream=is_streaming))
        assert answer.status == 200
    await gateway.until_quiet()
    assert [one for one in gc.get_objects() if isinstance(one, _OF_A_REQUEST)] == []


async def test_an_embedded_text_leaves_none_either(launch, no_collector):
    """Its answer is read where its end was waited for."""
    gateway = await launch()
    gateway.script(served(), served())
    for _ in range(2):
        assert (await gateway.post(embeddings(), path="/v1/embeddings")).status == 200
    await gateway.until_quiet()
    assert [one for one in gc.get_objects() if isinstance(one, _OF_A_REQUEST)] == []
