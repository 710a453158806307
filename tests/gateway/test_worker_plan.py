"""Which workers are started."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.settings import ConfigError, ReplicaSection, Settings, WorkerSection
from gateway.worker_plan import model_name, needs_demo_model, plan_workers, wanted_workers

DEMO = "demo-model"
REPLICA = ReplicaSection(name="a", model="m", engine="vllm", url="http://127.0.0.1:1")


def test_nothing_configured_means_two_demo_workers(tmp_path):
    """One command to a real answer; each worker gets its share of the cores."""
    sections = wanted_workers(Settings(), None, DEMO)
    assert needs_demo_model(sections)
    specs = plan_workers(sections, 4, tmp_path / "demo.gguf")
    assert [(one.name, one.model, one.threads, one.path) for one in specs] == [
        ("worker-1", DEMO, 2, tmp_path / "demo.gguf"),
        ("worker-2", DEMO, 2, tmp_path / "demo.gguf"),
    ]


def test_replicas_alone_mean_no_workers():
    """Whoever attaches engines does not want ours as well."""
    assert wanted_workers(Settings(replicas=(REPLICA,)), None, DEMO) == ()


def test_configured_workers_are_taken_as_they_are(tmp_path):
    """Every field reaches the plan; `threads` wins over the share."""
    file = tmp_path / "x.gguf"
    file.write_text("")
    section = WorkerSection(
        model="m", path=str(file), count=2, max_seqs=3, kv_tokens=512, threads=7, labels={"zone": "b", "a": "c"}
    )
    fake = WorkerSection(model="f", engine="fake")
    sections = wanted_workers(Settings(workers=(section, fake), replicas=(REPLICA,)), None, DEMO)
    assert not needs_demo_model(sections)
    first, _, third = plan_workers(sections, 8, None)
    assert (first.path, first.max_seqs, first.kv_tokens, first.threads) == (file, 3, 512, 7)
    assert first.labels == (("a", "c"), ("zone", "b"))
    assert (third.name, third.engine, third.path, third.threads) == ("worker-3", "fake", None, 2)


def test_workers_share_spare_memory_for_what_they_evict(tmp_path):
    """What is set counts; the fake engine has nothing worth keeping; nobody who says what is spare leaves it to them."""
    file = tmp_path / "x.gguf"
    file.write_text("")
    gguf = WorkerSection(model="m", path=str(file))
    sections = (
        gguf,
        gguf.model_copy(update={"host_kv_mb": 7, "speculation": "off", "embeddings": True, "eviction": "slru"}),
        WorkerSection(model="f", engine="fake"),
    )
    specs = plan_workers(sections, 8, None, spare_bytes=24 << 30)
    assert [one.host_kv_mb for one in specs] == [1024, 7, None]
    assert [one.speculation for one in specs] == [None, "off", None]
    assert [one.embeddings for one in specs] == [False, True, False]
    assert [one.eviction for one in specs] == ["lru", "slru", "lru"]
    assert [one.host_kv_mb for one in plan_workers(sections, 8, None, spare_bytes=3 << 30)] == [128, 7, None]
    assert plan_workers(sections, 8, None)[0].host_kv_mb is None


def test_a_model_file_is_served_by_two_workers(tmp_path):
    """`warmlane up --model`."""
    file = tmp_path / "My model.Q4.gguf"
    file.write_text("")
    specs = plan_workers(wanted_workers(Settings(), file, DEMO), 1, None)
    assert [(one.model, one.path, one.threads) for one in specs] == [("My-model.Q4", file, 1)] * 2


def test_a_model_file_beside_configured_workers_is_refused(tmp_path):
    """It would be unclear which is meant."""
    with pytest.raises(ConfigError, match="--model"):
        wanted_workers(Settings(workers=(WorkerSection(model="m"),)), tmp_path / "m.gguf", DEMO)


def test_a_missing_model_file_is_said_before_anything_starts(tmp_path):
    """A clear sentence with the path."""
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'no.gguf'} does not exist")):
        plan_workers(wanted_workers(Settings(), tmp_path / "no.gguf", DEMO), 1, None)


def test_a_model_that_is_no_file_is_said_as_what_it_is(tmp_path):
    """A folder of another format; a pipe would keep the worker waiting for ever."""
    os.mkfifo(tmp_path / "pipe.gguf")
    for path, kind in ((tmp_path, "is a folder"), (tmp_path / "pipe.gguf", "is no regular file")):
        with pytest.raises(ConfigError, match=kind):
            plan_workers((WorkerSection(model="m", path=str(path)),), 2, None)


def test_a_replica_cannot_have_a_workers_name():
    """The gateway knows replicas by name."""
    with pytest.raises(ConfigError, match="worker-1"):
        plan_workers((WorkerSection(model="m", engine="fake"),), 1, None, frozenset({"worker-1"}))


@settings(deadline=None, max_examples=150)
@given(st.text(min_size=1, max_size=200).filter(lambda name: "/" not in name and "\0" not in name))
def test_any_file_name_makes_a_valid_model_name(name):
    """A name from a file must be one that a client can send and a ready line can carry."""
    WorkerSection(model=model_name(Path("/models") / f"{name}.gguf"))


@pytest.mark.parametrize(
    ("file", "name"), [("a.gguf", "a"), ("A.GGUF", "A"), ("x y.Q4_K_M.gguf", "x-y.Q4_K_M"), ("_.gguf", "model")]
)
def test_model_names_from_files(file, name):
    """What people will see."""
    assert model_name(Path(file)) == name
