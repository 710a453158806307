"""The promise of the first screen: a real model answers, and the conversation's next turn finds its cache warm."""

import anthropic
import httpx
import openai
import pytest

from engines.launch.demo_model import DEMO_MODEL_NAME
from tests.e2e.conftest import assert_quiescent
from tests.warmlane_process import PATIENCE_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

SYSTEM = "You are a patient tutor who answers in one short sentence. " + " ".join(
    f"Rule {number}: when you explain step {number}, name it and give one plain example." for number in range(1, 21)
)
QUESTIONS = ["What is a cat?", "And what is a dog?", "Which of the two is usually larger?"]


@pytest.fixture
def client(demo):
    """The official client with the URL and key of the ready line."""
    return openai.OpenAI(base_url=demo.fields["url"], api_key=demo.fields["key"], timeout=PATIENCE_S, max_retries=0)


def turn(client, messages, *, is_streaming):
    """One turn: its text, usage and request id."""
    options = {"stream_options": {"include_usage": True}} if is_streaming else {}
    raw = client.chat.completions.with_raw_response.create(
        model=DEMO_MODEL_NAME, messages=messages, max_tokens=24, temperature=0, stream=is_streaming, **options
    )
    answer = raw.parse()
    if not is_streaming:
        return answer.choices[0].message.content, answer.usage, raw.headers["x-request-id"]
    chunks = list(answer)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert len(usages) == 1
    return text, usages[0], raw.headers["x-request-id"]


def tokens_of(demo, messages):
    """The prompt's token ids, as a worker makes them."""
    replica = demo.admin("/replicas")["data"][0]
    answer = httpx.post(f"{replica['url']}/tokenize", json={"messages": messages}, timeout=PATIENCE_S)
    return answer.json()["tokens"]


def receipt_of(demo, request_id):
    """The receipt, once the request's record is written."""

    def found():
        receipt = demo.admin(f"/requests/{request_id}/receipt")
        return receipt if receipt["actual"] is not None else None

    return until(found)


@pytest.mark.parametrize("is_streaming", [True, False], ids=["streamed", "whole"])
def test_later_turns_find_the_cache_warm_on_the_same_replica(demo, client, is_streaming):
    """Turns 2 and 3 report more than 80% of the longest common token prefix as cached, and the receipt says why."""
    messages = [{"role": "system", "content": f"{SYSTEM} Style {is_streaming}."}]
    prompts, usages, receipts = [], [], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        prompts.append(tokens_of(demo, messages))
        text, usage, request_id = turn(client, messages, is_streaming=is_streaming)
        assert text.strip()
        usages.append(usage)
        receipts.append(receipt_of(demo, request_id))
        messages.append({"role": "assistant", "content": text})

    for earlier, later, usage in zip(prompts, prompts[1:], usages[1:], strict=False):
        common = next((place for place, (a, b) in enumerate(zip(earlier, later, strict=False)) if a != b), len(earlier))
        assert usage.prompt_tokens == len(later)
        assert usage.prompt_tokens_details.cached_tokens > 0.8 * common
    assert len({receipt["chosen"] for receipt in receipts}) == 1
    for receipt in receipts[1:]:
        assert "holds about" in receipt["reason"]
        assert receipt["actual"]["hit_tokens"] > 0
        assert len(receipt["candidates"]) == 2
    assert_quiescent(demo)


def test_a_sensible_answer_is_streamed(demo, client):
    """The question of the README is answered with what a cat is, piece by piece."""
    stream = client.chat.completions.create(
        model=DEMO_MODEL_NAME,
        messages=[{"role": "user", "content": "What is a cat?"}],
        max_tokens=32,
        temperature=0,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 5
    assert "cat" in "".join(pieces).lower()


def test_two_tenants_share_no_cache_and_one_tenant_does(demo, client):
    """The same prompt under two projects is computed twice, under one project once (P10)."""
    organization = demo.admin("/organizations", "POST", {"name": "alder"})
    project = demo.admin("/projects", "POST", {"name": "birch", "organization_id": organization["id"]})
    key = demo.admin("/keys", "POST", {"name": "k", "project_id": project["id"]})
    other = openai.OpenAI(base_url=demo.fields["url"], api_key=key["secret"], timeout=PATIENCE_S, max_retries=0)
    # A first message of its own: without one the template puts in the same system prompt for everybody.
    messages = [{"role": "system", "content": f"Trees only. {SYSTEM}"}, {"role": "user", "content": "What is a tree?"}]
    cached = []
    for who in (client, other, client, other):
        _, usage, _ = turn(who, messages, is_streaming=False)
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert cached[:2] == [0, 0]
    assert all(cached[2:])


def test_a_conversation_in_messages_finds_the_cache_that_its_tokens_say(demo):
    """Anthropic's client: tokens counted are tokens read, and turn 2 reads the first one's from the cache, streamed."""
    url = demo.fields["url"].removesuffix("/v1")
    client = anthropic.Anthropic(base_url=url, api_key=demo.fields["key"], timeout=PATIENCE_S, max_retries=0)
    prompt = {"model": DEMO_MODEL_NAME, "system": [{"type": "text", "text": f"Messages. {SYSTEM}"}]}
    turns = [{"role": "user", "content": QUESTIONS[0]}]
    usages = []
    for question in QUESTIONS[1:]:
        counted = client.messages.count_tokens(**prompt, messages=turns).input_tokens
        with client.messages.stream(**prompt, messages=turns, max_tokens=24) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        usages.append(message.usage)
        assert text.strip() == message.content[0].text.strip() != ""
        assert message.stop_reason in {"end_turn", "max_tokens"}
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == counted
        turns += [{"role": "assistant", "content": message.content}, {"role": "user", "content": question}]
    first, second = usages
    assert first.cache_read_input_tokens == 0
    assert second.cache_read_input_tokens > 0.8 * first.input_tokens


def blocks_told(demo):
    """Blocks that each worker has told it holds, by replica."""
    return {one["name"]: one["kv_events"]["blocks"] for one in demo.admin("/replicas")["data"]}


def test_a_receipt_says_exactly_what_the_worker_then_takes_from_its_cache(demo, client):
    """The workers tell what they hold, the gateway makes the prompt's tokens: the hit is known before it happens."""
    messages = [{"role": "system", "content": f"Exactly. {SYSTEM}"}, {"role": "user", "content": "What is rain?"}]
    before = blocks_told(demo)
    _, _, request_id = turn(client, messages, is_streaming=False)
    home = receipt_of(demo, request_id)["chosen"]
    until(lambda: blocks_told(demo)[home] >= before[home] + 20, lambda: "the worker's events do not come")
    _, usage, request_id = turn(client, messages, is_streaming=False)
    receipt = receipt_of(demo, request_id)
    exact = {one["replica"]: one["hit_tokens"]["exact"] for one in receipt["candidates"]}
    assert exact[home] == usage.prompt_tokens_details.cached_tokens > 300
    assert receipt["predicted"]["hit_tokens"] == exact[home]
    assert all(one["kv_events"]["standing"] == "complete" for one in demo.admin("/replicas")["data"])


def test_a_client_that_leaves_makes_the_worker_stop(demo, client):
    """Closing a stream aborts the sequence in the engine: the worker is idle again long before 2,000 tokens."""
    stream = client.chat.completions.create(
        model=DEMO_MODEL_NAME,
        messages=[{"role": "user", "content": "Count from one to one thousand."}],
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    assert_quiescent(demo)
    urls = [replica["url"] for replica in demo.admin("/replicas")["data"]]
    until(lambda: not any(httpx.get(f"{url}/load", timeout=PATIENCE_S).json()["running"] for url in urls))
