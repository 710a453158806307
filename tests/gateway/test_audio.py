"""Audio transcription through HTTP: the official client, both languages of engines, and all that a chat has."""

import asyncio
import json
import threading

import httpx
import openai
import pytest

from gateway import lifecycle
from gateway.request import read
from tests.gateway.audio_kit import (
    AUDIO,
    CHAT_TOKENS,
    RESET,
    SECONDS,
    TOKENS,
    TRANSCRIPTIONS,
    TRANSLATIONS,
    form,
    parts_of,
    transcribed,
)
from tests.gateway.kit import MODEL, UPSTREAM_MODEL, chat
from tests.scripted_engine import answer, dropped, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
streams = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def hears(launch):
    """Starts gateways in front of vLLM servers: `await hears(engines=2)`."""

    async def start(**options):
        return await launch(**{"kind": "vllm"} | options)

    return start


@pytest.fixture
async def connect():
    """Makes official clients; closed at the end."""
    clients = []

    def client(gateway, key=None):
        clients.append(httpx.AsyncClient(verify=False, trust_env=False, timeout=10))
        return openai.AsyncOpenAI(
            base_url=gateway.url, api_key=key or gateway.key, max_retries=0, http_client=clients[-1]
        )

    yield client
    for one in clients:
        await one.aclose()


async def ask(gateway, *, path=TRANSCRIPTIONS, headers=(), key=None, **fields):
    """A whole answer."""
    body, kind = form(**fields)
    return await gateway.post(
        body, path=path, headers=[("content-type", kind), *headers], **({"key": key} if key else {})
    )


@both_ways
async def test_a_whole_transcript_by_the_official_client(hears, connect):
    """The audio and the fields arrive as they were sent, under the engine's own name of the model."""
    gateway = await hears(models=[{"name": MODEL, "aliases": ["alias"]}])
    gateway.script(transcribed("Hel", "lo", usage=TOKENS))
    got = await connect(gateway).audio.transcriptions.create(
        file=("speech.mp3", AUDIO, "audio/mpeg"), model="alias", language="de", timestamp_granularities=["word"],
        response_format="verbose_json", temperature=0.2, prompt="Grüße",
    )  # fmt: skip
    assert got.text == "Hello"
    sent = await gateway.received()
    assert parts_of(sent) == {
        "file": ("speech.mp3", AUDIO),
        "model": (None, UPSTREAM_MODEL.encode()),
        "language": (None, b"de"),
        "timestamp_granularities[]": (None, b"word"),
        "response_format": (None, b"verbose_json"),
        "temperature": (None, b"0.2"),
        "prompt": (None, "Grüße".encode()),
    }
    (record,) = await gateway.until_recorded(1)
    assert (record.surface, record.requested_model, record.model) == (TRANSCRIPTIONS, "alias", MODEL)
    assert (record.prompt_tokens, record.completion_tokens, record.charged_tokens) == (30, 4, 34)


@both_ways
@pytest.mark.parametrize(("language", "usage"), [("openai", TOKENS), ("vllm", CHAT_TOKENS)])
async def test_a_stream_is_openais_whichever_engine_it_comes_from(hears, connect, language, usage):
    """Text bit by bit, the whole of it last with its usage, which is charged."""
    gateway = await hears()
    gateway.script(transcribed("Hel", "lo ", "ä", language=language, usage=usage))
    stream = await connect(gateway).audio.transcriptions.create(file=("a.wav", AUDIO), model=MODEL, stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events] == ["transcript.text.delta"] * 3 + ["transcript.text.done"]
    assert "".join(event.delta for event in events[:3]) == events[-1].text == "Hello ä"
    assert (events[-1].usage.input_tokens, events[-1].usage.output_tokens) == (30, 4)
    (record,) = await gateway.until_recorded(1)
    assert (record.is_streaming, record.num_chunks, record.charged_tokens) == (True, 3, 34)
    assert parts_of(await gateway.received())["stream_include_usage"] == (None, b"true")


@pytest.mark.parametrize("asked", ["text", "srt", "vtt"])
async def test_a_text_is_passed_on_as_a_text(hears, connect, asked):
    """The client gives a string, as it came; what no engine reports is estimated by the file and the text."""
    gateway = await hears()
    gateway.script(transcribed("1\n00:00 --> ", "00:01\nHallo ä\n", as_text=True))
    got = await connect(gateway).audio.transcriptions.create(file=("a.wav", AUDIO), model=MODEL, response_format=asked)
    assert got == "1\n00:00 --> 00:01\nHallo ä\n"
    (record,) = await gateway.until_recorded(1)
    assert record.is_estimated
    assert record.prompt_tokens == 3  # 10 for each 8000 bytes
    assert record.completion_tokens > 0
    assert record.charged_tokens == record.prompt_tokens + record.completion_tokens


