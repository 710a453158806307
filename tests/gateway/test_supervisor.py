"""`warmlane up` and `warmlane gateway` as processes, with fake workers: start, faults, and every way to end."""

import fcntl
import json
import os
import pty
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from engines.launch.demo_model import DEMO_MODEL_NAME
from tests.warmlane_process import PATIENCE_S, commands, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

FAKE = """
[gateway]
drain_s = {drain_s}
[[workers]]
model = "fake-model"
engine = "fake"
"""
TWO = f"{FAKE}count = 2\n"
REPLICA = """
[[replicas]]
name = "far"
model = "far-model"
engine = "openai"
url = "http://127.0.0.1:9"
"""


@pytest.fixture
def warmlane(tmp_path):
    """Starts `warmlane` commands with a fake worker in one home; none outlives the test."""
    with commands(tmp_path / "home") as start:

        def start_fake(*words, config=FAKE, drain_s=5, env=None, stderr=None):
            return start(*words, config=config.format(drain_s=drain_s), env=env, stderr=stderr)

        yield start_fake


@pytest.fixture(scope="module")
def survivor(tmp_path_factory):
    """`warmlane up` with two fake workers and a replica that is not there, for tests that kill parts of it."""
    with commands(tmp_path_factory.mktemp("survivor") / "home") as start:
        up = start("up", config=(TWO + REPLICA).format(drain_s=5))
        up.until_ready()
        up.start_another = start
        yield up
        assert up.end() == 0


def generations(up):
    """The generation of each of the survivor's workers."""
    return {one["name"]: one["generation"] for one in up.admin("/replicas")["data"] if one["name"] != "far"}


def until_ready_at(up, expected):
    """Wait until the survivor's workers are ready at these generations; the far one never will be."""
    up.until_replicas(sorted((name, "ready", number) for name, number in expected.items()), besides=("far",))


READY_BOTH = [("worker-1", "ready", 1), ("worker-2", "ready", 1)]


def test_up_reaches_an_answer_and_ctrl_c_leaves_nothing(warmlane, tmp_path):
    """The whole promise: one line, one key, an answer, a clean end."""
    up = warmlane("up", config=TWO)
    fields = up.until_ready()
    assert list(fields) == ["url", "key", "model", "admin", "admin_token"]
    assert up.lines == [], "a start without trouble says nothing but the ready line"
    demo = tmp_path / "home" / "demo.json"
    assert json.loads(demo.read_text()) == fields
    assert stat.S_IMODE(demo.stat().st_mode) == 0o600
    answer = up.chat()
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
    up.until_replicas(READY_BOTH)
    assert set(up.admin("/statistics")["in_flight"].values()) == {0}
    assert len(up.seen) == 3
    assert up.end(signal.SIGINT) == 0
    assert "Traceback" not in up.stderr
    assert up.stderr.count('"event":"request.finished"') == 1, "the gateway's line alone, none of a worker"
    assert up.stderr.index("gateway.draining") < up.stderr.index("worker.draining"), "streams end through the gateway"
    assert not (tmp_path / "home" / "run").exists()


def test_sigterm_ends_it_with_exit_0_and_the_key_lives_on(warmlane):
    """A service manager stops it; a later start gives the same key and token."""
    first = warmlane("up")
    before = first.until_ready()
    assert first.end(signal.SIGTERM) == 0
    again = warmlane("up")
    after = again.until_ready()
    assert (after["key"], after["admin_token"]) == (before["key"], before["admin_token"])
    (key,) = again.admin("/keys")["data"]
    again.admin(f"/keys/{key['id']}", "DELETE")
    assert again.chat().status_code == 401
    assert again.end() == 0
    last = warmlane("up")
    assert last.until_ready()["key"] != before["key"]
    assert last.chat().status_code == 200
    assert last.end() == 0


def killed(up, program, event):
    """Kill its first child that runs this module; what the log then says of it."""
    seen = up.stderr.count(event)
    up.child(program).kill()
    up.until(lambda: up.stderr.count(event) > seen)
    return json.loads([line for line in up.lines if event in line][-1])


def test_a_killed_worker_is_started_again_and_the_gateway_knows(survivor):
    """The new process is another replica generation; requests go on."""
    expected = generations(survivor)
    lost = killed(survivor, "engines.worker", '"event":"worker.lost"')
    expected[lost["name"]] += 1
    until_ready_at(survivor, expected)
    assert [survivor.chat().status_code for _ in range(4)] == [200] * 4


def test_a_killed_gateway_comes_back_on_its_port_with_its_fleet(survivor):
    """Clients keep their URL although any free port was asked for."""
    expected = generations(survivor)
    killed(survivor, "gateway.process", '"event":"gateway.lost"')
    until_ready_at(survivor, expected)
    assert survivor.chat().status_code == 200


