"""Bringing the demo model: fetched once, checked, whole or not at all, and every failure one sentence."""

import errno
import hashlib
import io
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from engines.launch import demo_model, wheel_download
from engines.launch.demo_model import DEMO_PACKAGE, WHEEL_VARIABLE, ensure_demo_model, ensure_model
from engines.launch.file_lock import locked
from engines.launch.wheel_download import ModelFetchError, ModelPackage

_MODEL = b"GGUF, or as good as" * 1000
_METADATA = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"


def _sha(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def wheel(tmp_path):
    """A wheel with a small model, in a folder of its own."""
    path = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/m.gguf", _MODEL)
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "Use it well.")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", _METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def package(wheel):
    """The pins of that wheel."""
    return ModelPackage(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=_sha(wheel.read_bytes()),
        wheel_bytes=wheel.stat().st_size,
        model_member="tiny_model/m.gguf",
        model_sha256=_sha(_MODEL),
        model_bytes=len(_MODEL),
        licence_member="tiny_model-1.0.dist-info/LICENSE",
    )


@pytest.fixture
def models(tmp_path):
    """The models folder, not made yet."""
    return tmp_path / "home" / "models"


@pytest.fixture
def pip_index(monkeypatch, wheel):
    """The user's own pip settings, here: a folder and no network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


def _quiet():
    return Console(file=io.StringIO(), width=200)


def _names(models):
    return sorted(path.name for path in models.iterdir())


_WHOLE = ["tiny.LICENSE.txt", "tiny.gguf", "tiny.lock", "tiny.stamp.json"]


def _refusal(models, package, environ=None):
    with pytest.raises(ModelFetchError) as caught:
        ensure_model(models, package, environ or {}, _quiet())
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    if models.is_dir():
        assert "tiny.gguf" not in _names(models), "half a model was left"
        assert not list(models.glob(".tiny-*")), "a work folder was left"
    return message


def test_a_given_wheel_is_used_without_a_download(models, package, wheel, monkeypatch):
    """Machines without a network bring the wheel themselves."""
    monkeypatch.setattr(demo_model, "download_wheel", None)
    model = ensure_model(models, package, {WHEEL_VARIABLE: str(wheel)}, _quiet())
    assert model == models / "tiny.gguf"
    assert model.read_bytes() == _MODEL
    assert (models / "tiny.LICENSE.txt").read_text() == "Use it well."
    assert _names(models) == _WHOLE


def test_pip_fetches_the_wheel_by_the_users_own_settings(models, package, pip_index):
    """Index, proxy and certificates are the user's; elsewhere than on a terminal it says one line."""
    console = _quiet()
    assert ensure_model(models, package, {}, console).read_bytes() == _MODEL
    assert console.file.getvalue() == "fetching tiny (0 MB, tiny-model==1.0 from the package index)\n"
    assert _names(models) == _WHOLE


def test_a_terminal_sees_a_progress_bar(models, package, pip_index):
    """93 MB take a while; a still screen looks like a hang."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    ensure_model(models, package, {}, console)
    assert "fetching tiny" in console.file.getvalue()


def test_a_second_start_fetches_nothing(models, package, wheel, monkeypatch):
    """The stamp spares even the hash."""
    ensure_model(models, package, {WHEEL_VARIABLE: str(wheel)}, _quiet())
    monkeypatch.setattr(demo_model, "_sha256", None)
    console = _quiet()
    ensure_model(models, package, {}, console)
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("stamp", [None, "", "[]", '{"a": 1}', "\xff"])
def test_without_a_fitting_stamp_the_hash_decides(models, package, wheel, stamp):
    """A model that someone copied here is accepted for what it is."""
    ensure_model(models, package, {WHEEL_VARIABLE: str(wheel)}, _quiet())
    path = models / "tiny.stamp.json"
    path.unlink()
    if stamp is not None:
        path.write_text(stamp)
    ensure_model(models, package, {WHEEL_VARIABLE: "/none"}, _quiet())
    assert "sha256" in path.read_text()


@pytest.mark.parametrize("damage", [b"", _MODEL[:-1], b"X" + _MODEL[1:]])
def test_a_damaged_model_is_brought_again(models, package, wheel, damage):
    """A disk that filled or a half copy heals at the next start."""
    model = ensure_model(models, package, {WHEEL_VARIABLE: str(wheel)}, _quiet())
    model.write_bytes(damage)
    os.utime(model, ns=(1, 1))
    ensure_model(models, package, {WHEEL_VARIABLE: str(wheel)}, _quiet())
    assert model.read_bytes() == _MODEL


def test_starts_at_the_same_time_bring_it_once(models, package, wheel, monkeypatch):
    """Two workers of one machine start together; the second waits and finds it there."""
    brought = []
    bring = demo_model._bring
    entered, go = threading.Event(), threading.Event()

    def slow(*arguments):
        brought.append(1)
        entered.set()
        assert go.wait(30)
        bring(*arguments)

    monkeypatch.setattr(demo_model, "_bring", slow)
    consoles = [_quiet() for _ in range(3)]
    environ = {WHEEL_VARIABLE: str(wheel)}
    starts = [threading.Thread(target=ensure_model, args=(models, package, environ, console)) for console in consoles]
    starts[0].start()
    assert entered.wait(30)
    for start in starts[1:]:
        start.start()
    go.set()
    for start in starts:
        start.join()
    assert brought == [1]
    assert _names(models) == _WHOLE


def test_a_waiting_start_says_so(models, package, wheel):
    """Someone who starts twice sees why nothing happens."""
    models.mkdir(parents=True)
    console = _quiet()
    with locked(models / "tiny.lock", lambda: None):
        environ = {WHEEL_VARIABLE: str(wheel)}
        start = threading.Thread(target=ensure_model, args=(models, package, environ, console))
        start.start()
        while "waiting for another start" not in console.file.getvalue():
            assert start.is_alive()
    start.join()
    assert (models / "tiny.gguf").exists()


def test_leftovers_of_a_killed_start_are_removed(models, package, wheel):
    """A start that was killed at 90 MB must not keep 90 MB for ever."""
    (models / ".tiny-abc").mkdir(parents=True)
    (models / ".tiny-abc" / "half").write_bytes(b"x")
    ensure_model(models, package, {WHEEL_VARIABLE: str(wheel)}, _quiet())
    assert _names(models) == _WHOLE


def test_a_given_wheel_that_is_not_there_is_refused(models, package):
    """The variable is named, since it is what must be corrected."""
    assert WHEEL_VARIABLE in _refusal(models, package, {WHEEL_VARIABLE: "/none.whl"})


def test_a_given_wheel_of_another_hash_is_refused(models, package, wheel):
    """A changed wheel is not the model we tested, whoever gave it."""
    wheel.write_bytes(wheel.read_bytes() + b" ")
    assert "SHA-256 differs" in _refusal(models, package, {WHEEL_VARIABLE: str(wheel)})


def test_a_fetched_wheel_of_another_hash_is_refused(models, package, pip_index):
    """An index that serves something else is noticed before it is opened."""
    other = replace(package, wheel_sha256="0" * 64)
    assert "its hash differs" in _refusal(models, other)


def test_a_wheel_with_another_model_is_refused(models, package, wheel):
    """Both hashes are pinned: the stamp speaks of the model's."""
    other = replace(package, model_sha256="0" * 64)
    assert "is not the one Warmlane knows" in _refusal(models, other, {WHEEL_VARIABLE: str(wheel)})


