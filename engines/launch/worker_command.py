"""The command line of one worker process. Pure."""

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker to start. `path`: its model file, None for an engine without one; `kv_tokens`: of its whole cache.

    `threads`: at most so many. `home`: the folder with what was built and measured on this machine. `host_kv_mb`: MiB
    of host memory for KV that is evicted; `speculation`: off or ngram. None leaves both to the worker. `embeddings`: a
    model that generates serves embeddings too. `eviction`: which idle KV goes first, lru or slru.
    """

    name: str
    model: str
    engine: str
    path: Path | None
    max_seqs: int
    kv_tokens: int
    threads: int
    labels: tuple[tuple[str, str], ...] = ()
    home: Path | None = None
    host_kv_mb: int | None = None
    speculation: str | None = None
    embeddings: bool = False
    eviction: str = "lru"


def worker_command(spec: WorkerSpec, *, drain_s: float, log_level: str, itl_p95_s: float | None = None) -> list[str]:
    """`python -m engines.worker` with the options of `spec`, on any free port of the loopback.

    `drain_s`: how long open requests may go on after SIGTERM; the gateway has drained before, so few are left.
    `itl_p95_s`: the gap between an interactive request's tokens that bulk may cause; None leaves it to the worker.
    """
    options = {
        "--engine": spec.engine,
        "--model": spec.model,
        "--host": "127.0.0.1",
        "--port": "0",
        "--max-seqs": str(spec.max_seqs),
        "--kv-tokens": str(spec.kv_tokens),
        "--threads": str(spec.threads),
        "--eviction": spec.eviction,
        "--drain-s": f"{drain_s:g}",
        "--log-level": log_level,
    }
    if spec.home is not None:
        options["--home"] = str(spec.home)
    if spec.path is not None:
        options["--path"] = str(spec.path)
    if spec.host_kv_mb is not None:
        options["--host-kv-mb"] = str(spec.host_kv_mb)
    if spec.speculation is not None:
        options["--speculation"] = spec.speculation
    if itl_p95_s is not None:
        options["--itl-p95-s"] = str(itl_p95_s)
    flat = [word for option in options.items() for word in option]
    flags = ["--embeddings"] if spec.embeddings else []
    return [sys.executable, "-m", "engines.worker", *flat, *flags, "--kv-events", "--die-with-parent"]
