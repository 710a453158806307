"""Opening llama.cpp: the pinned version, the declared layout, and its log."""

import importlib.metadata
import importlib.util
import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.gguf import library
from engines.gguf.library import LibraryMismatch, LogTail, check_defaults, check_layout, open_library


def test_the_installed_library_is_the_declared_one():
    """Opening checks version, sizes and defaults; a second opening is the same library."""
    assert open_library() is open_library()


def test_the_pin_is_the_one_in_the_project_file():
    """The two places that name the version must not drift apart."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert f"{library.DISTRIBUTION}=={library.PINNED_VERSION}" in project["project"]["dependencies"]


def test_another_version_is_refused_with_what_to_install(monkeypatch):
    """Another build may have one field more, and then every call after it is wrong."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2026.11.1")
    with pytest.raises(LibraryMismatch, match=r"found 2026\.11\.1.*pip install xllamacpp==2026\.10\.11549"):
        library._open_once.__wrapped__()


def test_a_missing_package_is_refused_with_what_to_install(monkeypatch):
    """The sentence says what to type."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(LibraryMismatch, match=r"not installed\. Run: python -m pip install xllamacpp=="):
        library._open_once.__wrapped__()


def test_a_package_without_its_library_is_refused(monkeypatch, tmp_path):
    """A half-removed package is named as such."""
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(LibraryMismatch, match="no shared library"):
        library._open_once.__wrapped__()


def test_a_file_that_is_no_library_is_refused(monkeypatch, tmp_path):
    """The loader's own reason is passed on."""
    (tmp_path / "xllamacpp.abi3.so").write_bytes(b"not a library")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(LibraryMismatch, match=r"xllamacpp\.abi3\.so cannot be used here"):
        library._open_once.__wrapped__()


def test_a_shifted_field_is_named():
    """The first default that differs says where the layouts part."""
    with pytest.raises(LibraryMismatch, match="n_batch is 512, not 2048"):
        check_defaults("context", SimpleNamespace(n_ctx=512, n_batch=512), {"n_ctx": 512, "n_batch": 2048})


def test_a_struct_of_another_size_is_refused():
    """On a machine with other alignments the declarations do not hold."""
    with pytest.raises(LibraryMismatch, match="has 7 bytes"):
        check_layout(SimpleNamespace(sizeof=lambda _: 7), None)


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
