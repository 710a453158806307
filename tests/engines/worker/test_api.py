"""The routes, spoken to without sockets."""

import asyncio

import httpx
import msgspec
import pytest

from engines.core.plan import EngineFault
from engines.fake.model import SPECIALS
from engines.fake.runner import FakeRunner
from engines.worker.app import build_app
from engines.worker.generate import GenerateEndpoint
from tests.engines.worker.scripted import AsgiConnection, eventually


def chat(text="Please [[say hello world]] now", **fields):
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **fields}


def events(response) -> list[dict]:
    """The JSON events of a stream; it must end with the end marker."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [msgspec.json.decode(line) for line in lines[:-1]]


async def post(client, body, path="/v1/chat/completions", status=200, **options):
    response = await client.post(path, json=body, **options)
    assert response.status_code == status, response.text
    return response


async def test_a_chat_answer_has_openais_shape(client):
    """All that the official client reads, and usage with cached tokens always."""
    answer = (await post(client, chat())).json()
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "fake")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_streamed_chat_is_the_whole_chat_in_pieces(client):
    """Role first, then text, then the finish, then the usage without choices, then the end marker."""
    body = chat(stream=True, stream_options={"include_usage": True})
    response = await post(client, body)
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *middle, last, usage = events(response)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"]["content"] for event in middle) == "hello world"
    assert all(event["choices"][0]["delta"]["content"] for event in middle)
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"] is not None
    assert {event["id"] for event in [first, *middle, last, usage]} == {first["id"]}


async def test_usage_can_ride_on_every_chunk(client):
    """vLLM's `continuous_usage_stats`, by which a gateway meters a stream that is cut."""
    body = chat(stream=True, stream_options={"continuous_usage_stats": True})
    counts = [
        e["usage"]["completion_tokens"]
        for e in events(await post(client, body))
        if e["choices"][0]["delta"].get("content")
    ]
    assert counts == sorted(counts)
    assert counts[-1] > 1


async def test_without_the_option_a_stream_has_no_usage(client):
    """As OpenAI has it."""
    assert not any("usage" in event for event in events(await post(client, chat(stream=True))))


async def test_the_second_turn_reports_cached_tokens(client):
    """The prefix of a conversation is not computed twice."""
    await post(client, chat("x" * 200, max_tokens=1))
    usage = (await post(client, chat("x" * 200 + " and more", max_tokens=1))).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.8 * 200


async def test_caches_of_different_salts_are_separate(client):
    """What one tenant computed is not seen by another; its own second request is a hit."""
    for salt, cached in (("alder", False), ("birch", False), ("alder", True)):
        usage = (await post(client, chat("y" * 200, max_tokens=1, cache_salt=salt))).json()["usage"]
        assert bool(usage["prompt_tokens_details"]["cached_tokens"]) is cached


async def test_several_choices_differ_and_count_their_prompt_once(client):
    """`n` with sampling: each choice has its own seed."""
    answer = (await post(client, chat("tell me", n=3, max_tokens=8, temperature=1.5, ignore_eos=True, seed=5))).json()
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer["usage"]["completion_tokens"] == 24
    again = (await post(client, chat("tell me", n=3, max_tokens=8, temperature=1.5, ignore_eos=True, seed=5))).json()
    assert [choice["message"]["content"] for choice in again["choices"]] == texts
    streamed = events(
        await post(client, chat("tell me", n=3, max_tokens=8, temperature=1.5, ignore_eos=True, seed=5, stream=True))
    )
    joined = ["", "", ""]
    for event in streamed:
        for choice in event["choices"]:
            joined[choice["index"]] += choice["delta"].get("content") or ""
    assert joined == texts


