"""The home folder and its secrets."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.home import Home, HomeError, home_path, store_path, write_private
from gateway.settings import ConfigError


@pytest.fixture
def home(tmp_path):
    """A made home folder."""
    made = Home(tmp_path / "home")
    made.create()
    return made


def mode(path):
    """The permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_the_flag_wins_over_the_environment_and_the_default(tmp_path, monkeypatch):
    """Where the home folder comes from."""
    monkeypatch.chdir(tmp_path)
    assert home_path(Path("a"), {"WARMLANE_HOME": "b"}) == tmp_path / "a"
    assert home_path(None, {"WARMLANE_HOME": "b"}) == tmp_path / "b"
    assert home_path(None, {"WARMLANE_HOME": ""}) == tmp_path / ".warmlane"


def test_the_folder_is_private_and_making_it_twice_is_harmless(home):
    """It holds keys."""
    home.create()
    assert mode(home.path) == 0o700


def test_a_file_in_the_place_of_the_folder_is_a_clear_error(tmp_path):
    """One sentence that says what to do."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(HomeError, match="is a file; choose another with --home"):
        Home(tmp_path / "taken").create()
    with pytest.raises(HomeError, match="cannot be made"):
        Home(tmp_path / "taken" / "below").create()


def test_a_home_is_held_by_one(home):
    """Two supervisors in one home would fight over sockets and keys; the sentence names the other."""
    with home.held():
        assert home.holder() == str(os.getpid())
        with pytest.raises(HomeError, match=f"process {os.getpid()}"), home.held():
            pass
        assert home.holder() == str(os.getpid())
    assert home.holder() is None
    with home.held():
        pass


def test_a_killed_holder_holds_nothing(home):
    """After kill -9 the next start works without cleaning up by hand."""
    code = f"""
import os, signal
from pathlib import Path
from gateway.home import Home
with Home(Path({str(home.path)!r})).held():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert home.holder() is None
    with home.held():
        pass


def test_sockets_live_in_the_home_and_are_removed(home):
    """A killed run's sockets do not stop the next."""
    (home.path / "run").mkdir()
    (home.path / "run" / "stale.sock").write_text("")
    with home.sockets() as folder:
        assert folder == home.path / "run"
        assert mode(folder) == 0o700
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def test_a_folder_for_sockets_that_cannot_be_made_is_a_clear_error(home):
    """A file stands in its place."""
    (home.path / "run").write_text("")
    with pytest.raises(HomeError, match="no folder for sockets"), home.sockets():
        pass


def test_a_long_home_path_gets_its_sockets_elsewhere(tmp_path):
    """The kernel takes about a hundred bytes of a socket's path."""
    home = Home(tmp_path / ("x" * 100))
    home.create()
    with home.sockets() as folder:
        assert len(os.fsencode(folder / "gateway-99.sock")) < 104
        assert mode(folder) == 0o700
    assert not folder.exists()


def test_the_admin_token_is_made_once_and_kept(home):
    """Scripts and people may keep it."""
    token = home.admin_token({})
    assert len(token) >= 32
    assert home.admin_token({}) == token
    assert mode(home.path / "admin_token") == 0o600


def test_the_environment_gives_the_admin_token(home):
    """Then nothing is written."""
    assert home.admin_token({"WARMLANE_ADMIN_TOKEN": "a-token-of-my-own"}) == "a-token-of-my-own"
    assert not (home.path / "admin_token").exists()


@pytest.mark.parametrize("token", ["short", "with a space in between", "x" * 513, "ümläute-in-the-token"])
def test_a_token_that_would_break_the_ready_line_or_is_weak_is_refused(home, token):
    """A weak admin token opens everything."""
    with pytest.raises(HomeError, match="WARMLANE_ADMIN_TOKEN must have 16"):
        home.admin_token({"WARMLANE_ADMIN_TOKEN": token})


@pytest.mark.parametrize("content", [None, "", "{", "[]", '"x"'])
def test_a_demo_file_that_is_not_ours_is_taken_for_none(home, content):
    """It is only a hint for the next start."""
    if content is not None:
        home.demo.write_text(content)
    assert home.read_demo() == {}


def test_a_private_file_is_written_whole_with_its_mode(home):
    """Also over a file that others could read, and past the rest of an interrupted write."""
    path = home.path / "demo.json"
    path.write_text("old")
    path.chmod(0o644)
    (home.path / f".demo.json.{os.getpid()}").write_text("half")
    write_private(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o600)
    assert [one.name for one in home.path.iterdir()] == ["demo.json"]


def test_a_file_that_cannot_be_written_is_a_clear_error(tmp_path):
    """One sentence that names it."""
    with pytest.raises(HomeError, match=r"demo\.json cannot be written: No such file"):
        write_private(tmp_path / "absent" / "demo.json", "x")


def test_the_store_is_in_the_home_unless_it_is_said_otherwise(tmp_path):
    """The forms of store.url that this version knows."""
    assert store_path("", tmp_path) == tmp_path / "warmlane.sqlite3"
    assert store_path("sqlite:///a/b.db", tmp_path) == Path("a/b.db")
    assert store_path("sqlite:////a/b.db", tmp_path) == Path("/a/b.db")


@pytest.mark.parametrize("url", ["redis://x", "sqlite://x", "sqlite:///", "postgres:///x", "/a/b.db"])
def test_other_stores_are_refused(tmp_path, url):
    """Not taken for a file of that name."""
    with pytest.raises(ConfigError, match=r"store\.url"):
        store_path(url, tmp_path)


def test_checking_a_home_makes_nothing_and_fails_like_making_it(tmp_path):
    """The doctor only looks."""
    Home(tmp_path / "a" / "b").check()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(HomeError):
            Home(path).check()


def test_a_kept_token_that_others_can_read_is_made_private_again(home):
    """A copy from elsewhere, or a careless chmod."""
    token = home.admin_token({})
    path = home.path / "admin_token"
    path.chmod(0o644)
    assert home.admin_token({}) == token
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b'{"key": "\\ud800'])
def test_a_demo_file_of_any_bytes_is_taken_for_none(home, content):
    """It is made anew."""
    home.demo.write_bytes(content)
    assert home.read_demo() == {}
