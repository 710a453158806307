"""The command `warmlane`, as a shell sees it."""

import contextlib
import json
import os
import subprocess
import sys

import click
import pytest
import typer
from typer.testing import CliRunner

from gateway.cli import app
from gateway.ports import listen_on
from gateway.settings import load

COMMAND = [sys.executable, "-m", "gateway"]


def run(*words, env=None, timeout=60):
    """One command in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARMLANE_")}
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, env={**clean, **(env or {})}, timeout=timeout, check=False
    )


def every_command(group, path=()):
    """All commands below a group, with their words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_command(command, (*path, name))
        else:
            yield (*path, name), command


def commands():
    """All commands of `warmlane`."""
    return list(every_command(typer.main.get_command(app)))


@pytest.mark.parametrize(
    ("words", "command"), commands(), ids=lambda part: " ".join(part) if isinstance(part, tuple) else ""
)
def test_every_command_has_an_example(words, command):
    """The contract: `--help` shows how it is used."""
    assert command.epilog is not None, words
    assert f"warmlane {' '.join(words)}" in command.epilog
    assert command.help


def test_the_commands_of_the_contract_exist():
    """Scripts call them by name."""
    assert {words[0] for words, _ in commands()} >= {
        "up",
        "gateway",
        "worker",
        "doctor",
        "org",
        "project",
        "key",
        "limits",
        "replica",
        "receipt",
        "model",
    }


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-command"],
        ["up", "--no-such-option"],
        ["up", "--port", "65536"],
        ["up", "--port", "many"],
        ["gateway"],
        ["doctor", "surplus"],
        ["key", "create"],
    ],
)
def test_bad_usage_is_exit_2(words):
    """Scripts tell their own mistakes from failures."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit | click.exceptions.Exit)


@pytest.mark.parametrize(
    "words", [[], ["up"], ["key", "create"], ["simulate"], ["plan"], ["calibrate"], ["replay"], ["prefixes"]]
)
def test_help_is_exit_0(words):
    """And it says what the command does."""
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output


def fails(result, *sentences):
    """One clear sentence on stderr, exit 1, no traceback, nothing for scripts."""
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    for sentence in sentences:
        assert sentence in result.stderr
    assert result.stderr.splitlines()[0].startswith("warmlane: ")


def test_a_configuration_that_is_not_there_is_one_sentence(tmp_path):
    """A wrong path."""
    result = run("up", "--config", str(tmp_path / "no.toml"), "--home", str(tmp_path / "h"))
    fails(result, "cannot read the configuration")
    assert not (tmp_path / "h").exists()


def test_a_bad_configuration_names_every_bad_key(tmp_path):
    """And nothing is started."""
    (tmp_path / "bad.toml").write_text("[gateway]\nprot = 1\n[[workers]]\nmodel = 'm'\ncount = 0\n")
    fails(
        run("up", "--config", str(tmp_path / "bad.toml"), "--home", str(tmp_path / "h")),
        '[gateway] unknown key "prot"',
        '"count"',
    )


def test_a_taken_port_is_said_before_anything_is_started(tmp_path):
    """No model is fetched for a start that cannot succeed."""
    with contextlib.closing(listen_on("127.0.0.1", 0, remedy="")) as taken:
        port = str(taken.getsockname()[1])
        home = ["--home", str(tmp_path / "h")]
        sentence = f"port {port} on 127.0.0.1 is taken; choose another with"
        fails(run("up", "--port", port, "--admin-port", "0", *home), sentence, "--port or WARMLANE_PORT")
        env = {"WARMLANE_ADMIN_PORT": port, "WARMLANE_PORT": "0"}
        fails(run("up", *home, env=env), sentence, "--admin-port or WARMLANE_ADMIN_PORT")
        fails(run("up", "--port", "9", "--admin-port", "9", *home), "cannot share port 9")
    assert not (tmp_path / "h" / "models").exists()


def test_a_missing_model_file_is_one_sentence(tmp_path):
    """`--model` with a typing error."""
    result = run("up", "--port", "0", "--admin-port", "0", "--model", "no.gguf", "--home", str(tmp_path))
    fails(result, "no.gguf does not exist")


def test_a_home_that_cannot_be_made_is_one_sentence(tmp_path):
    """A file stands in its place; the environment names it."""
    (tmp_path / "file").write_text("")
    fails(run("up", "--port", "0", "--admin-port", "0", env={"WARMLANE_HOME": str(tmp_path / "file")}), "is a file")


def test_an_empty_home_is_refused(tmp_path):
    """A script's unset variable must not fill the current folder."""
    result = run("up", "--port", "0", "--admin-port", "0", "--home", "")
    assert result.returncode == 2
    assert "it is empty" in result.stderr


def test_a_misspelt_variable_is_said_at_the_start(tmp_path):
    """One warning in the log."""
    result = run(
        "up",
        "--model",
        "no.gguf",
        "--home",
        str(tmp_path / "h"),
        env={"WARMLANE_PROT": "1", "WARMLANE_PORT": "0", "WARMLANE_ADMIN_PORT": "0"},
    )
    assert '"event":"environment.overlooked"' in result.stderr
    assert "WARMLANE_PROT is no setting" in result.stderr


def test_the_doctor_writes_json_and_its_exit_code_says_whether_all_is_well(tmp_path):
    """For scripts."""
    options = ["doctor", "--json", "--port", "0", "--admin-port", "0", "--home", str(tmp_path / "h")]
    well = run(*options)
    assert well.returncode == 0
    report = json.loads(well.stdout)
    assert report["is_sound"] is True
    assert {"check", "health", "detail"} == set(report["findings"][0])
    (tmp_path / "bad.toml").write_text("[gateway]\nport = -1\n")
    ill = run(*options, "--config", str(tmp_path / "bad.toml"))
    assert ill.returncode == 1
    assert json.loads(ill.stdout)["is_sound"] is False


def test_the_doctor_shows_a_table_with_whole_lines(tmp_path):
    """For people, and for a pipe."""
    result = run("doctor", "--port", "0", "--admin-port", "0", "--home", str(tmp_path / "h"))
    assert result.returncode == 0
    assert "the library loads" in result.stdout


def test_worker_hands_everything_to_the_worker_program():
    """Its own options, its own exit code, its own help."""
    help_text = run("worker", "--help")
    assert help_text.returncode == 0
    assert "--kv-tokens" in help_text.stdout
    assert "Example" in help_text.stdout
    assert run("worker", "--engine", "nonsense").returncode == 2


def test_the_three_environment_names_beside_the_settings_are_no_settings(monkeypatch, tmp_path):
    """`WARMLANE_PORT` moves the port of `up`; the configuration does not trip over it."""
    monkeypatch.setenv("WARMLANE_HOME", str(tmp_path))
    monkeypatch.setenv("WARMLANE_PORT", "9")
    monkeypatch.setenv("WARMLANE_ADMIN_PORT", "10")
    monkeypatch.setenv("WARMLANE_ADMIN_TOKEN", "x" * 20)
    monkeypatch.setenv("WARMLANE_GATEWAY__DRAIN_S", "7")
    settings = load(None)
    assert (settings.gateway.port, settings.gateway.admin_port, settings.gateway.drain_s) == (8080, 8081, 7)
