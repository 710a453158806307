"""That the soak notices what it looks for."""

import asyncio
import json

import httpx
import msgspec
import pytest

from tests.soak.asking import ask
from tests.soak.gguf_worker import Report, judge_memory
from tests.soak.kv_mirror import apply
from tests.soak.traffic import Ask, Traffic

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}


def chunk(index=0, finish=None, content="x"):
    return {"choices": [{"index": index, "delta": {"content": content}, "finish_reason": finish}]}


def stream(*events, end="data: [DONE]\n\n"):
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end


async def ended(wanted, answer):
    """What the soak says of this answer (a text, or a status)."""

    async def respond(_request):
        if answer is None:
            await asyncio.Event().wait()
        return httpx.Response(answer) if isinstance(answer, int) else httpx.Response(200, text=answer)

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url="http://worker") as client:
        return await ask(client, wanted)


def streamed(**changes):
    return Ask("chat", "/v1/chat/completions", {"stream": True}, **changes)


TAIL = {"choices": [], "usage": USAGE}
WHOLE = stream(chunk(), chunk(finish="stop"), TAIL)


async def test_an_answer_that_ends_once_is_fine():
    """Streamed or whole, of one choice or several."""
    ending = await ended(streamed(), WHOLE)
    assert (ending.wrong, ending.prompt_tokens, ending.has_left) == ([], 9, False)
    two = stream(chunk(0, "stop"), chunk(1, "length"), TAIL)
    assert (await ended(streamed(num_choices=2), two)).wrong == []
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "x"}}
    whole = json.dumps({"choices": [choice], "usage": USAGE})
    assert (await ended(Ask("chat", "/v1/chat/completions", {}), whole)).wrong == []


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        (streamed(), stream(chunk(), TAIL)),
        (streamed(), stream(chunk(finish="stop"), chunk(finish="stop"), TAIL)),
        (streamed(), stream(chunk(finish="stop"), TAIL, end="")),
        (streamed(), stream(chunk(finish="stop"))),
        (streamed(), stream(chunk(finish="stop"), TAIL) + "data: [DONE]\n\n"),
        (streamed(num_choices=2), WHOLE),
        (streamed(), 500),
        (streamed(is_json=True), WHOLE),
        (streamed(is_unseen=True), WHOLE.replace('"cached_tokens": 0', '"cached_tokens": 16')),
        (Ask("embed", "/v1/embeddings", {}, num_choices=2), json.dumps({"data": [{}]})),
        (Ask("chat", "/v1/chat/completions", {}), "no json"),
    ],
)
async def test_any_other_ending_is_a_violation(wanted, answer):
    """None, two, one too early, a wrong status, text that is no JSON, another tenant's cache."""
    assert (await ended(wanted, answer)).wrong


async def test_a_client_that_leaves_is_no_violation():
    """It just has no answer."""
    ending = await ended(streamed(leaves_after_s=0.0), None)
    assert (ending.has_left, ending.wrong) == (True, [])


def test_memory_that_grows_is_a_violation_and_noise_is_not():
    """By the slope behind the warm-up, given enough samples."""
    for size, is_growing in ((lambda at: 300 + at / 10, True), (lambda at: 300 + at % 7, False)):
        report = Report(1, 20, rss=[(float(at), size(at)) for at in range(0, 1200, 30)])
        judge_memory(report)
        assert bool(report.violations) is is_growing
        assert report.rss_slope_mb_per_min == pytest.approx(6 if is_growing else 0, abs=0.5)
        assert ("VIOLATIONS" in report.verdict()) is is_growing
    report = Report(1, 1, rss=[(0.0, 1.0)])
    judge_memory(report)
    assert report.rss_slope_mb_per_min is None


def test_a_mirror_holds_what_the_events_leave():
    """By medium."""

    def after(*events):
        blocks = set()
        assert apply(msgspec.msgpack.encode([0.0, events, 0]), blocks) == len(events)
        return blocks

    stored = {"type": "BlockStored", "medium": "GPU", "block_hashes": [b"a", b"b"]}
    on_host = {"type": "BlockStored", "medium": "CPU", "block_hashes": [b"a"]}
    removed = {"type": "BlockRemoved", "medium": "GPU", "block_hashes": [b"a"]}
    assert after(stored, on_host, removed) == {("GPU", b"b"), ("CPU", b"a")}
    assert after(stored, {"type": "AllBlocksCleared"}) == set()


def test_traffic_is_of_every_kind_and_the_same_for_a_seed():
    """Shared beginnings, several salts, some clients that leave."""
    one, other = Traffic(5), Traffic(5)
    asked = [one.next() for _ in range(400)]
    assert asked == [other.next() for _ in range(400)]
    assert {entry.kind for entry in asked} == {"chat", "copy", "json", "tool", "choices", "embed", "plain", "unseen"}
    assert len({entry.body.get("cache_salt") for entry in asked if entry.kind == "chat"}) == 5
    assert 0 < sum(entry.leaves_after_s is not None for entry in asked) < 120
