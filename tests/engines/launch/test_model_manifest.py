"""A manifest is read whole or counts as none, whatever lies in the file."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.launch.model_manifest import (
    Manifest,
    ModelFacts,
    SourceKind,
    parse_manifest,
    read_manifest,
    write_manifest,
)

_FACTS = ModelFacts("llama", "Q8_0", 4096, has_chat_template=True)
_MANIFEST = Manifest("m", SourceKind.URL, "https://a.example/m", "a" * 64, 12, 34, "MIT", _FACTS)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_manifests = st.builds(
    Manifest,
    name=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z"),
    kind=st.sampled_from(SourceKind),
    source=_text,
    sha256=st.from_regex(r"\A([0-9a-f]{64})?\Z"),
    num_bytes=st.integers(0, 1 << 60),
    mtime_ns=st.integers(-(1 << 62), 1 << 62),
    licence=_text,
    facts=st.builds(
        ModelFacts,
        architecture=_text,
        quantisation=_text,
        context_tokens=st.integers(0, 1 << 31),
        has_chat_template=st.booleans(),
        licence=_text,
        num_parts=st.integers(1, 99),
    ),
    version=st.just(1),
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(_manifests)
def test_what_is_written_is_read_again(manifest):
    """Nothing is lost on the way, and nothing we write is refused."""
    assert parse_manifest(msgspec.json.encode(manifest)) == manifest


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_manifest_or_none(content):
    """People edit files, disks lose blocks: no content ends the command."""
    assert parse_manifest(content) is None


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(Manifest.__struct_fields__), _json)
def test_any_value_in_any_field_is_taken_whole_or_not_at_all(field, value):
    """A field of another type must not come through as if it were ours."""
    content = msgspec.json.decode(msgspec.json.encode(_MANIFEST)) | {field: value}
    found = parse_manifest(json.dumps(content).encode())
    assert found is None or msgspec.json.decode(msgspec.json.encode(found))[field] == value or field == "facts"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_cut_manifest_is_none(data):
    """A disk that was full leaves a beginning."""
    content = msgspec.json.encode(_MANIFEST)
    assert parse_manifest(content[: data.draw(st.integers(0, len(content) - 1))]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../m"},
        {"name": "m\n"},
        {"name": ".m"},
        {"name": ""},
        {"sha256": "a" * 63},
        {"sha256": "a" * 64 + "\n"},
        {"num_bytes": -1},
        {"version": 2},
        {"kind": "rumour"},
        {"source": "x" * 5000},
    ],
)
def test_what_we_would_not_write_is_not_believed(change):
    """A name with a path in it would reach other files."""
    content = msgspec.json.decode(msgspec.json.encode(_MANIFEST)) | change
    assert parse_manifest(json.dumps(content).encode()) is None


def test_a_huge_file_is_not_read(tmp_path):
    """The bound of a manifest's size."""
    path = tmp_path / "m.manifest.json"
    path.write_bytes(msgspec.json.encode(_MANIFEST) + b" " * (1 << 16))
    assert read_manifest(path) is None
    path.write_bytes(msgspec.json.encode(_MANIFEST) + b" " * 1000)
    assert read_manifest(path) == _MANIFEST


@pytest.mark.parametrize("content", [b"[" * 50_000, b'{"name":' * 9000])
def test_a_deep_file_is_none(content):
    """Nesting must not end in a traceback."""
    assert parse_manifest(content) is None


def test_a_folder_in_its_place_is_none(tmp_path):
    """Nor must what is no file."""
    assert read_manifest(tmp_path) is None
    assert read_manifest(tmp_path / "missing") is None


def test_a_write_that_fails_leaves_nothing(tmp_path):
    """The old manifest stays, and no half new one beside it."""
    target = tmp_path / "m.manifest.json"
    target.mkdir()
    (target / "occupied").touch()
    with pytest.raises(OSError):
        write_manifest(target, _MANIFEST)
    assert [path.name for path in tmp_path.iterdir()] == ["m.manifest.json"]


def test_a_manifest_fits_the_file_it_was_made_of(tmp_path):
    """A file that was replaced is noticed without hashing it."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x" * 12)
    fitting = msgspec.structs.replace(_MANIFEST, mtime_ns=file.stat().st_mtime_ns)
    assert fitting.fits(file)
    file.write_bytes(b"x" * 13)
    assert not fitting.fits(file)
    assert not fitting.fits(tmp_path / "missing")
