"""Reading a GGUF header: whole files are read, all others refused with one sentence."""

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.gguf.header import TENSOR_TYPES, ModelFileError, main, read_header
from engines.gguf.library import open_library
from tests.engines.gguf.files import ARCHITECTURE, ARRAY, BOOL, STRING, TENSOR, UINT32, entry, gguf, tensor, text


def _refusal(path, content):
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_whole_file_is_read(tmp_path):
    """The engine acts on what stands here: architecture, scalars, list lengths."""
    entries = (
        ARCHITECTURE,
        entry("llama.block_count", UINT32, struct.pack("<I", 30)),
        entry("flag", BOOL, b"\x01"),
        entry("words", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("bc")),
        entry("numbers", ARRAY, struct.pack("<IQ", UINT32, 3) + bytes(12)),
    )
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(entries))
    header = read_header(path)
    assert header.architecture == "llama"
    assert header.metadata["llama.block_count"] == 30
    assert header.metadata["flag"] is True
    assert header.array_lengths == {"words": 2, "numbers": 3}
    assert (header.version, header.num_tensors) == (3, 1)


def test_kv_bytes_of_a_token_follow_the_shape(tmp_path):
    """The worker refuses a cache that cannot fit, so this has to be right: 2 (K, V) x 2 bytes x layers x heads x width."""
    path = tmp_path / "m.gguf"
    sizes = {"block_count": 30, "embedding_length": 576, "attention.head_count": 9, "attention.head_count_kv": 3}
    entries = [entry(f"llama.{name}", UINT32, struct.pack("<I", size)) for name, size in sizes.items()]
    path.write_bytes(gguf((ARCHITECTURE, *entries)))
    assert read_header(path).kv_token_bytes == 23_040
    own_widths = [entry(f"llama.attention.{kind}_length", UINT32, struct.pack("<I", 128)) for kind in ("key", "value")]
    path.write_bytes(gguf((ARCHITECTURE, *entries, *own_widths)))
    assert read_header(path).kv_token_bytes == 46_080
    per_layer = entry("llama.attention.head_count_kv", ARRAY, struct.pack("<IQ", UINT32, 30) + bytes(120))
    path.write_bytes(gguf((ARCHITECTURE, *entries[:3], per_layer)))
    assert read_header(path).kv_token_bytes is None
    path.write_bytes(gguf())
    assert read_header(path).kv_token_bytes is None


def test_a_missing_file_is_refused(tmp_path):
    """The commonest mistake is a wrong path."""
    with pytest.raises(ModelFileError, match="does not exist"):
        read_header(tmp_path / "none.gguf")


def test_a_directory_is_refused(tmp_path):
    """A folder of a model in another format is a common second."""
    with pytest.raises(ModelFileError, match="is not a file"):
        read_header(tmp_path)


