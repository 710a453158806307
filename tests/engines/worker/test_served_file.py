"""A model file that is written to while it is served."""

import asyncio
import os

import pytest

from engines.gguf.tiny_model import write_tiny_model
from engines.worker.served_file import ServedFile, until_changed
from tests.engines.worker.processes import WorkerProcess

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def path(tmp_path):
    """A file of a megabyte."""
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    return path


def overwrite(path):
    """Another content in place, of the same size, as `cp` would."""
    path.write_bytes(bytes(len(CONTENT)))


@pytest.mark.parametrize(
    ("change", "is_noticed"),
    [
        (overwrite, True),
        (lambda path: os.truncate(path, 10), True),
        (lambda path: path.write_bytes(CONTENT + b"more"), True),
        (lambda path: os.utime(path, (1, 1)), False),
        (lambda path: path.unlink(), False),
        (lambda path: (path.rename(path.with_name("old")), path.write_bytes(b"new")), False),
        (lambda _: None, False),
    ],
    ids=["overwritten", "truncated", "longer", "touched", "removed", "replaced", "left alone"],
)
def test_a_change_in_place_is_noticed_and_no_other(path, change, is_noticed):
    """Whoever has a file open keeps it when its name goes or means another."""
    file = ServedFile.of(path)
    change(path)
    assert file.is_changed() == is_noticed


def test_a_file_that_cannot_be_read_is_none(tmp_path):
    """The loader says what is wrong with it."""
    assert ServedFile.of(tmp_path / "missing") is None
    assert ServedFile.of(tmp_path) is None
    os.mkfifo(tmp_path / "pipe")
    assert ServedFile.of(tmp_path / "pipe") is None


async def test_it_is_waited_for(path):
    """And never comes where there is no file."""
    changed, never = (asyncio.ensure_future(until_changed(file, 0.001)) for file in (ServedFile.of(path), None))
    await asyncio.sleep(0)
    overwrite(path)
    await changed
    assert not never.done()
    never.cancel()


@pytest.mark.e2e
def test_a_worker_whose_model_is_overwritten_ends_with_one_sentence(tmp_path):
    """Not with noise for answers, or with SIGBUS and no word; the supervisor starts it again with what is there."""
    path = tmp_path / "m.gguf"
    write_tiny_model(path)
    with WorkerProcess(
        *("--engine", "gguf", "--path", str(path), "--home", str(tmp_path), "--kv-tokens", "256"),
        *("--threads", "1", "--threads-batch", "1"),
    ) as worker:
        path.write_bytes(bytes(path.stat().st_size))
        assert worker.wait() == 1
        last = worker.stderr.splitlines()[-1]
        assert last.startswith(f"warmlane worker: the model file {path} was written to")
