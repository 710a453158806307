"""A real Redis for tests: on a free port, in a folder of its own, that can be paused, killed and started again.

Without the `redis-server` program its tests skip, and say so; with `CI=true` they fail.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

START_S = 10.0


class RedisServer:
    """One server process at a time; `restart` starts another on the same port, which remembers nothing."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self._folder = folder
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Run it and wait until it answers."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        command += [str(self._folder), *options]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        ends_at = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > ends_at:
                pytest.fail(f"redis-server did not start: {(self._folder / 'redis.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def client(self) -> redis.Redis:
        """A plain client to look with; close it."""
        return redis.Redis.from_url(self.url, socket_timeout=5, protocol=2)

    def pause(self) -> None:
        """Freeze it: connections stay, nothing is answered."""
        self._running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._running.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it with nothing saved. Harmless the second time."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, *options: str) -> None:
        """Kill it and start an empty one in its place."""
        self.kill()
        self.start(*options)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed."""
        return self._process is not None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@pytest.fixture(scope="session")
def redis_program() -> None:
    """The program is there, or the test skips (fails with CI=true)."""
    if shutil.which("redis-server") is None:
        sentence = "redis-server is not installed, so nothing about several gateways is tested here"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)


@pytest.fixture(scope="session")
def shared_redis(redis_program: None) -> Iterator[RedisServer]:
    """One server for all tests of the run that leave it running; they use prefixes of their own, or flush it."""
    yield from _running()


@pytest.fixture
def redis_server(redis_program: None) -> Iterator[RedisServer]:
    """A server for one test, which may pause, kill and restart it."""
    yield from _running()


def _running() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="warmlane-redis-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
