"""Which workers a configuration asks for, with names, model files and threads. Pure, but for looking at files."""

import re
from pathlib import Path

from engines.hardware import host_kv_mb_per_worker, threads_per_worker
from engines.launch.model_store import stored_or_path
from engines.launch.worker_command import WorkerSpec
from gateway.settings import ConfigError, Settings, WorkerSection

DEMO_WORKERS = 2  # the second turn of a chat then shows that routing found the warm one


def wanted_workers(
    settings: Settings, model_file: Path | None, demo_model: str, models: Path | None = None
) -> tuple[WorkerSection, ...]:
    """The workers to start: the configured ones, else two of `model_file` (`--model`), else two of the demo model.

    A path that is the name of a model stored in `models` becomes that model's file. A configuration with replicas and
    without workers gets none. Raises `ConfigError` when `--model` meets workers.
    """
    if model_file is not None:
        if settings.workers:
            raise ConfigError("--model is for a start without [[workers]]; the configuration has some: add it there")
        path = str((stored_or_path(str(model_file), models) if models else model_file.expanduser()).absolute())
        return (WorkerSection(model=model_name(model_file), path=path, count=DEMO_WORKERS),)
    if settings.workers or settings.replicas:
        return tuple(_with_file(section, models) for section in settings.workers)
    return (WorkerSection(model=demo_model, count=DEMO_WORKERS),)


def needs_demo_model(sections: tuple[WorkerSection, ...]) -> bool:
    """Whether a worker asks for the demo model (a gguf worker without a path)."""
    return any(section.engine == "gguf" and not section.path for section in sections)


def plan_workers(
    sections: tuple[WorkerSection, ...],
    cores: int,
    demo_file: Path | None,
    taken_names: frozenset[str] = frozenset(),
    spare_bytes: int | None = None,
) -> tuple[WorkerSpec, ...]:
    """One spec a worker, named worker-1, worker-2, …; cores are shared evenly where `threads` is not set.

    `taken_names`: of the configured replicas. `spare_bytes`: memory that could be taken, of which workers get a share
    for KV that they evict where `host_kv_mb` is not set; None leaves that to each. Raises `ConfigError` for a missing
    model file or a name that is taken.
    """
    num_workers = sum(section.count for section in sections)
    threads = threads_per_worker(cores, num_workers)
    host_kv_mb = None if spare_bytes is None else host_kv_mb_per_worker(spare_bytes, num_workers)
    specs: list[WorkerSpec] = []
    for section in sections:
        path = _model_file(section, demo_file)
        for _ in range(section.count):
            name = f"worker-{len(specs) + 1}"
            if name in taken_names:
                raise ConfigError(f"replicas: the name {name} belongs to a worker that Warmlane starts; choose another")
            specs.append(
                WorkerSpec(
                    name=name,
                    model=section.model,
                    engine=section.engine,
                    path=path,
                    max_seqs=section.max_seqs,
                    kv_tokens=section.kv_tokens,
                    host_kv_mb=_host_kv_mb(section, host_kv_mb),
                    eviction=section.eviction,
                    speculation=section.speculation,
                    embeddings=section.embeddings,
                    threads=section.threads or threads,
                    labels=tuple(sorted(section.labels.items())),
                )
            )
    return tuple(specs)


def _host_kv_mb(section: WorkerSection, share: int | None) -> int | None:
    """What is set; else the share, but for the fake engine, which has nothing that was worth keeping."""
    return share if section.host_kv_mb is None and section.engine != "fake" else section.host_kv_mb


def model_name(file: Path) -> str:
    """A model name from a file's name: `/models/My model.Q4.gguf` is `My-model.Q4`."""
    stem = re.sub(r"\.gguf$", "", file.name, flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:128] or "model"


def _with_file(section: WorkerSection, models: Path | None) -> WorkerSection:
    """The section with the file of a stored model in place of its name."""
    if models is None or not section.path:
        return section
    return section.model_copy(update={"path": str(stored_or_path(section.path, models))})


def _model_file(section: WorkerSection, demo_file: Path | None) -> Path | None:
    if section.engine == "fake":
        return None
    if not section.path:
        assert demo_file is not None, "the demo model is there when a worker asks for it"
        return demo_file
    path = Path(section.path).expanduser()
    if not path.exists():
        raise ConfigError(f"workers: the model file {path} does not exist")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise ConfigError(f"workers: the model file {path} is {kind}; give a GGUF file")
    return path
