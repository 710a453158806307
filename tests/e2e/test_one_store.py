"""Two Warmlanes with homes of their own and one SQLite file: the second is refused, or every limit would hold twice."""

import asyncio
import os
import subprocess
import sys

import pytest

from tests.e2e.conftest import assert_quiescent
from tests.scripted_engine import ScriptedEngine, answer
from tests.warmlane_process import PATIENCE_S, commands

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

REPLICA = '[[replicas]]\nname = "r"\nmodel = "fake-model"\nengine = "vllm"\nurl = "%s"\n'


def ran(home, *words):
    """A command that reads, beside whatever runs: its exit status and all it said."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARMLANE_")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *words],
        env={**clean, "WARMLANE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


async def test_a_store_is_served_from_one_home_at_a_time(tmp_path):
    """The sentence names the other process; readers work beside it; after kill -9 the other home may have the file."""
    async with ScriptedEngine(model="fake-model") as engine:
        engine.default = answer("Hi")
        exit_status, stderr = await asyncio.to_thread(_serve_from_two_homes, tmp_path, REPLICA % engine.url)
    assert exit_status == 0, stderr


def _serve_from_two_homes(tmp_path, replica):
    """How the heir of the killed one ended: its exit status and what it wrote."""
    store = tmp_path / "shared" / "warmlane.sqlite3"
    config = f'[store]\nurl = "sqlite:///{store}"\n{replica}'
    one, other = tmp_path / "a" / "home", tmp_path / "b" / "home"
    one.parent.mkdir()
    other.parent.mkdir()
    with commands(one) as start, commands(other) as start_other:
        first = start("gateway", config=config)
        first.until_ready()
        first.until_replicas([("r", "ready", 0)])
        second = start_other("gateway", config=config)
        assert second.exit_status() == 1
        assert f"another Warmlane (process {first.process.pid}) serves from the store {store}" in second.stderr
        assert "store.url" in second.stderr
        assert "Traceback" not in second.stderr

        assert first.chat().status_code == 200
        config_file = str(one.parent / "config-0.toml")
        code, told = ran(other, "backup", str(tmp_path / "copy"), "--config", config_file)
        assert code == 0, told
        assert (tmp_path / "copy" / store.name).exists()
        _, told = ran(other, "doctor", "--json", "--config", config_file)
        assert f"{store}: 1 organisation, 1 project, 1 key" in told
        where = ("--url", first.fields["admin"], "--token", first.fields["admin_token"])
        code, told = ran(other, "usage", "export", *where, "--out", str(tmp_path / "rows.csv"))
        assert code == 0, told
        assert first.chat().status_code == 200
        assert_quiescent(first)

        first.process.kill()
        first.process.wait()
        again = start_other("gateway", config=config)
        again.until_ready()
        return again.end(), again.stderr