async def test_a_seed_makes_an_answer_repeatable(client):
    """And another seed another answer."""

    async def answer(seed):
        body = chat("tell me", seed=seed, max_tokens=12, ignore_eos=True)
        return (await post(client, body)).json()["choices"][0]["message"]["content"]

    assert await answer(7) == await answer(7)
    assert await answer(7) != await answer(8)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_an_answer_before_it(client, stream):
    """Nothing of it is sent, and usage counts the tokens that were generated."""
    body = chat("[[say one END two]]", stop=["END"], stream=stream)
    if stream:
        body["stream_options"] = {"include_usage": True}
        *chunks, usage = events(await post(client, body))
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        finish, counted = chunks[-1]["choices"][0], usage["usage"]
    else:
        answer = (await post(client, body)).json()
        finish, counted = answer["choices"][0], answer["usage"]
        text = finish["message"]["content"]
    assert text == "one "
    assert (finish["finish_reason"], finish["stop_reason"]) == ("stop", "END")
    assert counted["completion_tokens"] > 3


async def test_the_stop_string_can_be_kept(client):
    """vLLM's extra."""
    body = chat("[[say one END two]]", stop="END", include_stop_str_in_output=True)
    assert (await post(client, body)).json()["choices"][0]["message"]["content"] == "one END"


async def test_max_tokens_ends_an_answer_with_length(client):
    """Both of its names."""
    for field in ("max_tokens", "max_completion_tokens"):
        answer = (await post(client, chat("tell me", ignore_eos=True, **{field: 3}))).json()
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 3)


async def test_log_probabilities_have_openais_shape(client):
    """One entry a token, the best beside it."""
    choice = (await post(client, chat(logprobs=True, top_logprobs=2))).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in entries)
    streamed = events(await post(client, chat(logprobs=True, stream=True)))
    tokens = [e["token"] for s in streamed for c in s["choices"] for e in (c["logprobs"] or {"content": []})["content"]]
    assert "".join(tokens) == choice["message"]["content"]


