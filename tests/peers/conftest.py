"""The gateways that the peers' clients talk to: one before an obedient engine, one before the demo model. Both are
processes of the repository's own environment; the tests here run in another one.
"""

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv" / "bin" / "python"
PATIENCE_S = 60


@dataclass(frozen=True)
class Gateway:
    """Where it is. `url` ends with `/v1`."""

    url: str
    key: str
    model: str

    @property
    def root(self):
        """What Anthropic's clients are given."""
        return self.url.removesuffix("/v1")


def _environment(**more):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WARMLANE_", "PYTHON"))}
    return clean | more


@pytest.fixture(scope="session")
def gateway():
    """A gateway before an engine that does what it is told; see serve.py."""
    command = [PYTHON, "-m", "tests.peers.serve"]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
    )
    with _ended(process):
        line = process.stdout.readline()
        while line and not line.startswith("{"):
            line = process.stdout.readline()
        yield Gateway(**json.loads(line))
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0, "a request was still held when all tests were done"


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """`warmlane up`: a gateway, its workers and the demo model, as `make run` starts them."""
    home = tmp_path_factory.mktemp("demo") / "home"
    models = REPOSITORY / ".warmlane" / "models"
    models.mkdir(parents=True, exist_ok=True)
    home.mkdir()
    (home / "models").symlink_to(models)
    command = [PYTHON, "-m", "gateway", "up", "--port", "0", "--admin-port", "0"]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, env=_environment(WARMLANE_HOME=str(home))
    )
    with _ended(process):
        ready = dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
        yield Gateway(ready["url"], ready["key"], ready["model"])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


@contextlib.contextmanager
def _ended(process):
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
