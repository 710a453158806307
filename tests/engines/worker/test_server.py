"""A real worker process: real sockets, real clients, real signals."""

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import openai
import psutil
import pytest
from typer.testing import CliRunner

from engines.worker import cli
from engines.worker.loaded import CannotStart, load_engine
from engines.worker.server import bind, run
from engines.worker.settings import WorkerSettings
from tests.engines.worker.processes import PATIENCE_S, WorkerProcess, until
from tests.engines.worker.scripted import fake_options

pytestmark = pytest.mark.e2e

ENDLESS = {"max_tokens": 4000, "ignore_eos": True}


def body(text="Please [[say hello world]] now", **fields) -> dict:
    return {"model": "fake", "messages": [{"role": "user", "content": text}], **fields}


def raw_request(worker: WorkerProcess, payload: dict) -> socket.socket:
    """A connection on which a chat request was sent and nothing was read."""
    connection = socket.create_connection(worker.address, timeout=PATIENCE_S)
    data = json.dumps(payload).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def is_quiet(worker: WorkerProcess) -> bool:
    load = worker.load()
    return load["server_load"] == load["running"] == load["waiting"] == 0


def test_a_worker_says_nothing_of_single_requests_unless_asked():
    """The gateway has the line that an operator reads; a second one for each request is noise."""
    with WorkerProcess("--engine", "fake") as worker:
        httpx.post(f"{worker.ready.url}/chat/completions", json=body(max_tokens=2)).raise_for_status()
        assert worker.stop() == 0
        assert [line["event"] for line in worker.logs] == ["worker.draining", "worker.drained"]


def lines_of(worker: WorkerProcess) -> list[dict]:
    return [line for line in worker.logs if line["event"] == "request.finished"]


@pytest.fixture
def official(fake_worker):
    """The official client, which must not retry: what it sees is what we sent."""
    with openai.OpenAI(base_url=fake_worker.ready.url, api_key="unused", max_retries=0) as client:
        yield client


def test_the_ready_line_is_the_only_line_on_stdout(start_worker):
    """Scripts read it; everything else is JSON on stderr."""
    worker = start_worker("--model", "tiny")
    assert worker.first_line == f"ready url={worker.ready.url} model=tiny engine=fake\n"
    assert httpx.get(f"{worker.ready.url}/models").json()["data"][0]["id"] == "tiny"
    assert worker.stop() == 0
    assert worker.process.stdout.read() == b""
    assert [line["event"] for line in worker.logs] == ["worker.ready", "worker.draining", "worker.drained"]


def test_an_offer_of_http2_does_not_lose_the_body(fake_worker):
    """Java's HttpClient offers an upgrade with every request; it is ignored."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    answer = httpx.post(f"{fake_worker.ready.url}/chat/completions", json=body(max_tokens=2), headers=offer)
    assert answer.status_code == 200


def test_the_official_client_chats(official):
    """Not streamed: content, finish, usage with cached tokens."""
    answer = official.chat.completions.create(**body())
    assert answer.choices[0].message.content == "hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_the_official_client_streams(official):
    """Role, text, finish, usage."""
    chunks = list(official.chat.completions.create(**body(), stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "hello world"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0


def test_the_official_client_gets_several_choices_stops_seeds_and_logprobs(official):
    """The parameters people use."""
    several = official.chat.completions.create(
        **body("tell me"), n=2, seed=3, max_tokens=6, extra_body={"ignore_eos": True}
    )
    assert len({choice.message.content for choice in several.choices}) == 2
    stopped = official.chat.completions.create(**body("[[say one END two]]"), stop=["END"])
    assert stopped.choices[0].message.content == "one "
    scored = official.chat.completions.create(**body(), logprobs=True, top_logprobs=2)
    assert len(scored.choices[0].logprobs.content[0].top_logprobs) == 2


def test_the_official_client_completes(official):
    """The older surface, streamed and not."""
    answer = official.completions.create(model="fake", prompt="[[say abc]]", logprobs=1)
    assert answer.choices[0].text == "abc"
    chunks = official.completions.create(model="fake", prompt="[[say abc]]", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"


def test_the_official_client_sees_errors_as_its_own(official):
    """Its exception classes go by status; the field's name survives."""
    with pytest.raises(openai.BadRequestError) as caught:
        official.chat.completions.create(**body(), max_tokens=10**9)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError):
        official.chat.completions.create(**(body() | {"model": "other"}))
    with pytest.raises(openai.BadRequestError) as caught:
        official.chat.completions.create(**body(), tools=[{"type": "function", "function": {"name": "f g"}}])
    assert caught.value.param == "tools[0].function.name"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["close", "half", "reset"])