@streams
@pytest.mark.parametrize("more", [{"usage": SECONDS}, {"more": {"duration": "6.0"}}])
async def test_audio_that_is_told_in_seconds_costs_ten_tokens_a_second(hears, stream, more):
    """And its text a token for four bytes."""
    gateway = await hears()
    gateway.script(transcribed("Hello", " you", **more, is_whole="more" in more))
    got = await ask(gateway, stream=str(stream).lower())
    assert got.status == 200
    (record,) = await gateway.until_recorded(1)
    assert (record.prompt_tokens, record.completion_tokens, record.is_estimated) == (60, 3, False)


@both_ways
async def test_a_whole_answer_to_a_streams_request_becomes_a_stream(hears, connect):
    """OpenAI's whisper-1 ignores `stream`: a client that reads events still gets its text."""
    gateway = await hears()
    gateway.script(transcribed("Hello", usage=SECONDS, is_whole=True))
    stream = await connect(gateway).audio.transcriptions.create(file=("a.wav", AUDIO), model=MODEL, stream=True)
    assert [getattr(event, "delta", "") or event.text async for event in stream] == ["Hello", "Hello"]


async def test_translation_goes_the_same_way(hears):
    """Into English, where the engine does."""
    gateway = await hears()
    gateway.script(transcribed("Hello"))
    assert (await ask(gateway, path=TRANSLATIONS)).json == {"text": "Hello"}
    assert (await gateway.received()).path == TRANSLATIONS


@both_ways
async def test_a_body_in_pieces_is_the_same_body(hears):
    """Cut anywhere, also inside the boundary."""
    gateway = await hears()
    body, kind = form()
    client = await gateway.connect()
    head = (
        f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {gateway.key}\r\ncontent-type: {kind}\r\n"
    )
    for size in (1, 13, 1000):
        gateway.script(transcribed("Hello"))
        client.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), size):
            client.write(body[start : start + size])
            if start % 100 == 0:
                await asyncio.sleep(0)
        assert (await client.answer()).json == {"text": "Hello"}
    assert {parts_of(one)["file"][1] for _, one in gateway.engines.requests} == {AUDIO}


async def test_a_large_file_is_read_beside_the_loop_and_arrives_as_it_was(hears, monkeypatch):
    """Others are served meanwhile."""
    gateway = await hears()
    threads = []
    monkeypatch.setattr(lifecycle, "read", lambda *given: (threads.append(threading.current_thread()), read(*given))[1])
    audio = bytes(300_000) + AUDIO
    gateway.script(transcribed("Hello"), transcribed("Hello"))
    assert [(await ask(gateway, audio=one)).status for one in (audio, AUDIO)] == [200, 200]
    assert parts_of(await gateway.received())["file"] == ("a.mp3", audio)
    assert [one is threading.main_thread() for one in threads] == [False, True]


@both_ways
async def test_refusals_name_what_is_wrong(hears):
    """Before any engine is asked."""
    gateway = await hears(gateway={"max_body_mb": 0.01})
    assert ((await ask(gateway, model="gone")).code, (await ask(gateway, model="")).error["param"]) == (
        "model_not_found",
        "model",
    )
    assert (await gateway.post(chat(), path=TRANSCRIPTIONS)).code == "unsupported_content_type"
    assert (await ask(gateway, audio=bytes(20_000))).status == 413
    assert (await ask(gateway, key="wl-unknown")).status == 401
    assert (await ask(gateway, parts=[("model", "other")])).error["param"] == "model"
    project = await gateway.new_project('{"surfaces": ["/v1/audio/transcriptions"], "rpm": 1}')
    key = await gateway.new_key(project)
    assert (await ask(gateway, key=key, path=TRANSLATIONS)).code == "surface_not_allowed"
    gateway.script(transcribed("Hello"))
    assert (await ask(gateway, key=key)).status == 200
    assert (await ask(gateway, key=key)).code == "rpm"
    assert len(gateway.engines.requests) == 1


async def test_audio_takes_tokens_of_its_tenants_limits(hears):
    """Reserved by the size of the file, charged as told."""
    gateway = await hears()
    await gateway.limit(gateway.project, '{"tpm": 100}')
    assert (await ask(gateway, audio=bytes(100_000))).code == "tpm"
    gateway.script(transcribed("Hello", usage=TOKENS))
    got = await ask(gateway, audio=bytes(10_000))
    assert got.header("x-ratelimit-remaining-tokens") == "66"