def test_a_pipe_is_refused_without_waiting_on_it(tmp_path):
    """Opening a pipe would wait for a writer for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="is not a file"):
        read_header(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "does not begin with GGUF"),
        (b"GG", "does not begin with GGUF"),
        (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
        (b"GGUF", "cut off"),
        (b"GGUF" + bytes(12), "cut off"),
        (gguf(version=1), "version is 1"),
        (gguf(version=0x03000000), "version is 50331648"),  # big-endian
        (gguf(num_tensors=0), "claims 0 tensors"),
        (gguf(num_tensors=1 << 63), "tensors"),
        (gguf(num_tensors=1 << 16), "tensors"),
        (gguf(num_entries=1 << 40), "metadata entries"),
        (gguf((entry("a", UINT32, bytes(4)),)), "architecture"),
        (gguf((entry("a", 99, bytes(4)), ARCHITECTURE)), "unknown type 99"),
        (gguf((entry("a", ARRAY, struct.pack("<IQ", ARRAY, 1)), ARCHITECTURE)), "unknown type 9"),
        (gguf((entry("a", ARRAY, struct.pack("<IQ", STRING, 1 << 60)), ARCHITECTURE)), "longer than the file"),
        (gguf((entry("a", ARRAY, struct.pack("<IQ", UINT32, 1 << 62)), ARCHITECTURE)), "cut off"),
        (gguf((entry("a", ARRAY, struct.pack("<IQQ", STRING, 1, 1 << 63)), ARCHITECTURE)), "cut off"),
        (gguf((struct.pack("<Q", 1 << 50), ARCHITECTURE)), "bytes long"),
        (gguf((entry("a", STRING, struct.pack("<Q", 1 << 50)), ARCHITECTURE)), "bytes long"),
        (gguf((ARCHITECTURE, entry("llama.block_count", UINT32, struct.pack("<I", 513)))), "block_count is 513"),
        (gguf((ARCHITECTURE, entry("llama.attention.head_count", UINT32, bytes(4)))), "head_count is 0"),
        (gguf((ARCHITECTURE, entry("general.alignment", UINT32, struct.pack("<I", 33)))), "alignment is 33"),
        (gguf(tensors=(tensor("a", ()),)), "0 dimensions"),
        (gguf(tensors=(tensor("a", (1, 1, 1, 1, 1)),)), "5 dimensions"),
        (gguf(tensors=(tensor("a", (0, 4)),)), "shape"),
        (gguf(tensors=(tensor("a", (1 << 40, 1 << 40)),)), "shape"),
        (gguf(tensors=(tensor("a", (31, 4), kind=2),)), "multiple of 32"),
        (gguf(tensors=(tensor("a", (8, 4), offset=7),)), "alignment"),
        (gguf(data_bytes=127), "its tensors need"),
    ],
)
def test_a_broken_file_is_refused_with_its_fault(tmp_path, content, said):
    """llama.cpp may end the process on these, so they must never reach it."""
    assert said in _refusal(tmp_path / "m.gguf", content)


def test_an_unreadable_file_is_refused(tmp_path, monkeypatch):
    """The system's reason is passed on."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf())

    def deny(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", deny)
    with pytest.raises(ModelFileError, match="cannot be read: Permission denied"):
        read_header(path)


@given(cut=st.integers(0, len(gguf()) - 1))
@settings(max_examples=80, deadline=None)
def test_every_cut_is_refused(tmp_path_factory, cut):
    """A download that stopped anywhere is noticed."""
    _refusal(tmp_path_factory.getbasetemp() / "cut.gguf", gguf()[:cut])


@given(at=st.integers(0, 120), junk=st.binary(min_size=1, max_size=9))
@settings(max_examples=150, deadline=None)
def test_overwritten_bytes_are_read_or_refused_and_nothing_else(tmp_path_factory, at, junk):
    """No damage may surface as another kind of error, or as a hang."""
    whole = gguf((ARCHITECTURE, entry("words", ARRAY, struct.pack("<IQ", STRING, 1) + text("a"))), (TENSOR,))
    path = tmp_path_factory.getbasetemp() / "junk.gguf"
    path.write_bytes(whole[:at] + junk + whole[at + len(junk) :])
    try:
        header = read_header(path)
    except ModelFileError:
        return
    assert header.file_bytes == path.stat().st_size


def test_the_tensor_types_are_the_librarys():
    """The size check is only right if block and byte counts are llama.cpp's own."""
    c = open_library().c
    for kind, sizes in TENSOR_TYPES.items():
        assert (c.ggml_blck_size(kind), c.ggml_type_size(kind)) == sizes, kind


def test_the_reader_is_a_program_for_those_who_may_not_load_it(tmp_path, capsys):
    """The doctor asks it in a process of its own."""
    (tmp_path / "m.gguf").write_bytes(gguf())
    assert main([str(tmp_path / "m.gguf")]) == 0
    assert main([str(tmp_path / "none.gguf")]) == 1
    out = capsys.readouterr()
    assert out.out == "llama\n"
    assert out.err.count("\n") == 1
    assert "does not exist" in out.err