async def test_completions_take_text_and_tokens(client):
    """Several prompts become choices in order; log probabilities have offsets."""
    tokens = (await post(client, {"prompt": "[[say abc]]"}, "/tokenize")).json()["tokens"]
    body = {"model": "fake", "prompt": ["[[say abc]]", "[[say de]]"], "logprobs": 1, "max_tokens": 9, "temperature": 0}
    answer = (await post(client, body, "/v1/completions")).json()
    assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
    assert [choice["text"] for choice in answer["choices"]] == ["abc", "de"]
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2]
    by_tokens = (await post(client, body | {"prompt": tokens}, "/v1/completions")).json()
    assert by_tokens["choices"][0]["text"] == "abc"
    streamed = events(await post(client, body | {"stream": True}, "/v1/completions"))
    assert "".join(event["choices"][0]["text"] for event in streamed if event["choices"][0]["index"] == 1) == "de"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 2147483647}, "max_tokens"),
        ({"max_completion_tokens": 8192}, "max_completion_tokens"),
        ({"min_tokens": 8192}, "min_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"seed": 2**64}, "seed"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_bad_requests_are_refused_by_field_and_the_next_is_served(client, fields, param, stream):
    """Also when a stream was asked for: no stream begins (P02)."""
    error = (await post(client, chat(stream=stream) | fields, status=400)).json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    await post(client, chat())


async def test_an_unknown_model_is_a_404(client):
    """With OpenAI's code, and without the name in the message."""
    error = (await post(client, chat() | {"model": "other"}, status=404)).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_unknown_routes_and_methods_answer_in_openais_shape(client):
    """Not in a framework's."""
    assert (await client.get("/nope")).json()["error"]["type"] == "invalid_request_error"
    response = await client.get("/v1/chat/completions")
    assert (response.status_code, response.json()["error"]["message"]) == (405, "this route does not take that method")


async def test_a_body_over_the_bound_is_a_413(make_service):
    """Before it is parsed."""
    service = make_service({"max_body_bytes": 100})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://w") as client:
        await post(client, chat("x" * 100), status=413)
        await post(client, {"prompt": "x" * 100}, "/tokenize", status=413)


async def test_request_ids_are_echoed_when_they_are_harmless(client):
    """A header that is not is replaced (P43); the header wins over the body."""
    response = await post(client, chat(request_id="body-1"), headers={"x-request-id": "head-1"})
    assert response.headers["x-request-id"] == "head-1"
    assert response.json()["id"] == "chatcmpl-head-1"
    assert (await post(client, chat(request_id="body-1"))).json()["id"] == "chatcmpl-body-1"
    for bad in ("a b", "x" * 129, "ü".encode(), "\x1b[31m"):
        response = await post(client, chat(), headers={"x-request-id": bad})
        assert response.headers["x-request-id"] != bad
        assert len(response.json()["id"]) == len("chatcmpl-") + 32


async def test_two_requests_may_carry_the_same_id(client):
    """A retry while the first attempt is being aborted must not collide."""
    both = await asyncio.gather(*(post(client, chat(), headers={"x-request-id": "same"}) for _ in range(2)))
    assert [answer.json()["choices"][0]["message"]["content"] for answer in both] == ["hello world"] * 2


async def test_tokenize_and_detokenize_have_vllms_shapes(client):
    """A round trip through both."""
    text = "the tea 🫖"
    answer = (await post(client, {"prompt": text, "return_token_strs": True, "model": "fake"}, "/tokenize")).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 8192
    assert (await post(client, {"tokens": answer["tokens"]}, "/detokenize")).json() == {"prompt": text}
    assert (await post(client, {"prompt": text}, "/tokenize")).json()["token_strs"] is None


async def test_tokenize_shows_a_chat_as_the_model_sees_it(client):
    """And a client's special texts as plain ones (P48)."""
    messages = [{"role": "user", "content": text} for text in SPECIALS]
    answer = (await post(client, {"messages": messages}, "/tokenize")).json()
    assert sum(token < len(SPECIALS) for token in answer["tokens"]) == 2 * 3 + 1
    usage = (await post(client, {"model": "fake", "messages": messages, "max_tokens": 1})).json()["usage"]
    assert usage["prompt_tokens"] == answer["count"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "chat_template": "x"}, "chat_template"),
        ("/detokenize", {"tokens": [512]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1] * 10_000}, "tokens"),
        ("/detokenize", {"tokens": [1] * 400_000}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_bad_token_requests_are_refused_by_field(client, path, body, param):
    """As generations are."""
    assert (await post(client, body, path, status=400)).json()["error"]["param"] == param


async def test_models_lists_the_one_model(client):
    """In vLLM's shape, with the longest sequence."""
    (card,) = (await client.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("fake", "model", 8192)
    assert (await client.get("/v1/models/fake")).json() == card
    assert (await client.get("/v1/models/other")).json()["error"]["code"] == "model_not_found"


async def test_metrics_have_vllms_names_under_our_prefix(client):
    """Table 1.2 of the engines' facts, with values that moved."""
    await post(client, chat())
    text = (await client.get("/metrics")).text
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "bulk_rows_left_out_total",
        "bulk_lifts_total",
        "cache_config_info",
    ):
        assert f"\nwarmlane:{name}{{" in text
    assert 'warmlane:time_to_first_token_seconds_count{engine="0",model_name="fake"} 1.0' in text
    assert 'warmlane:requests_total{engine="0",model_name="fake",outcome="completed"} 1.0' in text
    assert 'kv_cache_size_tokens="8192"' in text
    assert 'warmlane:num_requests_running_by_lane{engine="0",lane="bulk",model_name="fake"} 0.0' in text
    assert 'warmlane:num_requests_waiting_by_lane{engine="0",lane="interactive",model_name="fake"} 0.0' in text
    for term in ("base", "row", "prefill_token"):
        assert f'warmlane:step_cost_seconds{{engine="0",model_name="fake",term="{term}"}}' in text
    assert "vllm:" not in text


async def test_load_tells_lanes_and_what_steps_cost(client, service):
    """A gateway places requests by it."""
    await post(client, chat())
    await eventually(lambda: service.loaded.engine.load().running == 0)
    load = (await client.get("/load")).json()
    assert load["lanes"] == {lane: {"running": 0, "waiting": 0} for lane in ("interactive", "standard", "bulk")}
    assert load["step_cost"].keys() == {"base_s", "per_row_s", "per_prefill_token_s"}
    assert (load["bulk_rows_left_out"], load["bulk_lifts"]) == (0, 0)


async def test_metrics_also_come_under_vllms_own_names_on_request(make_service):
    """For dashboards and routers that know no other."""
    service = make_service({"vllm_metric_names": True})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://w") as client:
        lines = (await client.get("/metrics")).text.splitlines()
    ours = [line for line in lines if "warmlane:" in line]
    assert [line.replace("warmlane:", "vllm:") for line in ours] == [line for line in lines if "vllm:" in line]


async def test_a_full_queue_is_a_503_before_a_stream_begins(make_service):
    """With retry-after; those that wait are served, and the queue then takes requests again."""
    service = make_service(max_seqs=1, max_waiting=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://w") as client:
        body = chat("x", max_tokens=40, ignore_eos=True, stream=True)
        responses = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(12)))
        statuses = [response.status_code for response in responses]
        assert set(statuses) == {200, 503}
        for response in responses:
            if response.status_code == 503:
                assert int(response.headers["retry-after"]) >= 1
                assert response.json()["error"]["code"] == "queue_full"
        await post(client, chat())