@streams
async def test_another_replica_is_tried_until_something_was_sent(hears, stream):
    """The form is kept and sent again whole; an engine's own refusal is the client's."""
    gateway = await hears(engines=2)
    gateway.script(dropped(), transcribed("Hello"), status(500), transcribed("Hi"), status(400))
    for text in ("Hello", "Hi"):
        assert text in (await ask(gateway, stream=str(stream).lower())).body.decode()
    assert [parts_of(one)["file"][1] for _, one in gateway.engines.requests] == [AUDIO] * 4
    assert (await ask(gateway, stream=str(stream).lower())).status == 400
    assert [record.attempts for record in gateway.records] == [2, 2, 1]


@pytest.mark.parametrize("code", [403, 404, 501])
async def test_an_engine_without_the_endpoint_is_not_at_fault(hears, code):
    """Nobody shuts chats out by sending audio to a model that cannot hear."""
    gateway = await hears()
    gateway.engine.fallback = status(code)
    for _ in range(6):
        assert (await ask(gateway)).code == "unsupported_model"
    gateway.script(answer("fine"))
    assert (await gateway.post(chat())).text == "fine"
    assert not any(record.charged_tokens for record in gateway.records[:6])


async def test_a_model_says_what_it_does(launch):
    """Our own workers cannot hear; a model that only transcribes does not chat."""
    gateway = await launch()
    got = await ask(gateway)
    assert (got.status, got.code) == (400, "unsupported_model")
    gateway = await launch(kind="openai", replica={"tasks": ["transcribe"], "shared_cache": "accept"})
    assert (await gateway.post(chat())).code == "unsupported_model"
    gateway.script(transcribed("Hello"))
    assert (await ask(gateway)).json["text"] == "Hello"
    assert (await gateway.get("/v1/models")).json["data"][0]["tasks"] == ["transcribe"]


@both_ways
@streams
@pytest.mark.parametrize("language", ["openai", "vllm"])
async def test_whoever_leaves_ends_the_engines_work(hears, stream, language):
    """Also before the first word; nothing is held (the fixture looks)."""
    gateway = await hears()
    gateway.script(transcribed("Hel", "lo", language=language, gate=asyncio.Event()))
    body, kind = form(stream=str(stream).lower())
    client = await gateway.start(body, path=TRANSCRIPTIONS, headers=[("content-type", kind)])
    request = await gateway.received()
    if stream:
        await client.until("Hel")
    client.reset()
    await request.until_aborted()
    (record,) = await gateway.until_recorded(1)
    assert record.outcome == "client_gone"
    assert record.charged_tokens >= 3


@pytest.mark.parametrize("language", ["openai", "vllm"])
async def test_a_stream_that_breaks_off_is_no_success(hears, connect, language):
    """After a word nothing is tried again: an error is the last event."""
    gateway = await hears(engines=2)
    gateway.script(transcribed("Hel", "lo", language=language, cut=RESET))
    got = await ask(gateway, stream="true")
    assert [json.loads(payload).get("type") for payload in got.payloads[:-1]] == ["transcript.text.delta"]
    assert got.error["code"] == "502"
    gateway.script(transcribed("Hel", "lo", language=language, has_end=False))
    assert (await ask(gateway, stream="true")).error["code"] == "502"
    assert len(gateway.engines.requests) == 2


@streams
async def test_an_answer_that_is_none_is_tried_elsewhere(hears, stream):
    """Nothing of it was sent."""
    gateway = await hears(engines=2)
    for bad in ({"more": {"text": 1}}, {"more": {"error": "x"}}):
        gateway.script(transcribed("x", is_whole=True, **bad), transcribed("Hello"))
        assert "Hello" in (await ask(gateway, stream=str(stream).lower())).body.decode()


async def test_audio_teaches_nothing_of_texts(hears):
    """What a token is worth in bytes is learned by chats alone; its tokens are not those of answers."""
    gateway = await hears()
    before = gateway.parts.router.ratios.of(MODEL).bytes(1000)
    for _ in range(20):
        gateway.script(transcribed("Hello", usage=TOKENS | {"input_tokens": 50_000}))
        await ask(gateway)
    assert gateway.parts.router.ratios.of(MODEL).bytes(1000) == before


async def test_receipts_and_deadlines_are_as_for_any_request(hears):
    """Who answered, and how long may be waited."""
    gateway = await hears()
    gateway.script(transcribed("Hel", "lo"))
    got = await ask(gateway, stream="true", headers=[("x-warmlane-lane", "bulk")])
    record, decision = gateway.parts.recorder.find(got.header("x-request-id"))
    assert (record.lane, decision.chosen, decision.hit_tokens) == ("bulk", "r1", 0)
    gateway.script(transcribed("Hel", gate=asyncio.Event(), is_whole=True))
    assert (await ask(gateway, headers=[("x-warmlane-deadline-ms", "30")])).status == 504