def test_a_wheel_that_is_no_archive_is_refused(models, package, wheel):
    """Even with the right hash a file can be unreadable to us."""
    wheel.write_bytes(b"not a wheel")
    other = replace(package, wheel_sha256=_sha(b"not a wheel"))
    assert "is damaged" in _refusal(models, other, {WHEEL_VARIABLE: str(wheel)})


def test_a_wheel_without_the_model_is_refused(models, package, wheel):
    """A pin that names no member is our bug, and still a sentence."""
    other = replace(package, model_member="none.gguf")
    assert "is damaged" in _refusal(models, other, {WHEEL_VARIABLE: str(wheel)})


def test_no_network_is_one_sentence_with_the_way_out(models, package, monkeypatch):
    """The first thing a new user may meet must say what to do."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    message = _refusal(models, package)
    assert "the package index cannot be reached" in message
    assert WHEEL_VARIABLE in message
    assert "--model" in message


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("WARNING: Retrying ... NewConnectionError\nERROR: Could not find a version", "index cannot be reached"),
        ("/venv/bin/python: No module named pip", "this Python has no pip"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "too full"),
        ("ERROR: HTTP error 403 while getting x\nERROR: more", "HTTP error 403 while getting x. Fetch"),
        ("", "pip failed"),
    ],
)
def test_pips_log_becomes_one_sentence(package, log, said):
    """Nobody should have to read a resolver's log."""
    assert said in wheel_download._why_pip_failed(log, package, Path("/models"))


def test_a_full_disk_is_told_before_the_download(models, package, monkeypatch):
    """Ten minutes of download should not end in the obvious."""
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert "too full" in _refusal(models, package)


def test_a_disk_that_fills_while_unpacking_leaves_nothing(models, package, wheel, monkeypatch):
    """Half a model would be worse than none."""

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert "too full" in _refusal(models, package, {WHEEL_VARIABLE: str(wheel)})


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, package):
    """The home of Warmlane may point anywhere."""
    (tmp_path / "file").write_text("")
    assert "cannot be kept in" in _refusal(tmp_path / "file" / "models", package)


def test_an_interrupted_download_ends_pip_and_leaves_nothing(models, package, monkeypatch):
    """Ctrl-C in mid-download leaves no process and no folder."""
    started = []
    real = subprocess.Popen

    def sleeper(_command, **options):
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return started[0]

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", sleeper)
    monkeypatch.setattr(wheel_download, "_watch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ensure_model(models, package, {}, _quiet())
    assert started[0].returncode is not None
    assert _names(models) == ["tiny.lock"]


def test_pip_that_brings_nothing_is_refused(models, package, monkeypatch):
    """A pip that succeeds without a wheel is not believed."""
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _command, **options: real([sys.executable, "-c", ""], **options))
    assert "pip brought no wheel" in _refusal(models, package)


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_real_demo_model_is_what_the_pins_say():
    """The pins are of a package that exists."""
    folder = Path(os.environ.get("WARMLANE_TEST_MODELS", Path(__file__).parents[3] / ".warmlane" / "models"))
    model = ensure_demo_model(folder)
    assert model.name == f"{demo_model.DEMO_MODEL_NAME}.gguf"
    assert model.stat().st_size == DEMO_PACKAGE.model_bytes
    assert "Apache License" in model.with_suffix(".LICENSE.txt").read_text()
