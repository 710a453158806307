"""The folder of models: what is in it, who may change it, and what a name means."""

import shutil
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.launch import model_store
from engines.launch.model_manifest import Manifest, ModelError, ModelFacts, SourceKind
from engines.launch.model_store import BadName, ModelStore, checked_name, stored_or_path
from tests.engines.gguf.files import gguf

_FACTS = ModelFacts("llama")


@pytest.fixture
def store(tmp_path):
    """A store whose folder is not there yet."""
    return ModelStore(tmp_path / "home" / "models")


def _put(store, name="m"):
    """A whole model in the store."""
    with store.exclusive(name), store.work(name) as work:
        whole = work / "model.gguf"
        whole.write_bytes(gguf())
        status = whole.stat()
        manifest = Manifest(name, SourceKind.COPY, "x", "a" * 64, status.st_size, status.st_mtime_ns, "MIT", _FACTS)
        return store.keep(name, whole, manifest)


def test_a_folder_that_is_not_there_is_empty(store):
    """To look makes nothing."""
    assert store.entries() == []
    assert not store.folder.exists()


def test_what_is_kept_is_listed_and_found(store):
    """The plain case."""
    manifest = _put(store)
    (entry,) = store.entries()
    assert (entry.name, entry.manifest, entry.problem) == ("m", manifest, "")
    assert store.find("m") == entry
    assert entry.num_bytes == len(gguf())


def test_a_missing_model_is_told_with_those_there_are(store):
    """The usual mistake is a misspelled name."""
    _put(store)
    with pytest.raises(ModelError, match=r"no model n .*\(there: m\)"):
        store.find("n")


def test_a_changed_file_is_listed_as_such(store):
    """Its hash no longer says anything."""
    _put(store)
    store.file("m").write_bytes(gguf() + b"x")
    assert store.entries()[0].problem == "changed"


def test_a_link_to_nothing_is_listed_and_not_found(store, tmp_path):
    """The file it led to was moved away."""
    _put(store)
    store.file("m").unlink()
    store.file("m").symlink_to(tmp_path / "gone.gguf")
    (entry,) = store.entries()
    assert (entry.problem, entry.num_bytes) == ("missing", 0)
    with pytest.raises(ModelError, match=r"link to .*gone"):
        store.find("m")


def test_a_file_put_there_by_hand_is_listed_with_what_it_says(store):
    """Nothing is hidden because we did not bring it."""
    store.folder.mkdir(parents=True)
    store.file("by-hand").write_bytes(gguf())
    store.file("broken").write_bytes(b"not a model")
    broken, by_hand = store.entries()
    assert (broken.manifest, broken.problem) == (None, "not a usable model")
    assert by_hand.manifest.kind is SourceKind.FOUND
    assert by_hand.manifest.facts.architecture == "llama"


def test_an_unfinished_download_is_listed(store):
    """It takes room, and somebody may have forgotten it."""
    store.folder.mkdir(parents=True)
    store.part("m").write_bytes(b"GGUF")
    (entry,) = store.entries()
    assert (entry.name, entry.problem, entry.num_bytes) == ("m", "unfinished", 4)


def test_the_manifest_of_another_name_is_not_believed(store):
    """A copied manifest would speak of another file."""
    _put(store)
    shutil.copy(store.folder / "m.manifest.json", store.folder / "n.manifest.json")
    assert store.manifest("n") is None


def test_a_model_goes_with_all_that_lies_beside_it(store):
    """And nothing of a model whose name begins alike."""
    _put(store)
    _put(store, "m.2")
    (store.folder / "m.LICENSE.txt").touch()
    store.part("m").write_bytes(b"GGUF")
    assert store.remove("m") > len(gguf())
    left = sorted(path.name for path in store.folder.iterdir())
    assert left == ["m.2.gguf", "m.2.lock", "m.2.manifest.json", "m.lock"]
    assert store.remove("m") == 0


