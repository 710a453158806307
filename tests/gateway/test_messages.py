"""`/v1/messages` as it is on the wire: one lifecycle with chats, Anthropic's words for all that is said."""

import asyncio
import json

import pytest

from gateway.request import Surface, read
from tests.gateway.kit import MODEL, UPSTREAM_MODEL, chat, message, respond
from tests.scripted_engine import Cut, Reply, answer, dropped, sse, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
PATH = "/v1/messages"
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


async def ask(gateway, body=None, path=PATH, **options):
    """A whole answer."""
    return await gateway.post(body or message(), path=path, **options)


def events(body):
    """(name, data) of each event; comments are passed over."""
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        if not block.startswith(":"):
            name, data = block.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def error_of(answer, status):
    """The error of an answer in Anthropic's body."""
    assert (answer.status, answer.header("content-type")) == (status, "application/json")
    assert answer.json["type"] == "error"
    return answer.json["error"]


@both_ways
async def test_a_message_takes_the_way_of_a_chat(launch, way):
    """The engine gets a chat, the record says which surface it was, and nothing else differs."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo", cached=3))
    got = await ask(gateway, message(system="Be kind."))
    assert (got.json["content"], got.json["model"]) == ([{"type": "text", "text": "Hello"}], MODEL)
    assert got.json["usage"]["input_tokens"] == 7
    sent = await gateway.received()
    assert (sent.path, sent.json["model"], sent.json["messages"][0]["role"]) == (
        "/v1/chat/completions", UPSTREAM_MODEL, "system",
    )  # fmt: skip
    assert sent.json["cache_salt"]
    [record] = await gateway.until_recorded(1)
    assert (record.surface, record.outcome, record.status, record.prompt_tokens) == (PATH, "finished", 200, 10)
    assert got.header("request-id") == got.header("x-request-id") == record.request_id
    assert got.json["id"] == "msg_" + record.request_id.removeprefix("req_")


@both_ways
async def test_a_stream_of_events(launch, way):
    """Each named, none of chat's own among them."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo"))
    got = await ask(gateway, message(stream=True))
    assert got.header("content-type").startswith("text/event-stream")
    assert [name for name, _ in events(got.body)] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert b"[DONE]" not in got.body
    [record] = await gateway.until_recorded(1)
    assert (record.num_chunks, record.is_streaming, record.completion_tokens) == (2, True, 2)


async def test_a_path_with_a_query_is_the_same(launch):
    """Beta clients ask on `/v1/messages?beta=true`."""
    gateway = await launch()
    assert (await ask(gateway, path=f"{PATH}?beta=true", headers=[("anthropic-version", "2023-06-01")])).status == 200


@both_ways
async def test_a_caller_who_is_not_known_is_told_so_in_anthropics_body(launch, way):
    """Before anything is read."""
    gateway = await launch()
    for path in (PATH, f"{PATH}/count_tokens"):
        got = await ask(gateway, path=path, key="wl-unknown")
        assert error_of(got, 401) == {
            "type": "authentication_error", "message": "this API key is not known", "code": "invalid_api_key",
        }  # fmt: skip
        assert got.json["request_id"] == got.header("request-id")


@both_ways
async def test_a_body_that_is_too_large_is_told_so_in_anthropics_body(launch, way):
    """Before a request has an id."""
    gateway = await launch(gateway={"max_body_mb": 0.001})
    got = await ask(gateway, message("x" * 2000))
    assert error_of(got, 413)["type"] == "request_too_large"
    assert got.json["request_id"] is None


