"""A SQLite file has one Warmlane at a time; the lock goes with the process, and readers ask for none."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from policies.sqlite_lock import lock_path, sqlite_held
from policies.sqlite_store import SqliteStore
from policies.store import StoreError

HOLDER = """
import sys, time
from pathlib import Path
from policies.sqlite_lock import sqlite_held
with sqlite_held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds `store`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "store")], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def held_now(path):
    """Whether it can be had now."""
    with sqlite_held(path):
        return True


def test_a_second_process_is_refused_and_told_who_and_what_to_do(tmp_path, holder):
    """P16: two would each grant the whole of every limit."""
    with pytest.raises(StoreError) as refused, sqlite_held(tmp_path / "store"):
        pass
    for word in (f"process {holder.pid}", str(tmp_path / "store"), "stop it", "store.url", "Redis"):
        assert word in str(refused.value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_ends_with_its_process(tmp_path, holder, number):
    """kill -9 leaves a file and no lock."""
    holder.send_signal(number)
    holder.wait()
    assert lock_path(tmp_path / "store").exists()
    assert held_now(tmp_path / "store")


def test_a_link_to_the_file_is_the_file(tmp_path, holder):
    """Another name in another folder makes no other store."""
    (tmp_path / "other").mkdir()
    for link, target in (("link", tmp_path / "store"), ("other/link", tmp_path / "link")):
        (tmp_path / link).symlink_to(target)
        with pytest.raises(StoreError, match="serves from the store"):
            held_now(tmp_path / link)


def test_it_can_be_had_again_when_it_was_let_go(tmp_path):
    """Also after a failure inside; other files are no concern."""
    with pytest.raises(ZeroDivisionError), sqlite_held(tmp_path / "new" / "store"):
        assert held_now(tmp_path / "new" / "other")
        raise ZeroDivisionError
    assert held_now(tmp_path / "new" / "store")
    assert lock_path(tmp_path / "new" / "store").stat().st_mode & 0o777 == 0o600


async def test_who_only_reads_needs_no_lock(tmp_path, holder):
    """The doctor and gateways open the file beside its holder."""
    async with await SqliteStore.open(tmp_path / "store") as store:
        assert await store.organizations()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    """One sentence, no trace."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be held"):
        held_now(tmp_path / "file" / "store")
