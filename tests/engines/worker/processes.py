"""A worker as a process of its own."""

import json
import signal
import subprocess
import sys
import tempfile
import time

import httpx

from engines.launch.ready_line import parse_ready_line

PATIENCE_S = 30


class WorkerProcess:
    """Started and ready inside `with`; killed, if need be, at its end. `logs` are its lines on stderr so far."""

    def __init__(self, *options: str):
        self._options = options
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engines.worker", *self._options], stdout=subprocess.PIPE, stderr=self._errors
        )
        self.first_line = self.process.stdout.readline().decode()
        self.ready = parse_ready_line(self.first_line)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._errors.close()

    @property
    def url(self) -> str:
        """Without `/v1`."""
        return self.ready.base_url

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port

    @property
    def stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    @property
    def logs(self) -> list[dict]:
        return [json.loads(line) for line in self.stderr.splitlines()]

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        self.signal()
        return self.wait()

    def load(self) -> dict:
        return httpx.get(f"{self.url}/load").json()


def until(claim, patience_s=PATIENCE_S):
    """Wait until `claim()` is true; its value. Polls what another process does, which no event can tell us."""
    deadline = time.monotonic() + patience_s
    while not (value := claim()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
    return value
