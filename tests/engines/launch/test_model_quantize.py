"""A stored model in another precision becomes a model of its own, or leaves nothing."""

import contextlib
import hashlib
import io
import shutil

import pytest
from rich.console import Console

from engines.gguf.tiny_model import write_tiny_model
from engines.launch import model_quantize, model_store
from engines.launch.model_add import Wish, add_file
from engines.launch.model_manifest import Manifest, ModelError, ModelFacts, SourceKind
from engines.launch.model_quantize import Precision, quantize_model, warning
from engines.launch.model_store import ModelStore


@pytest.fixture
def store(tmp_path):
    """A store with one model of F32 weights, `tiny`."""
    source = tmp_path / "tiny.gguf"
    write_tiny_model(source)
    store = ModelStore(tmp_path / "models")
    add_file(store, source, Wish("tiny", licence="MIT"), _quiet())
    return store


def _quiet():
    return Console(file=io.StringIO(), width=200)


def _models(store):
    return [
        path.name for path in store.folder.iterdir() if path.name.startswith((".", "out")) and path.suffix != ".lock"
    ]


@pytest.mark.parametrize("to", Precision)
def test_the_new_model_is_kept_with_its_own_hash_and_the_old_licence(store, to):
    """It is as checked as one that was added."""
    manifest = quantize_model(store, "tiny", "out", to, _quiet())
    content = store.file("out").read_bytes()
    assert manifest.sha256 == hashlib.sha256(content).hexdigest()
    assert (manifest.kind, manifest.source, manifest.licence) == (SourceKind.QUANTIZED, "tiny", "MIT")
    assert manifest.facts.quantisation == to.name
    assert store.find("out").manifest == manifest
    assert store.find("tiny").problem == ""


def test_a_file_that_was_changed_is_not_quantised(store):
    """Nobody knows what it is now."""
    store.file("tiny").resolve().write_bytes(b"GGUF and something else")
    with pytest.raises(ModelError, match="not the one that was added"):
        quantize_model(store, "tiny", "out", Precision.Q8_0, _quiet())


def test_a_file_that_is_no_model_is_not_quantised(store):
    """Put there by hand, and listed as what it is."""
    (store.folder / "broken.gguf").write_bytes(b"x")
    with pytest.raises(ModelError, match="broken is not a usable model"):
        quantize_model(store, "broken", "out", Precision.Q8_0, _quiet())


def test_a_taken_name_is_refused(store):
    """The source itself above all."""
    with pytest.raises(ModelError, match="already a model tiny"):
        quantize_model(store, "tiny", "tiny", Precision.Q8_0, _quiet())


def test_a_disk_without_room_is_told_before(store, monkeypatch):
    """Minutes of work should not end in the obvious."""
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(model_store.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match="too full"):
        quantize_model(store, "tiny", "out", Precision.Q8_0, _quiet())


def test_a_failure_of_the_process_is_its_sentence_and_leaves_nothing(store, monkeypatch):
    """The file may go between the check and the work."""
    real = model_quantize._run

    def gone(source, *rest):
        real(source.with_name("gone.gguf"), *rest)

    monkeypatch.setattr(model_quantize, "_run", gone)
    with pytest.raises(ModelError, match=r"gone\.gguf"):
        quantize_model(store, "tiny", "out", Precision.Q8_0, _quiet())
    assert _models(store) == []


def test_ctrl_c_ends_the_process_and_leaves_nothing(store, monkeypatch):
    """Whatever the work had written is gone."""

    @contextlib.contextmanager
    def stopped(*_):
        def tell(*_):
            raise KeyboardInterrupt

        yield tell

    monkeypatch.setattr(model_quantize, "progress", stopped)
    with pytest.raises(KeyboardInterrupt):
        quantize_model(store, "tiny", "out", Precision.Q8_0, _quiet())
    assert _models(store) == []


@pytest.mark.parametrize(
    ("has", "to", "said"),
    [
        ("Q4_1", Precision.Q4_0, "costs quality"),
        ("Q4_K_M", Precision.Q4_0, "costs quality"),
        ("IQ2_XS", Precision.Q4_0, "costs quality"),
        ("Q4_1", Precision.Q8_0, "larger and no better"),
        ("Q8_0", Precision.Q4_0, ""),
        ("F16", Precision.Q4_0, ""),
        ("", Precision.Q8_0, ""),
    ],
)
def test_rounding_twice_is_warned_of(has, to, said):
    """Quality that is lost does not come back."""
    manifest = Manifest("m", SourceKind.COPY, "x", "", 1, 1, "", ModelFacts("llama", has))
    text = warning(manifest, to)
    assert said in text
    assert bool(text) == bool(said)
