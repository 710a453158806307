"""Who serves a model file, read off command lines."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.launch.model_users import paths_of, workers_of

_SLEEPER = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def model(tmp_path):
    """A file that could be a model."""
    path = tmp_path / "m.gguf"
    path.touch()
    return path


@pytest.fixture
def process(tmp_path):
    """Starts a process with arguments like a worker's, which waits until the test's end."""
    started = []

    def start(*arguments, cwd=tmp_path, program="engines.worker"):
        command = [sys.executable, "-c", _SLEEPER, "-m", program, *map(str, arguments)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
        started.append(child)
        child.stdout.readline()
        return child.pid

    yield start
    for child in started:
        child.communicate()


def test_a_worker_of_the_file_is_found(model, process):
    """However its path is spelled."""
    pids = [process("--path", model), process(f"--path={model}"), process("--path", "m.gguf")]
    assert workers_of(model) == sorted(pids)


def test_others_are_not(model, process, tmp_path):
    """Another file, another program, no path at all."""
    (tmp_path / "n.gguf").touch()
    process("--path", tmp_path / "n.gguf")
    process("--path", model, program="engines.gguf.header")
    process("--path")
    process("--path", "gone.gguf")
    assert workers_of(model) == []


def test_a_worker_through_a_link_counts_for_the_file_and_not_the_other_way_round(model, process, tmp_path):
    """Of a link only the link goes: who names the file itself loses nothing."""
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    pid = process("--path", link)
    assert workers_of(model) == [pid]
    assert workers_of(link) == [pid]
    link2 = tmp_path / "link2.gguf"
    link2.symlink_to(model)
    assert workers_of(link2) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["--path", "--path=", "--path=a", "a", "", "-m"])))
def test_any_command_line_can_be_read(command):
    """Other people's programs have any arguments."""
    assert all(isinstance(path, str) for path in paths_of(command))