def is_alive(process):
    """Whether it still runs; an orphan that nobody reaps (a container without init) does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tie is Linux'")
def test_a_killed_supervisor_leaves_no_process(warmlane):
    """After kill -9 the ports and the memory are free, and the next start works."""
    up = warmlane("up")
    up.until_ready()
    up.process.kill()
    up.process.wait()
    until(lambda: not any(map(is_alive, up.seen.values())), lambda: up.seen)
    again = warmlane("up")
    again.until_ready()
    assert again.end() == 0


def test_a_second_up_in_the_same_home_is_refused(survivor):
    """And the first goes on."""
    second = survivor.start_another("up", config=FAKE.format(drain_s=5))
    assert second.exit_status() == 1
    assert f"another Warmlane (process {survivor.process.pid}) uses the home folder" in second.stderr
    assert "Traceback" not in second.stderr
    assert survivor.chat().status_code == 200


@contextmanager
def stalled_stream(up):
    """A streaming answer whose client reads only its first bytes, so that it never ends by itself."""
    host, port = up.fields["url"].removeprefix("http://").removesuffix("/v1").split(":")
    body = json.dumps(
        {"model": "fake-model", "stream": True, "max_tokens": 8000, "messages": [{"role": "user", "content": "x"}]}
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {up.fields['key']}\r\n"
        client.sendall(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        assert client.recv(15) == b"HTTP/1.1 200 OK"
        yield client


def test_the_second_signal_ends_it_at_once(warmlane):
    """A stalled client holds up a kind end for its whole drain time; a second Ctrl-C does not wait."""
    up = warmlane("up", drain_s=3600)
    up.until_ready()
    with stalled_stream(up):
        up.process.send_signal(signal.SIGINT)
        up.until_logged("gateway.draining")
        assert up.process.poll() is None
        assert up.end(signal.SIGINT) == 0


class HangingEngine(BaseHTTPRequestHandler):
    """Is well; a stream says one word and then nothing more."""

    def do_GET(self):
        """A probe."""
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self):
        """A chat, until the gateway hangs up."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n')
        self.rfile.read(1)

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture
def hanging_engine():
    """The URL of one, as a configured replica."""
    with ThreadingHTTPServer(("127.0.0.1", 0), HangingEngine) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_second_signal_tells_open_streams_before_it_ends_them(warmlane, hanging_engine):
    """A second Ctrl-C must not look like a broken connection to the clients."""
    replica = REPLICA.replace("http://127.0.0.1:9", hanging_engine).replace("far-model", "fake-model")
    up = warmlane("up", config="[gateway]\ndrain_s = {drain_s}\n" + replica, drain_s=3600)
    up.until_ready()
    up.until_replicas([("far", "ready", 0)])
    body = {"model": "fake-model", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    headers = {"authorization": f"Bearer {up.fields['key']}"}
    url = f"{up.fields['url']}/chat/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=PATIENCE_S) as answer:
        lines = answer.iter_lines()
        assert '"word"' in next(lines)
        up.process.send_signal(signal.SIGINT)
        up.until_logged("gateway.draining")
        up.process.send_signal(signal.SIGINT)
        told = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert [(one["error"]["code"], one["error"]["reason"]) for one in told] == [("503", "shutting_down")]
    assert up.exit_status() == 0


def test_the_drain_time_is_a_bound(warmlane):
    """One signal, a client that never reads: the end comes after the drain time, with exit 0."""
    up = warmlane("up", drain_s=0.2)
    up.until_ready()
    with stalled_stream(up):
        assert up.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_it_is_ready_ends_it_with_exit_0(warmlane, number):
    """Ctrl-C while the models load."""
    up = warmlane("up", config=FAKE + '[telemetry]\nlog_level = "debug"\n')
    up.until_logged(".started")
    assert up.end(number) == 0
    assert "Traceback" not in up.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_demo_model_is_fetched_ends_it_with_exit_0(warmlane, tmp_path, number):
    """Nothing was started yet; here another start holds the lock of the fetch."""
    models = tmp_path / "home" / "models"
    models.mkdir(parents=True)
    with (models / f"{DEMO_MODEL_NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        up = warmlane("up", config="")
        up.until_logged("waiting for another start")
        assert up.end(number) == 0
    assert "Traceback" not in up.stderr


def test_a_corrupt_model_is_one_sentence(warmlane, tmp_path):
    """The worker's own words, after a few tries, and nothing left."""
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    up = warmlane("up", config=f'[[workers]]\nmodel = "m"\npath = "{tmp_path / "bad.gguf"}"\n')
    assert up.exit_status() == 1
    sentence = up.stderr.strip().splitlines()[-1]
    assert sentence.startswith("warmlane: worker-1 (model m) does not start: ")
    assert "bad.gguf" in sentence
    assert "Traceback" not in up.stderr


def test_gateway_alone_starts_no_workers(warmlane):
    """Its workers belong to another machine; the key is made all the same."""
    gateway = warmlane("gateway", env={"WARMLANE_ADMIN_TOKEN": "a-token-of-my-own"})
    fields = gateway.until_ready()
    assert list(fields) == ["url", "key", "admin", "admin_token"]
    assert fields["admin_token"] == "a-token-of-my-own"
    assert len(gateway.seen) == 1
    assert gateway.admin("/replicas")["data"] == []
    assert gateway.end() == 0


def test_a_terminal_gets_a_greeting_with_a_first_request_and_closed_it_ends_it_kindly(warmlane):
    """For people, who could not stop it with Ctrl-C any more; scripts read only the line."""
    ours, theirs = pty.openpty()
    try:
        up = warmlane("up", stderr=theirs)
        up.until_ready()
        shown = b""
        while b"Ctrl-C stops it" not in shown or b"What is a cat?" not in shown:
            shown += os.read(ours, 65536)
    finally:
        os.close(theirs)
        os.close(ours)
    assert up.end(signal.SIGHUP) == 0


def test_a_changed_configuration_is_reloaded_without_an_end(warmlane, tmp_path):
    """By signal and by order; every process lives on, a bad file changes nothing, a restarted gateway has the same."""
    up = warmlane("up", config=TWO)
    up.until_ready()
    file = tmp_path / "config-0.toml"
    good = file.read_text().replace("drain_s = 5", "drain_s = 6") + REPLICA
    file.write_text(good)
    for process in (up.process, *up.children()):
        process.send_signal(signal.SIGHUP)
    up.until_logged('"event":"config.reloaded"')
    (line,) = [json.loads(line) for line in up.lines if "config.reloaded" in line]
    assert (line["changed"], line["needs_restart"]) == (["replicas"], ["gateway.drain_s"])
    assert {one["name"] for one in up.admin("/replicas")["data"]} == {"far", "worker-1", "worker-2"}
    file.write_text(good + "[gatway]\nport = 1\n")
    up.process.send_signal(signal.SIGHUP)
    up.until_logged('"event":"config.not_reloaded"')
    assert "unknown section [gatway]; did you mean [gateway]?" in up.stderr
    up.child("gateway.process").kill()
    up.until_logged('"event":"gateway.lost"')
    up.until_replicas([("far", "joining", 0), *READY_BOTH])
    file.write_text(good.replace(REPLICA, ""))
    assert up.admin("/config/reload", "POST") == {"changed": ["replicas"], "needs_restart": ["gateway.drain_s"]}
    up.until_replicas(READY_BOTH)
    assert up.chat().status_code == 200
    assert up.end() == 0


def test_a_log_that_nobody_reads_holds_up_no_request(warmlane):
    """A stuck log shipper, or Ctrl-S in the terminal; much more is logged than all the pipes hold."""
    reading, writing = os.pipe()
    try:
        up = warmlane("up", stderr=writing, config=FAKE + '[telemetry]\nlog_level = "debug"\n')
        fields = up.until_ready()
        body = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        headers = {"authorization": f"Bearer {fields['key']}"}
        with httpx.Client(base_url=fields["url"], headers=headers, timeout=PATIENCE_S) as client:
            asked = {client.post("/chat/completions", json=body).status_code for _ in range(600)}
        assert asked == {200}
        assert up.admin("/statistics")["in_flight"]["requests"] == 0
        assert up.end(signal.SIGTERM) == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_a_drain_outlives_the_gateway_and_the_worker(survivor):
    """Maintenance must not end because a process fell."""
    expected = generations(survivor)
    for name in ("worker-1", "far"):
        survivor.admin(f"/replicas/{name}/drain", "POST")
    killed(survivor, "gateway.process", '"event":"gateway.lost"')
    draining = [("far", "draining", 0), ("worker-1", "draining", expected["worker-1"])]
    survivor.until_replicas([*draining, ("worker-2", "ready", expected["worker-2"])])
    lost = killed(survivor, "engines.worker", '"event":"worker.lost"')["name"]
    expected[lost] += 1
    draining = [("far", "draining", 0), ("worker-1", "draining", expected["worker-1"])]
    survivor.until_replicas([*draining, ("worker-2", "ready", expected["worker-2"])])
    for name in ("worker-1", "far"):
        survivor.admin(f"/replicas/{name}/resume", "POST")
    states = {one["name"]: one["state"] for one in survivor.admin("/replicas")["data"]}
    assert states["worker-1"] == "ready"
    until_ready_at(survivor, expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_libraries_load_ends_it_with_exit_0(tmp_path, number):
    """The first second of `warmlane up`; what is slow to load stands in for what loads in no time here."""
    (tmp_path / "typer.py").write_text("import sys, time\nsys.stderr.write('loading\\n')\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "gateway", "up", "--home", str(tmp_path / "home")],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])},
    ) as process:
        assert process.stderr.readline() == b"loading\n"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == b""
