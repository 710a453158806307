"""Mistakes in a configuration: every one is told, with its place, what must be there and what was probably meant."""

# ruff: noqa: F811  # fixtures of a module are named again where they are asked for

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.config_file import MAX_FILE_BYTES
from gateway.settings import ConfigError, Settings, load
from tests.gateway.config_files import REPLICA, bare_environment, complaint, file  # noqa: F401  # fixtures


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", 'unknown key "x"'),
        ("prot = 1", 'unknown key "prot"'),
        ("[nosuch]\na = 1", "unknown section [nosuch]"),
        ("[gatway]\na = 1", "unknown section [gatway]; did you mean [gateway]?"),
        ("[[worker]]\na = 1", "unknown section [[worker]]; did you mean [[workers]]?"),
        ("[gateway]\nproceses = 1", '[gateway] unknown key "proceses"; did you mean "processes"?'),
        ("[gateway]\nPort = 1", '[gateway] unknown key "Port"; did you mean "port"?'),
        ("[gateway]\nidle_s = 1", '[gateway] unknown key "idle_s"; it is a key of [timeouts]'),
        ("[gateway]\nzzz = 1", '[gateway] unknown key "zzz"'),
        ("[lanes.fast]\nqueue = 1", "unknown section [lanes.fast]"),
        ("[lanes.bulck]\nqueue = 1", "unknown section [lanes.bulck]; did you mean [lanes.bulk]?"),
        ("[lanes.bulk]\nquue = 1", '[lanes.bulk] unknown key "quue"; did you mean "queue"?'),
        ("[lanes.standard]\nlift_after_s = 1", '[lanes.standard] unknown key "lift_after_s"'),
        ("lanes = 1", "[lanes] must be a section"),
        ("[lanes]\nbulk = 1", '[lanes] "bulk" must be a section'),
        ("[lanes.bulk]\nlabels = 1", '[lanes.bulk] "labels" must be a table'),
        ("[lanes.bulk.labels]\nzone = 1", '[lanes.bulk] "labels.zone" must be text'),
        ('gateway = "x"', "[gateway] must be a section"),
        ("replicas = 5", "[replicas] must be a list"),
        ("replicas = [5]", "[[replicas]] number 1 must be a section"),
        ('[telemetry]\nlog_level = "loud"', "[telemetry] \"log_level\" must be 'debug', 'info', 'warning' or 'error'"),
        ("[gateway]\nhost = 5", '[gateway] "host" must be text'),
        ('[[models]]\naliases = ["a"]', '[[models]] number 1: "name" is missing'),
        ('[[models]]\nname = "a\\n"', '[[models]] number 1: "name": use 1 to 128'),
        ('[[models]]\nname = ""', '[[models]] number 1 "": "name": use 1 to 128'),
        ('[[models]]\nname = "-a"', '[[models]] number 1 "-a": "name": use 1 to 128'),
        ('[[models]]\nname = "a"\naliases = "b"', '[[models]] number 1 "a": "aliases" must be a list'),
        ('[[models]]\nname = "a"\naliases = ["b", "c d"]', '[[models]] number 1 "a": "aliases" number 2: use 1 to 128'),
        ('[[models]]\nname = "a"\ncontext_tokens = 0', '[[models]] number 1 "a": "context_tokens" must be at least 1'),
        (REPLICA.format(url="http://a") + "seats = 0", '[[replicas]] number 1 "r1": "seats" must be at least 1'),
        (REPLICA.format(url="http://a") + "seat = 4", 'number 1 "r1": unknown key "seat"; did you mean "seats"?'),
        (REPLICA.format(url="http://a").replace("vllm", "hal"), '[[replicas]] number 1 "r1": "engine" must be '),
        ('[[workers]]\nmodel = "m"\nkv_tokens = 1', '[[workers]] number 1: "kv_tokens" must be at least 256'),
        ('[[workers]]\nmodel = "m"\nengine = "paged"', "[[workers]] number 1: \"engine\" must be 'gguf' or 'fake'"),
        ('[[workers]]\nmodel = "m"\n[[workers]]\n', '[[workers]] number 2: "model" is missing'),
    ],
)
def test_every_mistake_is_told_with_its_place_and_what_was_meant(file, text, sentence):
    """An operator must find the line, and not look up the key."""
    path = file(text)
    assert f"{path}: {sentence}" in complaint(path) or (f"{path}: [" in complaint(path) and sentence in complaint(path))
    assert "pydantic" not in complaint(path)


