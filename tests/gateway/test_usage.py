"""Usage wherever an engine puts it (case P36)."""

import json

import pytest

from tests.gateway.kit import chat
from tests.gateway.stream_replies import DONE, FINISH, ROLE, USAGE, streamed, token
from tests.scripted_engine import Framing, Reply

DETAILED = {
    **USAGE,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
LAST = {"choices": [], "usage": DETAILED}
SHAPES = {
    "separate": [ROLE, token("a"), token("b"), FINISH, LAST],
    "on the finish chunk": [ROLE, token("a"), token("b"), {**FINISH, "usage": DETAILED}],
    "on a content chunk": [ROLE, token("a"), token("b", usage=DETAILED), FINISH],
    "on an empty delta": [ROLE, token("a"), token("b"), FINISH, {"choices": [{"index": 0, "delta": {}}], "usage": DETAILED}],
    "after nulls": [{**ROLE, "usage": None}, token("a", usage=None), token("b", usage=None), {**FINISH, "usage": None}, LAST],
    "on every chunk": [{**ROLE, "usage": USAGE}, token("a", usage=USAGE), token("b", usage=USAGE), FINISH, LAST],
    "on the first chunk": [{**ROLE, "usage": DETAILED}, token("a"), token("b"), FINISH],
    "choices missing": [ROLE, token("a"), token("b"), FINISH, {"usage": DETAILED}],
    "choices null": [ROLE, token("a"), token("b"), FINISH, {"choices": None, "usage": DETAILED}],
    "before the finish": [ROLE, token("a"), token("b"), LAST, FINISH],
}  # fmt: skip


@pytest.mark.parametrize("asks", [True, False], ids=["asked", "not asked"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_usage_is_read_wherever_the_engine_puts_it(launch, shape, asks):
    """P36: the record has the engine's numbers; the client gets one standard usage chunk if it asked, none if not."""
    gateway = await launch()
    gateway.script(streamed(*SHAPES[shape], DONE))
    options = {"stream_options": {"include_usage": True}} if asks else {}
    got = await gateway.post(chat(stream=True, **options))
    assert (got.text, got.roles, got.is_done) == ("ab", 1, True)
    [record] = await gateway.until_recorded(1)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (9, 2, 4)
    assert got.usage == (DETAILED if asks else None)
    if asks:
        assert got.chunks[-1]["choices"] == []
    assert (await gateway.received()).json["stream_options"]["include_usage"] is True


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 3, "completion_tokens": None}, {}, "many", [1]])
@pytest.mark.parametrize("stream", [True, False])
async def test_usage_that_cannot_be_read_does_not_spoil_the_answer(launch, usage, stream):
    """P36: the answer is the client's; what is not understood of the usage is only missing from the record."""
    gateway = await launch()
    choice = {"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}
    whole = Reply([json.dumps({"choices": [choice], "usage": usage}).encode()], framing=Framing.LENGTH)
    gateway.script(streamed(ROLE, token("ab"), FINISH, {"choices": [], "usage": usage}, DONE) if stream else whole)
    got = await gateway.post(chat(stream=stream))
    assert (got.status, got.text) == (200, "ab")
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "finished"
