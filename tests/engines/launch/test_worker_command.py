"""The command line of a worker."""

from dataclasses import replace
from pathlib import Path

from engines.launch.worker_command import WorkerSpec, worker_command

SPEC = WorkerSpec("worker-1", "demo", "gguf", Path("/m/a b.gguf"), max_seqs=8, kv_tokens=4096, threads=2)


def options(argv):
    """The options of a command as pairs."""
    return dict(zip(argv[3:-2:2], argv[4:-2:2], strict=True))


def test_every_setting_of_the_plan_reaches_the_worker():
    """A setting that is not passed on is silently ignored."""
    spec = replace(SPEC, home=Path("/h"), host_kv_mb=300, speculation="off", eviction="slru")
    argv = worker_command(spec, drain_s=5, log_level="debug", itl_p95_s=0.04)
    assert argv[1:3] == ["-m", "engines.worker"]
    assert options(argv) == {
        "--engine": "gguf",
        "--model": "demo",
        "--path": "/m/a b.gguf",
        "--host": "127.0.0.1",
        "--port": "0",
        "--max-seqs": "8",
        "--kv-tokens": "4096",
        "--threads": "2",
        "--eviction": "slru",
        "--home": "/h",
        "--host-kv-mb": "300",
        "--speculation": "off",
        "--drain-s": "5",
        "--itl-p95-s": "0.04",
        "--log-level": "debug",
    }
    assert argv[-2:] == ["--kv-events", "--die-with-parent"]


def test_a_model_that_generates_serves_embeddings_where_that_is_wanted():
    """A flag, so that no worker does it unasked."""
    assert "--embeddings" not in worker_command(SPEC, drain_s=5, log_level="info")
    assert "--embeddings" in worker_command(replace(SPEC, embeddings=True), drain_s=5, log_level="info")


def test_an_engine_without_a_model_file_gets_no_path_and_without_an_objective_its_own():
    """The fake engine has no file; the worker knows best what a step may take."""
    argv = worker_command(WorkerSpec("worker-1", "demo", "fake", None, 8, 4096, 1), drain_s=5, log_level="info")
    assert not {"--path", "--itl-p95-s", "--home", "--host-kv-mb", "--speculation"} & set(argv)