def test_a_client_that_hangs_up_ends_its_sequence(fake_worker, way, stream):
    """Closed, half closed or reset, streamed or not: the engine is free within a moment (P08)."""
    until(lambda: is_quiet(fake_worker))
    connection = raw_request(fake_worker, body("x", stream=stream, **ENDLESS))
    until(lambda: fake_worker.load()["running"] == 1)
    if way == "half":
        connection.shutdown(socket.SHUT_WR)
    elif way == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    else:
        connection.close()
    until(lambda: is_quiet(fake_worker), patience_s=2)
    connection.close()
    assert lines_of(fake_worker)[-1]["outcome"] == "client_gone"


def test_a_client_that_hangs_up_in_the_queue_leaves_it(start_worker):
    """Its request never runs."""
    worker = start_worker("--max-seqs", "1")
    first = raw_request(worker, body("x", **ENDLESS))
    until(lambda: worker.load()["running"] == 1)
    second = raw_request(worker, body("y", **ENDLESS))
    until(lambda: worker.load()["waiting"] == 1)
    second.close()
    until(lambda: worker.load()["waiting"] == 0)
    assert worker.load()["running"] == 1
    first.close()
    until(lambda: is_quiet(worker))
    assert worker.stop() == 0


def test_clients_that_leave_at_random_moments_leave_nothing_behind(fake_worker):
    """Fifty of them; afterwards the worker is quiet, has logged each once, and answers."""
    until(lambda: is_quiet(fake_worker))
    before = len(lines_of(fake_worker))
    chance = random.Random(7)

    def visit(seed: int) -> None:
        own = random.Random(seed)
        connection = raw_request(
            fake_worker, body("x" * own.randrange(1, 300), stream=own.random() < 0.7, n=own.randrange(1, 3), **ENDLESS)
        )
        leaves_at = time.monotonic() + own.random() * 0.5
        connection.settimeout(0.05)
        while time.monotonic() < leaves_at:
            with contextlib.suppress(TimeoutError):
                connection.recv(own.randrange(1, 2000))
        connection.close()

    visitors = [threading.Thread(target=visit, args=(chance.randrange(10**9),)) for _ in range(50)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    until(lambda: is_quiet(fake_worker))
    until(lambda: len(lines_of(fake_worker)) == before + 50)
    answer = httpx.post(f"{fake_worker.ready.url}/chat/completions", json=body()).json()
    assert answer["choices"][0]["message"]["content"] == "hello world"


class Stream:
    """A stream that has begun. `rest`: the remaining bytes, to its end."""

    def __init__(self, worker: WorkerProcess, **fields):
        self._connection = http.client.HTTPConnection(*worker.address, timeout=PATIENCE_S)
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body("x", stream=True, **fields)))
        self._response = self._connection.getresponse()
        assert self._response.readline().startswith(b"data: ")

    def rest(self) -> bytes:
        with self._response:
            rest = self._response.read()
        self._connection.close()
        return rest


