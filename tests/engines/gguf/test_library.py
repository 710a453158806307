"""Opening llama.cpp: which library is chosen, what is refused, and its log."""

import dataclasses
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.gguf import library
from engines.gguf.abi import LibraryMismatch
from engines.gguf.library import LogTail, open_library
from engines.gguf.native import open_build
from tests.engines.gguf.builds import fake_build


@pytest.fixture(autouse=True)
def _own_choice(monkeypatch):
    """What a developer has built or forced must not decide a test."""
    monkeypatch.delenv(library.CHOICE_VARIABLE, raising=False)


def _open_anew():
    return library._open_wheel()


def test_the_installed_library_is_the_declared_one(tmp_path):
    """Opening checks version, functions, sizes and defaults; a second opening is the same library."""
    opened = open_library(folder=tmp_path / "none")
    assert opened is open_library(folder=tmp_path / "none")
    assert opened.description == f"wheel xllamacpp {library.PINNED_VERSION}"
    assert opened.note == ""


def test_the_pin_is_the_one_in_the_project_file():
    """The two places that name the version must not drift apart."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert f"{library.DISTRIBUTION}=={library.PINNED_VERSION}" in project["project"]["dependencies"]


@pytest.mark.parametrize("version", ["2026.11.1", "2026.10.11548", "2026.10.11549.post1", "0"])
def test_another_version_is_refused_with_what_to_install(monkeypatch, version):
    """Another build may have one field more, and then every call after it is wrong."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(LibraryMismatch, match=r"found .*pip install xllamacpp==2026\.10\.11549"):
        _open_anew()


def test_a_missing_package_is_refused_with_what_to_install(monkeypatch):
    """The sentence says what to type."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(LibraryMismatch, match=r"not installed\. Run: python -m pip install xllamacpp=="):
        _open_anew()


def test_a_package_without_its_library_is_refused(monkeypatch, tmp_path):
    """A half-removed package is named as such."""
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(LibraryMismatch, match="no shared library"):
        _open_anew()


def test_a_file_that_is_no_library_is_refused(monkeypatch, tmp_path):
    """The loader's own reason is passed on."""
    (tmp_path / "xllamacpp.abi3.so").write_bytes(b"not a library")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(LibraryMismatch, match=r"xllamacpp\.abi3\.so cannot be used here.*pip install"):
        _open_anew()


def test_a_native_build_that_does_not_fit_leaves_the_wheel_and_says_why(tmp_path):
    """A worker starts whatever became of an optional build."""
    fake_build(tmp_path, cpu_flags=["a-flag-of-another-processor"])
    opened = open_library(folder=tmp_path)
    assert opened.description.startswith("wheel")
    assert "this one lacks a-flag-of-another-processor" in opened.note


def test_a_native_build_of_another_source_is_not_taken_unasked(tmp_path):
    """After an update of Warmlane an old build waits to be made again."""
    fake_build(tmp_path, version="2026.1.1", source="xllamacpp 2026.1.1")
    opened = open_library(folder=tmp_path)
    assert opened.description.startswith("wheel")
    assert "is of xllamacpp 2026.1.1, not of" in opened.note


def test_a_native_build_with_fewer_declarations_is_to_be_made_again(tmp_path):
    """This Warmlane calls a function that the one which built it did not."""
    declarations = library.our_declarations().replace("int32_t llama_vocab_type(", "int32_t llama_vocab_kind(")
    fake_build(tmp_path, declarations=declarations)
    with pytest.raises(LibraryMismatch, match="earlier Warmlane; run make native again"):
        open_library("native", tmp_path)


def test_a_library_that_is_no_llama_is_refused_when_forced(tmp_path):
    """Another shared object under the right name: its first missing function is named."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    subprocess.run(["cc", "-shared", "-o", tmp_path / "libllama.so", "-x", "c", "/dev/null"], check=True)
    fake_build(tmp_path, library=(tmp_path / "libllama.so").read_bytes())
    for choice in ("native", str(tmp_path)):
        with pytest.raises(LibraryMismatch, match="has no function llama_backend_init"):
            open_library(choice, tmp_path)
    assert "has no function" in open_library("auto", tmp_path).note


@pytest.mark.parametrize("choice", ["native", "fastest", "/no/such/folder"])
def test_a_forced_choice_that_is_not_there_is_refused(tmp_path, choice):
    """Who forces a library gets that one or a sentence, never another."""
    with pytest.raises(LibraryMismatch, match=r"no native build|is not auto, wheel, native"):
        open_library(choice, tmp_path / "none")


def test_the_environment_forces_a_choice(monkeypatch, tmp_path):
    """For workers, which somebody else starts."""
    monkeypatch.setenv(library.CHOICE_VARIABLE, "native")
    with pytest.raises(LibraryMismatch, match="no native build"):
        open_library(folder=tmp_path)
    monkeypatch.setenv(library.CHOICE_VARIABLE, "wheel")
    assert open_library(folder=tmp_path).note == ""


def test_a_real_build_is_opened_by_its_own_declarations(tmp_path):
    """The wheel's library dressed as a native build: declarations, signatures and a step of the tiny model fit."""
    fake_build(tmp_path, library=library._shared_object().read_bytes(), cpu_flags=[])
    build = open_build(tmp_path)
    assert build.declarations == library.our_declarations()
    environ = {**os.environ, "WARMLANE_LLAMA_LIBRARY": str(tmp_path)}
    command = [sys.executable, "-m", "engines.gguf.self_test"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=50, env=environ)
    assert (done.returncode, done.stdout) == (0, f"native build of xllamacpp {library.PINNED_VERSION}\n"), done.stderr


def test_opening_does_not_import_the_wheels_module():
    """Its import starts more than we need and costs a second."""
    code = (
        "import sys; from engines.gguf.library import open_library; open_library(); "
        "sys.exit(any(name.startswith('xllamacpp') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_log_lines_reach_the_sink_at_their_level():
    """The worker logs them; nothing is printed by the library itself."""
    lines = []
    log = LogTail(lambda level, text: lines.append((level, text)))
    for level, text in [(2, "hello\n"), (4, "no room\n"), (5, "and more\n"), (1, "quiet"), (9, "odd"), (2, "...\n")]:
        log.write(level, text)
    assert lines == [
        (logging.INFO, "hello"),
        (logging.ERROR, "no room"),
        (logging.ERROR, "and more"),
        (logging.DEBUG, "quiet"),
        (logging.DEBUG, "odd"),
    ]


def test_errors_are_kept_until_taken_and_bounded():
    """A failure can say why, and a library that complains for ever fills nothing."""
    log = LogTail()
    for number in range(20):
        log.write(4, f"error {number}")
    assert log.take_errors() == "; ".join(f"error {number}" for number in range(12, 20))
    assert log.take_errors() == ""


def test_the_description_can_be_told_from_a_copy():
    """A library is a value: a note is added without opening it again."""
    opened = _open_anew()
    assert dataclasses.replace(opened, note="why").c is opened.c


def test_one_library_has_one_log_however_it_was_chosen(tmp_path):
    """The C library knows one log; who opened it first must not lose theirs to who chose it in another way."""
    folders = [tmp_path / "a", tmp_path / "b"]
    folders[1].mkdir()
    opened = [open_library("wheel", folders[0]), open_library("auto", folders[0]), open_library("auto", folders[1])]
    assert len({id(one.log) for one in opened}) == 1
    assert [bool(one.note) for one in opened] == [False, False, True]
