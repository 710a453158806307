"""A native build's folder: what makes it usable here, and every reason why it is not."""

import json
import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.gguf.abi import LibraryMismatch
from engines.gguf.native import MANIFEST_NAME, cpu_flags, native_folder, open_build
from tests.engines.gguf.builds import fake_build


def test_a_build_of_this_machine_is_opened(tmp_path):
    """Its library and declarations are beside the manifest."""
    fake_build(tmp_path, cpu_flags=["avx2"])
    build = open_build(tmp_path, frozenset({"avx2", "avx512f"}))
    assert build.library == tmp_path / "libllama.so"
    assert "llama_decode" in build.declarations


def test_a_processor_that_lacks_a_feature_is_told(tmp_path):
    """A home folder that moved to another machine would end in an illegal instruction."""
    fake_build(tmp_path, cpu_flags=["avx2", "avx512f"])
    with pytest.raises(LibraryMismatch, match=r"this one lacks avx512f; run make native again"):
        open_build(tmp_path, frozenset({"avx2"}))


def test_another_system_is_told(tmp_path):
    """A folder shared between machines of different kinds."""
    fake_build(tmp_path, system="plan9")
    with pytest.raises(LibraryMismatch, match=f"is for plan9 on .*, not {platform.system().lower()}"):
        open_build(tmp_path)


@pytest.mark.parametrize("name", ["libllama.so", "llama.cdef"])
def test_a_file_that_changed_is_told(tmp_path, name):
    """Half an update, or a disk that lost a page: the library is not opened."""
    fake_build(tmp_path)
    (tmp_path / name).write_bytes(b"other")
    with pytest.raises(LibraryMismatch, match=f"damaged \\({name}\\)"):
        open_build(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(LibraryMismatch, match="damaged"):
        open_build(tmp_path)


def test_a_manifest_that_leads_out_of_the_folder_is_refused(tmp_path):
    """What is opened is what was built."""
    fake_build(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST_NAME).read_text())
    manifest["files"]["../evil.so"] = "0" * 64
    manifest["library"] = "../evil.so"
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(LibraryMismatch, match="damaged"):
        open_build(tmp_path)


def test_no_build_and_another_format_are_told(tmp_path):
    """The sentence says what to do."""
    with pytest.raises(LibraryMismatch, match="There is no native build"):
        open_build(tmp_path)
    fake_build(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST_NAME).read_text())
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(LibraryMismatch, match="another version; run make native again"):
        open_build(tmp_path)


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode), st.just(b"[" * 100_000)))
def test_an_unreadable_manifest_is_a_sentence(tmp_path_factory, content):
    """Whatever stands in it."""
    folder = tmp_path_factory.mktemp("build")
    (folder / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(LibraryMismatch, match=r"unreadable manifest.*\.$"):
        open_build(folder)


def test_the_processors_flags_are_read(tmp_path):
    """x86 and Arm name them differently; no list is none."""
    (tmp_path / "x86").write_text("processor: 0\nflags\t\t: fpu avx2\n\nprocessor: 1\nflags\t\t: fpu avx2\n")
    (tmp_path / "arm").write_text("processor: 0\nFeatures\t: fp asimd\n")
    assert cpu_flags(tmp_path / "x86") == {"fpu", "avx2"}
    assert cpu_flags(tmp_path / "arm") == {"fp", "asimd"}
    assert cpu_flags(tmp_path / "none") == frozenset()


def test_the_place_is_the_home_folder(tmp_path):
    """As everything that Warmlane keeps."""
    assert native_folder({"WARMLANE_HOME": str(tmp_path)}) == tmp_path / "native"
    assert native_folder({}).name == "native"