async def test_a_body_that_does_not_come_is_told_so_in_anthropics_body(launch):
    """408, said by the connection itself."""
    gateway = await launch(timeouts={"body_s": 0.05})
    client = await gateway.connect()
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nx-api-key: {gateway.key}\r\ncontent-length: 9\r\n\r\n{{"
    client.write(head.encode())
    assert error_of(await client.answer(), 408)["code"] == "request_timeout"


@both_ways
async def test_a_limit_says_when_to_come_back(launch, way):
    """429 with the name of the limit, as a chat's."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"rpm": 1}')
    assert (await ask(gateway)).status == 200
    got = await ask(gateway)
    assert (error_of(got, 429)["type"], error_of(got, 429)["code"]) == ("rate_limit_error", "rpm")
    assert int(got.header("retry-after")) >= 1
    assert got.header("x-ratelimit-remaining-requests") == "0"


async def test_a_limit_of_surfaces_names_the_path(launch):
    """Who may chat may not send messages unless that is said."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"surfaces": ["/v1/chat/completions"]}')
    assert error_of(await ask(gateway), 403)["type"] == "permission_error"
    await gateway.limit(gateway.project, '{"surfaces": ["/v1/messages"]}')
    assert (await ask(gateway)).status == 200


@both_ways
async def test_what_is_not_there_is_told_in_anthropics_body(launch, way):
    """Another method, and what lies below the surface."""
    gateway = await launch()
    assert error_of(await gateway.get(PATH), 405)["code"] == "method_not_allowed"
    assert error_of(await ask(gateway, path=f"{PATH}/batches"), 404)["type"] == "not_found_error"


@pytest.mark.parametrize("stream", [True, False])
async def test_what_fails_has_anthropics_type(launch, stream):
    """Each status its own, and a wrong field its whole path."""
    gateway = await launch(retries={"max_attempts": 1})
    found = error_of(await ask(gateway, message(stream=stream, model="gone")), 404)
    assert (found["type"], found["param"]) == ("not_found_error", "model")
    wrong = message(stream=stream, messages=[{"role": "user", "content": [{"type": "video"}]}])
    assert error_of(await ask(gateway, wrong), 400)["param"] == "messages[0].content[0].type"
    gateway.script(status(500), status(400, {"error": {"message": "too long", "param": "messages"}}), status(503))
    assert error_of(await ask(gateway, message(stream=stream)), 502)["type"] == "api_error"
    assert error_of(await ask(gateway, message(stream=stream)), 400)["message"] == "too long"
    assert error_of(await ask(gateway, message(stream=stream)), 503)["type"] == "overloaded_error"


async def test_a_timeout_has_anthropics_type(launch):
    """504."""
    gateway = await launch(timeouts={"first_token_s": 0.05}, retries={"max_attempts": 1})
    gateway.script(answer("x", gates={0: asyncio.Event()}))
    assert error_of(await ask(gateway, message(stream=True)), 504)["type"] == "timeout_error"


@both_ways
async def test_a_stream_that_breaks_off_ends_with_an_error_event(launch, way):
    """After content, no second replica and no `message_stop`."""
    gateway = await launch(engines=2)
    token = sse('{"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": null}]}')
    gateway.script(Reply([token, Cut.CLOSE], headers=[("content-type", "text/event-stream")]))
    got = await ask(gateway, message(stream=True))
    names = [name for name, _ in events(got.body)]
    assert names == ["message_start", "content_block_start", "content_block_delta", "error"]
    assert events(got.body)[-1][1]["error"]["type"] == "api_error"
    assert events(got.body)[-1][1]["request_id"] == got.header("request-id")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first", ["dropped", "500", "untranslatable"])
async def test_another_replica_answers_while_nothing_was_sent(launch, stream, first):
    """A role chunk opens the message, and is held back as a chat's: the client sees one."""
    gateway = await launch(engines=2)
    odd = {"choices": [{"index": 0, "message": {"content": 3}, "delta": {"content": [3]}, "finish_reason": "stop"}]}
    odd = sse(json.dumps(odd)) if stream else json.dumps(odd).encode()
    gateway.script({"dropped": dropped(), "500": status(500), "untranslatable": Reply([odd])}[first], answer("ok"))
    got = await ask(gateway, message(stream=stream))
    assert got.status == 200
    if stream:
        names = [name for name, _ in events(got.body)]
        assert (names.count("message_start"), names[-1]) == (1, "message_stop")
    else:
        assert got.json["content"] == [{"type": "text", "text": "ok"}]
    assert len({index for index, _ in gateway.engines.requests}) == 2


async def test_a_silent_stream_pings(launch, quick_commit):
    """In the event that its clients know; queue positions stay comments."""
    gateway = await launch(timeouts={"keepalive_s": 0.05})
    gate = asyncio.Event()
    gateway.script(answer("late", gates={1: gate}))
    client = await gateway.start(message(stream=True), path=PATH)
    await client.until('event: ping\ndata: {"type":"ping"}\n\n')
    gate.set()
    got = await client.answer()
    assert events(got.body)[-1][0] == "message_stop"
    assert b": keep-alive" not in got.body


async def test_leaving_aborts_the_engine(launch):
    """As in a chat, nothing is held afterwards."""
    gateway = await launch()
    gateway.script(answer("a", "b", gates={2: asyncio.Event()}))
    client = await gateway.start(message(stream=True), path=PATH)
    await client.until('"text":"a"')
    client.close()
    await (await gateway.received()).until_aborted()
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "client_gone"


async def test_a_conversation_goes_where_its_beginning_is(launch):
    """Turn by turn, whichever of the two languages its client speaks."""
    gateway = await launch(engines=4)
    system = "You are kind. " * 100
    turns = [{"role": "user", "content": "What is a cat?"}]
    await ask(gateway, message(system=system, messages=turns))
    turns += [{"role": "assistant", "content": [{"type": "text", "text": "Hello world"}]}, turns[0]]
    await ask(gateway, message(system=[{"type": "text", "text": system}], messages=turns))
    said = [{"role": "system", "content": system}, turns[0], {"role": "assistant", "content": "Hello world"}, turns[0]]
    await gateway.post(chat(messages=said))
    first, second, third = [decision for _, decision in gateway.parts.recorder._remembered.values()]
    assert first.chosen == second.chosen == third.chosen
    assert (first.hit_tokens, second.hit_tokens > 0) == (0, True)
    assert third.hit_tokens > 0.8 * third.prompt_tokens, "the same prompt as the second turn's"


@both_ways
async def test_tokens_are_counted_by_the_engines_tokenizer(launch, way):
    """The chat that the message would be, with all that a template makes tokens of."""
    gateway = await launch(kind="vllm")
    gateway.script(Reply([json.dumps({"count": 5, "tokens": [1, 2, 3, 4, 5], "max_model_len": 9}).encode()]))
    tool = {"name": "f", "input_schema": {"type": "object"}}
    got = await ask(gateway, message(system="S", tools=[tool]), path=f"{PATH}/count_tokens")
    assert (got.status, got.json) == (200, {"input_tokens": 5})
    sent = await gateway.received()
    assert (sent.path, sent.json.keys()) == ("/tokenize", {"model", "messages", "tools"})
    [record] = await gateway.until_recorded(1)
    assert (record.surface, record.charged_tokens) == (f"{PATH}/count_tokens", 0)


async def test_an_engine_without_a_chat_tokenizer_says_so(launch):
    """A clear 400 that names what was asked for."""
    gateway = await launch(kind="llama-server")
    found = error_of(await ask(gateway, path=f"{PATH}/count_tokens"), 400)
    assert (found["code"], found["type"]) == ("unsupported_model", "invalid_request_error")
    assert "does not serve /v1/messages/count_tokens" in found["message"]


async def test_tokens_are_counted_here_where_no_engine_does_and_the_vocabulary_is_known(launch):
    """As many as the gateway's own prompt of the chat has; no engine is asked, nothing is charged or held."""
    gateway = await launch(kind="llama-server", models=[{"name": MODEL, "tokenizer": "fake"}])
    await gateway.until(lambda: gateway.parts.tokens.knows(MODEL))
    said = message(system="Be kind.")
    got = await ask(gateway, said, path=f"{PATH}/count_tokens")
    request = read(Surface.MESSAGES, json.dumps(said).encode())
    chain = await gateway.parts.tokens.chain(MODEL, request, "salt")
    assert (got.status, got.json) == (200, {"input_tokens": chain.num_tokens})
    as_response = respond(instructions="Be kind.")
    got = await gateway.post(as_response, path="/v1/responses/input_tokens")
    assert got.json == {"object": "response.input_tokens", "input_tokens": chain.num_tokens}
    assert gateway.engines.requests == []
    record, _ = await gateway.until_recorded(2)
    assert (record.outcome, record.attempts, record.charged_tokens) == ("finished", 0, 0)
    odd = message(messages=[{"role": "user", "content": [PNG]}])
    assert error_of(await ask(gateway, odd, path=f"{PATH}/count_tokens"), 400)["param"] == "messages"


async def test_a_model_that_only_embeds_takes_no_messages(launch):
    """Told by the path that was asked."""
    gateway = await launch(replica={"tasks": ["embed"]})
    assert "does not serve /v1/messages:" in error_of(await ask(gateway), 400)["message"]