async def test_too_many_prompts_in_preparation_are_a_503(make_service):
    """The bound of what a flood of long prompts can hold in memory."""
    service = make_service({"max_preparing": 2})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://w") as client:
        flood = [client.post("/tokenize", json={"prompt": "x" * 1000}) for _ in range(8)]
        statuses = [response.status_code for response in await asyncio.gather(*flood)]
        assert statuses.count(503) == 6
        await post(client, {"prompt": "x"}, "/tokenize")


async def test_a_drained_service_refuses_and_says_so(service, client):
    """New work goes elsewhere; questions about the state are still answered."""
    assert (await client.get("/health")).status_code == 200
    assert await service.drain()
    assert (await client.get("/health")).status_code == 503
    response = await post(client, chat(), status=503)
    assert response.json()["error"]["code"] == "draining"
    assert "retry-after" in response.headers
    assert (await client.get("/load")).json()["is_draining"]


async def test_a_drain_waits_for_open_requests(make_service):
    """They are answered to their end."""
    service = make_service()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://w") as client:
        running = asyncio.ensure_future(post(client, chat("x", max_tokens=60, ignore_eos=True)))
        await eventually(lambda: service.link.num_open)
        assert await service.drain()
        assert (await running).json()["usage"]["completion_tokens"] == 60