def test_all_mistakes_are_told_at_once(file, monkeypatch):
    """Not one at a time."""
    path = file("[gateway]\nport = -1\nhost = 5\n[timeouts]\nidle_s = 0\n")
    monkeypatch.setenv("WARMLANE_RETRIES__MAX_ATTEMPTS", "many")
    monkeypatch.setenv("WARMLANE_TIMEOUTS__IDEL_S", "1")
    assert sorted(complaint(path).splitlines()) == sorted(
        [
            f'{path}: [gateway] "port" must be at least 0',
            f'{path}: [gateway] "host" must be text',
            f'{path}: [timeouts] "idle_s" must be above 0',
            'the environment: [retries] "max_attempts" must be a whole number',
            'the environment: [timeouts] unknown key "idel_s"; did you mean "idle_s"?',
        ]
    )


@pytest.mark.parametrize(
    "text", ['[store]\nurl = ["redis://:hunter2@h/0"]', '[[replicas]]\nurl = "http://u:hunter2@a"']
)
def test_no_value_is_repeated(file, text):
    """It may be a password, and the sentence goes into logs."""
    assert "hunter2" not in complaint(file(text))


KEYS = st.sampled_from(
    ["gateway", "port", "lanes", "bulk", "labels", "models", "name", "aliases", "replicas", "x", "0"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
@hypothesis_settings(max_examples=200, deadline=None)
def test_any_values_are_settings_or_sentences(values):
    """The words for a mistake must not be a mistake of their own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        path.write_text(json.dumps(values))
        try:
            assert isinstance(load(path), Settings)
        except ConfigError as error:
            told = str(error).splitlines()
        else:
            return
    assert all(line.startswith((f"{path}: ", "the environment: ")) for line in told)


def test_settings_in_force_can_be_handed_on_as_json(file, tmp_path):
    """A gateway process is given them so: the same values, whatever became of the file."""
    settings = load(file("[lanes.bulk]\nqueue = 7\nlabels = {zone = 'a'}\n" + REPLICA.format(url="http://a")))
    handed = tmp_path / "settings.json"
    handed.write_text(settings.model_dump_json())
    assert load(handed) == settings
    handed.write_text("[1]")
    assert "is not JSON" in complaint(handed)


@pytest.fixture
def pipe(tmp_path):
    """A named pipe that nobody writes to."""
    os.mkfifo(tmp_path / "w.toml")
    return tmp_path / "w.toml"


def test_a_pipe_is_refused_and_not_waited_for(pipe):
    """Whoever opens one waits until somebody writes: a reload would never end."""
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*w\.toml: it is no regular file"):
        load(pipe)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/tty", "/"])
def test_what_is_no_regular_file_is_refused(path):
    """A device may give for ever, or nothing, which would be the defaults."""
    with pytest.raises(ConfigError, match=f"cannot read the configuration {path}: "):
        load(Path(path))


@pytest.mark.parametrize("name", ["w.toml", "w.json"])
def test_a_file_that_is_far_too_large_is_refused_unread(tmp_path, name):
    """A log under the name of a configuration; a sparse file of a terabyte."""
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="has more than 1024 KiB"):
        load(tmp_path / name)


def test_a_file_of_the_largest_size_is_read(tmp_path):
    """The bound itself is allowed; so is a link to a file."""
    (tmp_path / "w.toml").write_bytes(b"#" * MAX_FILE_BYTES)
    (tmp_path / "link.toml").symlink_to(tmp_path / "w.toml")
    assert load(tmp_path / "link.toml") == Settings()