def test_of_a_linked_file_the_link_alone_goes(store, tmp_path):
    """The file is not ours."""
    target = tmp_path / "mine.gguf"
    target.write_bytes(gguf())
    store.folder.mkdir(parents=True)
    store.file("m").symlink_to(target)
    store.remove("m")
    assert target.exists()
    assert not store.has("m")


def test_two_processes_work_on_one_name_after_each_other(tmp_path):
    """The second waits and says so."""
    said, order, entered = threading.Event(), [], threading.Event()
    first = ModelStore(tmp_path)
    second = ModelStore(tmp_path, lambda _name: said.set())

    def wait_and_enter():
        entered.set()
        with second.exclusive("m"):
            order.append("second")

    with first.exclusive("m"), first.exclusive("another"):
        thread = threading.Thread(target=wait_and_enter)
        thread.start()
        assert said.wait(20)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_what_a_killed_process_left_is_removed(store):
    """Whatever its name, since nobody may ever use that again; not what is worked on, or a download that can go on."""
    store.folder.mkdir(parents=True)
    for name in (".work~m~abc", ".work~m.2~abc"):
        (store.folder / name).mkdir()
    store.part("m").write_bytes(b"GGUF")
    with store.exclusive("busy"), store.work("busy") as work, store.exclusive("m"):
        left = {path.name for path in store.folder.iterdir()}
    assert left == {work.name, "m.gguf.part", "m.lock", "m.2.lock", "busy.lock"}


def test_a_disk_without_room_is_told_with_both_numbers(store, monkeypatch):
    """What is needed and what is there."""
    store.folder.mkdir(parents=True)
    usage = shutil.disk_usage("/")._replace(free=100_000_000)
    monkeypatch.setattr(model_store.shutil, "disk_usage", lambda _: usage)
    store.check_room(30_000_000)
    with pytest.raises(ModelError, match=r"too full: 107 MB are needed and 100 MB are free"):
        store.check_room(40_000_000)


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    """The home may point anywhere."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(ModelError, match="cannot be read or written"),
        ModelStore(tmp_path / "file" / "m").exclusive("m"),
    ):
        raise AssertionError("not reached")


def test_a_folder_that_is_a_file_is_told(tmp_path):
    """Also where only a list was wanted."""
    (tmp_path / "models").touch()
    with pytest.raises(ModelError, match="cannot be read"):
        ModelStore(tmp_path / "models").entries()


def test_a_bare_name_means_the_stored_model(store, tmp_path, monkeypatch):
    """A file of that name in the current folder comes first, and a path is never a name."""
    _put(store)
    monkeypatch.chdir(tmp_path)
    assert stored_or_path("m", store.folder) == store.file("m")
    assert stored_or_path("m.gguf", store.folder) == store.file("m")
    assert str(stored_or_path("./m", store.folder)) == "m"
    assert str(stored_or_path("other", store.folder)) == "other"
    assert str(stored_or_path("bad name", store.folder)) == "bad name"
    assert str(stored_or_path("", store.folder)) == "."
    (tmp_path / "m").touch()
    assert str(stored_or_path("m", store.folder)) == "m"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=140))
def test_a_name_never_leaves_the_folder(text):
    """Whatever is accepted is one part of a path, and is accepted again."""
    try:
        name = checked_name(text)
    except BadName:
        return
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert len(name) <= 128
    assert name.isascii()


@pytest.mark.parametrize("text", ["", ".gguf", "a/b", "..", "a~b", "m\n", "-m", "a" * 129, "ü"])
def test_names_that_are_none(text):
    """The bounds, each reached."""
    with pytest.raises(BadName):
        checked_name(text)


def test_a_name_may_be_given_with_its_ending():
    """People complete file names with the Tab key."""
    assert checked_name("m.Q8_0.GGUF") == "m.Q8_0"
    assert checked_name("a" * 128) == "a" * 128
