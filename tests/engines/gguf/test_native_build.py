"""`make native`: its steps, on a source small enough to build in a second, and every way in which it ends early."""

import io
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from engines.gguf import native_build
from engines.gguf.native import MANIFEST_NAME
from engines.gguf.native_build import BuildFailed, BuildRequest, build_native, default_jobs, main, unpack

_needs_compiler = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("cc") is None, reason="no compiler here"
)


@given(st.integers(1, 512), st.integers(0, 1 << 44))
def test_jobs_are_bounded_by_cores_and_memory(cores, memory_bytes):
    """Some packages start a compiler for each file at once and bring a machine down."""
    jobs = default_jobs(cores, memory_bytes)
    assert 1 <= jobs <= cores
    assert jobs == 1 or jobs << 30 <= memory_bytes


def test_the_source_is_that_of_the_pinned_wheel():
    """A wheel of another version needs another hash here: the test of it is that the package is the pinned one."""
    assert native_build.PINNED_VERSION == "2026.10.11549", "take the new source's SHA-256 and size too"
    assert len(native_build.SOURCE_SHA256) == 64


def _archive(path, names):
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"ok"))


def test_only_llama_is_unpacked(tmp_path):
    """The package holds other sources and sites."""
    _archive(tmp_path / "a.tar.gz", ["x-1/thirdparty/llama.cpp/include/llama.h", "x-1/src/other.c"])
    found = unpack(tmp_path / "a.tar.gz", tmp_path / "out")
    assert (found / "include" / "llama.h").read_text() == "ok"
    assert not (tmp_path / "out" / "x-1" / "src").exists()


def test_a_package_without_the_source_is_told(tmp_path):
    """Another layout of a later package."""
    _archive(tmp_path / "a.tar.gz", ["x-1/src/other.c"])
    with pytest.raises(BuildFailed, match=r"has no thirdparty/llama\.cpp"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out")


def test_an_archive_that_leads_out_writes_nothing_there(tmp_path):
    """Whatever a package holds, it stays in the work folder."""
    _archive(tmp_path / "a.tar.gz", ["../thirdparty/llama.cpp/evil"])
    with pytest.raises((BuildFailed, tarfile.FilterError)):
        unpack(tmp_path / "a.tar.gz", tmp_path / "deep" / "out")
    assert not (tmp_path / "deep" / "thirdparty").exists()


def test_missing_tools_are_named_with_what_to_install(tmp_path, monkeypatch):
    """Nothing is fetched for nothing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed, match=r"cmake and cc and c\+\+ cannot be found; install"):
        build_native(BuildRequest(tmp_path / "native", 1))
    assert list(tmp_path.iterdir()) == []


def _request(tmp_path, source):
    return BuildRequest(tmp_path / "home" / "native", 1, source, console=Console(file=io.StringIO()))


@_needs_compiler
def test_a_folder_that_is_no_source_is_told(tmp_path):
    """A wrong path, before cmake speaks of it."""
    with pytest.raises(BuildFailed, match=r"no llama\.cpp source folder"):
        build_native(_request(tmp_path, tmp_path))


def _source(folder, code, header="int llama_decode(int a);\n"):
    """A project with a target of the right name."""
    for name in ("include", "ggml/include"):
        (folder / name).mkdir(parents=True)
    (folder / "include" / "llama.h").write_text(header)
    (folder / "llama.c").write_text(code)
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(tiny C)\nadd_library(llama SHARED llama.c)\n"
        "set_target_properties(llama PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)\n"
    )
    return folder


@_needs_compiler
@pytest.mark.parametrize(
    ("code", "header", "said"),
    [
        ("int oops(", "", "The build failed: .*error"),
        ("int a;", "int b;\n", "does not fit Warmlane: its header does not declare llama_backend_init"),
        ("int a;", "#include <no_such_header.h>\n", "header cannot be preprocessed: .*no_such_header"),
    ],
)
def test_what_goes_wrong_is_told_and_the_old_build_stays(tmp_path, code, header, said):
    """A failed build leaves what was there, and no work folder."""
    old = tmp_path / "home" / "native"
    old.mkdir(parents=True)
    (old / MANIFEST_NAME).write_text("old")
    with pytest.raises(BuildFailed, match=said):
        build_native(_request(tmp_path, _source(tmp_path / "source", code, header)))
    assert (old / MANIFEST_NAME).read_text() == "old"
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["native"]


@_needs_compiler
def test_a_library_that_fails_its_self_test_takes_no_place(tmp_path, monkeypatch):
    """It built, its header fits, and it computes nothing: the process that tried it says so."""
    monkeypatch.setattr(native_build, "_declarations", lambda source, work: native_build.our_declarations())
    with pytest.raises(BuildFailed, match=r"does not pass its self-test: .*has no function llama_backend_init"):
        build_native(_request(tmp_path, _source(tmp_path / "source", "int a;")))
    assert list((tmp_path / "home").iterdir()) == []


@_needs_compiler
def test_a_build_that_passes_takes_its_place(tmp_path, monkeypatch):
    """The steps up to the swap, with the self-test believed; a second build replaces the first."""
    monkeypatch.setattr(native_build, "_declarations", lambda source, work: native_build.our_declarations())
    monkeypatch.setattr(native_build, "_try_out", lambda result: None)
    source = _source(tmp_path / "source", "int a;")
    request = _request(tmp_path, source)
    for _ in range(2):
        manifest = build_native(request)
        assert {"libllama.so", "llama.cdef"} <= {path.name for path in request.target.iterdir()}
    assert (manifest.source, manifest.version) == (str(source), "")
    assert [path.name for path in request.target.parent.iterdir()] == ["native"]
    assert "building with 1 jobs" in request.console.file.getvalue()


def test_the_command_ends_with_a_sentence(tmp_path, monkeypatch, capsys):
    """No trace for a person who only lacks a compiler."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("WARMLANE_HOME", str(tmp_path / "home"))
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("make native: cmake")


def test_an_interrupt_ends_the_compiler(tmp_path, monkeypatch):
    """Ctrl-C leaves no compiler behind."""
    ended = []

    class _Interrupted:
        def __init__(self, *_, **__) -> None:
            self.stdout = self
            self.returncode = None

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def __iter__(self):
            raise KeyboardInterrupt

        def terminate(self):
            ended.append(1)

    monkeypatch.setattr(subprocess, "Popen", _Interrupted)
    with pytest.raises(KeyboardInterrupt):
        native_build._run(["cmake"], tmp_path / "log", "The build failed")
    assert ended == [1]