def test_sigterm_lets_streams_end_and_refuses_new_requests(start_worker):
    """Health turns red, open streams are whole, the exit status is 0 (P45)."""
    worker = start_worker("--fake-base-s", "0.01", "--fake-eos-every", "0")
    streams = [Stream(worker, max_tokens=100) for _ in range(5)]
    worker.signal(signal.SIGTERM)
    until(lambda: httpx.get(f"{worker.url}/health").status_code == 503)
    refused = httpx.post(f"{worker.ready.url}/chat/completions", json=body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert "retry-after" in refused.headers
    for stream in streams:
        assert stream.rest().endswith(b"data: [DONE]\n\n")
    assert worker.wait() == 0
    assert [line["outcome"] for line in lines_of(worker)].count("completed") == 5


def test_streams_that_outlast_the_grace_end_with_an_error(start_worker):
    """Not with a cut that looks like success, and the exit status is still 0."""
    worker = start_worker("--fake-base-s", "0.01", "--fake-eos-every", "0", "--drain-s", "0.2")
    streams = [Stream(worker, **ENDLESS) for _ in range(3)]
    worker.signal(signal.SIGINT)
    for stream in streams:
        rest = stream.rest()
        assert b'data: {"error":' in rest
        assert b"[DONE]" not in rest
    assert worker.wait() == 0
    assert all(line["completion_tokens"] > 0 for line in lines_of(worker))


def test_a_second_signal_does_not_wait(start_worker):
    """Whoever asks twice means it."""
    worker = start_worker("--fake-base-s", "0.01", "--fake-eos-every", "0", "--drain-s", "600")
    stream = Stream(worker, **ENDLESS)
    worker.signal(signal.SIGINT)
    until(lambda: httpx.get(f"{worker.url}/health").status_code == 503)
    worker.signal(signal.SIGINT)
    assert b"[DONE]" not in stream.rest()
    assert worker.wait() == 0


def test_a_body_that_never_comes_does_not_stop_the_stop(start_worker):
    """The exit status is 0 although one request never was one."""
    worker = start_worker("--drain-s", "0.1")
    with socket.create_connection(worker.address) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: w\r\ncontent-length: 10\r\n\r\n{")
        until(lambda: worker.load()["server_load"] == 1)
        assert worker.stop() == 0
        assert connection.recv(4096).startswith(b"HTTP/1.1 503 ")
    assert "error" not in {line["level"] for line in worker.logs}


def test_no_text_of_a_request_is_ever_logged(start_worker):
    """Neither prompt nor answer nor names nor salt, in success and in failure."""
    worker = start_worker("--log-level", "debug")
    secret = "sesame-open-4711"
    for payload in (
        body(f"[[say {secret}]]", cache_salt=secret, user=secret),
        body(secret, max_tokens=-1),
        body(secret) | {"model": secret},
        {"model": "fake", "messages": [{"role": secret, "content": secret}]},
        {"model": "fake", "messages": secret},
    ):
        httpx.post(f"{worker.ready.url}/chat/completions", json=payload, headers={"authorization": f"Bearer {secret}"})
    assert worker.stop() == 0
    assert secret not in worker.stderr
    line = lines_of(worker)[0]
    assert (line["outcome"], line["surface"], line["cached_tokens"]) == ("completed", "chat", 0)
    assert line["ttft_s"] <= line["duration_s"]


def run_to_its_end(*options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "engines.worker", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_taken_port_is_one_sentence_and_exit_1(fake_worker):
    """Before the model is read."""
    ended = run_to_its_end("--engine", "fake", "--port", str(fake_worker.address[1]))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"warmlane worker: port {fake_worker.address[1]} on 127.0.0.1 cannot be used")
    assert ended.stderr.count("\n") == 1


def test_a_port_taken_between_bind_and_listen_is_the_same_sentence():
    """Two workers may bind before either listens; the later one must not die with a trace."""
    loaded = load_engine(fake_options())
    settings = WorkerSettings("fake", "fake", default_max_tokens=16)
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        first.listen()
        with pytest.raises(CannotStart, match="cannot be used"):
            run(loaded, settings, second, lambda: pytest.fail("it cannot be ready"))
    assert not loaded.engine.is_healthy()


def test_an_address_of_another_machine_is_one_sentence_and_exit_1():
    """Documentation's own network, which nobody has."""
    ended = run_to_its_end("--engine", "fake", "--host", "192.0.2.1")
    assert ended.returncode == 1
    assert ended.stderr.startswith("warmlane worker: ")


LOADING = "print('loading', flush=True), time.sleep(60)"


@pytest.mark.parametrize(
    "load",
    [
        f"cli.load_engine = lambda _: ({LOADING})",
        f"class Old:\n  def __del__(self): {LOADING}\ncli.load_engine = lambda _: (Old() and None, time.sleep(60))",
    ],
    ids=["at once", "in a finalizer, which would drop an exception"],
)
def test_a_stop_signal_while_loading_is_exit_0(load):
    """A supervisor that changes its mind sees no failure."""
    source = f"import time, engines.worker.cli as cli\n{load}\ncli.main()\n"
    command = [sys.executable, "-c", source, "--engine", "fake"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, errors) == (0, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_while_the_libraries_are_loaded_is_exit_0(number):
    """The first second of a start, in which Python itself would answer."""
    source = (
        "import runpy, sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'engines.worker.cli':\n"
        "            print('loading', flush=True)\n"
        "            time.sleep(60)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "runpy.run_module('engines.worker', run_name='__main__')\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, errors) == (0, b"", b"")


@pytest.mark.parametrize("content", [None, b"", b"not a model at all", b"GGUF\x03\0\0\0" + b"\xff" * 64])
def test_a_bad_model_file_is_one_sentence_and_exit_1(tmp_path, content):
    """Missing, empty, something else, or damaged."""
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    ended = run_to_its_end("--engine", "gguf", "--path", str(path))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("warmlane worker: ")


@pytest.mark.parametrize(
    "options",
    [
        ("--engine", "warp"),
        ("--engine", "gguf"),
        ("--engine", "fake", "--port", "70000"),
        ("--engine", "fake", "--model", "two words"),
        ("--engine", "fake", "--max-seqs", "0"),
        ("--engine", "fake", "--max-seqs", "9", "--max-step-tokens", "8"),
        ("--engine", "fake", "--itl-p95-s", "0"),
        ("--engine", "fake", "--max-step-s", "-1"),
        ("--engine", "fake", "--log-level", "loud"),
        ("--engine", "fake", "--speculation", "wild"),
        ("--engine", "fake", "--eviction", "fifo"),
        ("--engine", "fake", "--host-kv-mb", "-1"),
        ("--engine", "fake", "--tool-format", "smoke"),
        ("--engine", "fake", "--reasoning-format", "loud"),
        ("--nonsense",),
    ],
)
def test_bad_usage_is_exit_2(options, monkeypatch):
    """As for every command; nothing is bound or loaded."""
    monkeypatch.setattr(cli, "_serve", lambda *_: pytest.fail("it would serve"))
    ended = CliRunner().invoke(cli.app, options)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "Usage" in ended.stderr


def test_bad_usage_of_the_process_is_exit_2():
    """The status and the streams are those of the command."""
    ended = run_to_its_end("--engine", "warp")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "warp is not an engine" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


def test_help_has_an_example():
    """Exit 0, on stdout."""
    ended = run_to_its_end("--help")
    assert ended.returncode == 0
    assert "python -m engines.worker --engine gguf" in " ".join(ended.stdout.split())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tie is Linux's")
def test_a_worker_dies_with_its_parent():
    """However the parent died."""
    source = (
        "import subprocess, sys, time\n"
        "w = subprocess.Popen([sys.executable, '-m', 'engines.worker', '--engine', 'fake', '--die-with-parent'],"
        " stdout=subprocess.PIPE)\n"
        "w.stdout.readline(); print(w.pid, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE)
    worker = psutil.Process(int(parent.stdout.readline()))
    assert worker.is_running()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_health_answers_at_once_under_load(fake_worker):
    """A busy worker is not a dead one (P30), also while long prompts are tokenised (P49)."""
    until(lambda: is_quiet(fake_worker))
    connections = [raw_request(fake_worker, body("word " * 100_000, stream=True)) for _ in range(10)]
    connections += [raw_request(fake_worker, body("x", stream=True, **ENDLESS)) for _ in range(10)]
    slowest = 0.0
    with httpx.Client(base_url=fake_worker.url) as client:
        for _ in range(20):
            start = time.monotonic()
            assert client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
    for connection in connections:
        connection.close()
    until(lambda: is_quiet(fake_worker))
    assert slowest < 5.0  # generous: the machine that runs the tests may be busy itself