@pytest.mark.parametrize("stream", [False, True])
async def test_a_drain_that_runs_out_of_time_ends_requests_with_an_error(make_service, stream):
    """In the stream where one has begun, as a status where none has."""
    service = make_service({"drain_s": 0.1}, max_seqs=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://w") as client:
        body = chat("x", max_tokens=8000, ignore_eos=True, stream=stream)
        running = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
        await eventually(lambda: service.loaded.engine.load().generation_tokens)
        assert not await service.drain()
        response = await running
        assert response.status_code == (200 if stream else 503)
        assert "the worker is stopping" in response.text
        assert "[DONE]" not in response.text


async def test_an_unhealthy_engine_is_told_by_health_and_requests(service, client):
    """A thread that ended serves nobody."""
    await asyncio.to_thread(service.loaded.engine.stop)
    assert (await client.get("/health")).status_code == 503
    assert (await post(client, chat(), status=503)).json()["error"]["code"] == "unhealthy"


async def test_a_client_that_stops_reading_is_given_up(make_service):
    """Its sequence ends at a bound of pieces; should it read again, it is told why."""
    service = make_service({"max_pending": 5, "default_max_tokens": 4000}, fake_eos_every=0)
    may_read = asyncio.Event()

    class SlowConnection(AsgiConnection):
        async def send(self, message):
            await super().send(message)
            if len(self.sent) > 3:
                await may_read.wait()

    connection = SlowConnection(msgspec.json.encode(chat("x", stream=True)))
    endpoint = GenerateEndpoint(service, service.chat)
    answering = asyncio.ensure_future(endpoint(connection.scope, connection.receive, connection.send))
    await eventually(lambda: len(connection.sent) > 3 and service.link.num_open == 0)
    await eventually(lambda: service.loaded.engine.num_open == 0)
    assert service.loaded.engine.load().generation_tokens < 4000
    may_read.set()
    await answering
    assert b'"code":503' in connection.body
    assert b"reads too slowly" in connection.body
    assert b"[DONE]" not in connection.body


async def test_a_slow_client_that_leaves_ends_its_request(make_service):
    """Also while a write waits for it."""
    service = make_service({"default_max_tokens": 4000}, fake_eos_every=0)

    class StuckConnection(AsgiConnection):
        async def send(self, message):
            await super().send(message)
            await asyncio.Event().wait()

    connection = StuckConnection(msgspec.json.encode(chat("x", stream=True)))
    endpoint = GenerateEndpoint(service, service.chat)
    answering = asyncio.ensure_future(endpoint(connection.scope, connection.receive, connection.send))
    await eventually(lambda: connection.sent)
    connection.leave()
    await answering
    assert service.num_requests == 0
    await eventually(lambda: service.loaded.engine.num_open == 0)


async def test_a_fault_of_ours_is_a_500_in_openais_shape(service, monkeypatch):
    """It is counted and logged as failed, and nothing stays open."""
    monkeypatch.setattr(service.chat, "prepare", lambda _: 1 / 0)
    transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://w") as client:
        error = (await post(client, chat(), status=500)).json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert b'outcome="failed"} 1.0' in service.metrics.exposition()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_of_the_engine_ends_only_what_it_hit(make_service, monkeypatch, stream):
    """As an event in the stream, as a status elsewhere; the worker stays healthy and the next request is served."""
    execute = FakeRunner.execute

    def faulty(runner, plan):
        if plan.number == 5:
            raise EngineFault("the device is gone")
        return execute(runner, plan)

    monkeypatch.setattr(FakeRunner, "execute", faulty)
    service = make_service(fake_eos_every=0)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://w") as client:
        response = await client.post("/v1/chat/completions", json=chat("x", max_tokens=50, stream=stream))
        assert response.status_code == (200 if stream else 500)
        assert "the engine failed" in response.text
        assert "device is gone" not in response.text
        assert "[DONE]" not in response.text
        assert (await client.get("/health")).status_code == 200
        await post(client, chat())


def nested(depth):
    """JSON text, since clients' encoders refuse it."""
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [200, 900, 100_000])
@pytest.mark.parametrize("place", ["tools", "chat_template_kwargs", "documents", "response_format", "arguments"])
async def test_values_nested_too_deeply_are_the_callers_fault(client, place, depth):
    """Wherever a client may nest, however deep: an answer or a 400, never a fault of ours."""
    deep = nested(depth)
    fields = {
        "tools": f'"tools": [{{"type": "function", "function": {{"name": "f", "strict": true, "parameters": {{"x": {deep}}}}}}}]',
        "chat_template_kwargs": f'"chat_template_kwargs": {{"x": {deep}}}',
        "documents": f'"documents": [{{"x": {deep}}}]',
        "response_format": f'"response_format": {{"type": "json_object", "schema": {{"x": {deep}}}}}',
        "arguments": f'"x": 1, "messages": [{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": "{{\\"a\\": {deep}}}"}}}}]}}]',
    }[place]
    head = '{"model": "fake", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}], '
    response = await client.post("/v1/chat/completions", content=head + fields + "}")
    assert response.status_code in {200, 400}, response.text
    if depth > 200:
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
