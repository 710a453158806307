"""`warmlane doctor`: what this machine has, which engine fits it, and every reason why a start would fail.

Each check returns findings and changes nothing. Engine code is asked in a process of its own: the gateway's package
never loads it, and a library that crashes must not take the doctor with it.
"""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from engines.hardware import Hardware, best_engine, detect, threads_per_worker
from engines.launch.demo_model import DEMO_MODEL_NAME, DEMO_PACKAGE
from gateway.environment import overlooked
from gateway.home import Home, HomeError
from gateway.ports import PortUnusable, check_port
from gateway.settings import ConfigError, Settings, WorkerSection, load
from gateway.stores import is_made, opened, store_name
from gateway.worker_plan import needs_demo_model, wanted_workers
from policies.store import StoreError

LIBRARIES = ("cffi", "httptools", "msgspec", "starlette", "tiktoken", "uvicorn", "uvloop", "xllamacpp", "xxhash")
_LIBRARY_TIMEOUT_S = 60
# Prints what the engine itself would check before it loads a model.
_LIBRARY_PROBE = "from engines.gguf.library import open_library; open_library(); print('loads')"
_GIB = 1 << 30


class Health(Enum):
    """How a finding stands: `BROKEN` would stop a start, `NOTE` is worth knowing."""

    OK = "ok"
    NOTE = "note"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at, with a sentence about it."""

    check: str
    health: Health
    detail: str


@dataclass(frozen=True, slots=True)
class Patient:
    """What is examined: this machine's `hardware`, a home folder and a configuration that could be read or not."""

    hardware: Hardware
    home: Home
    settings: Settings
    config_error: str = ""
    model: Path | None = None


async def examine(
    home: Home, config: Path | None, ports: Mapping[str, int | None], model: Path | None = None
) -> list[Finding]:
    """Every finding, in the order of a start. `ports`: `port` and `admin_port` as given beside the configuration.

    `model`: the file of `--model`.
    """
    error = ""
    try:
        settings = load(config)
    except ConfigError as problem:
        settings, error = Settings.model_construct(), str(problem)
    given = {name: port for name, port in ports.items() if port is not None}
    settings = settings.model_copy(update={"gateway": settings.gateway.model_copy(update=given)})
    patient = Patient(detect(), home, settings, error, model)
    return [
        *check_python(),
        *check_hardware(patient.hardware),
        *check_llama_library(),
        *check_config(patient),
        *check_models(patient),
        *check_home(home),
        *check_ports(patient),
        *await check_store(patient),
    ]


def check_python() -> Iterator[Finding]:
    """The interpreter and the libraries that must be there."""
    is_supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding("python", _ok(is_supported), f"{platform.python_version()} (3.11 to 3.13 are supported)")
    versions, absent = [], []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
    if absent:
        yield Finding("libraries", Health.BROKEN, f"not installed: {', '.join(absent)}; run make run, or pip install")
    else:
        yield Finding("libraries", Health.OK, ", ".join(versions))


def check_hardware(hardware: Hardware) -> Iterator[Finding]:
    """The processor, the memory, the GPUs, and the engine that fits them."""
    features = ", ".join(sorted(hardware.cpu_features)) or "none that matter"
    name = hardware.cpu_name or hardware.machine
    yield Finding("processor", Health.OK, f"{hardware.cores} cores of {name} ({hardware.system}); features: {features}")
    yield Finding("memory", Health.OK, f"{hardware.memory_bytes / _GIB:.1f} GiB")
    for gpu in hardware.gpus:
        memory = f"{gpu.memory_bytes / _GIB:.0f} GiB" if gpu.memory_bytes is not None else "memory unknown"
        yield Finding(
            "gpu", Health.NOTE, f"{gpu.name}, compute capability {gpu.compute_capability or 'unknown'}, {memory}"
        )
    choice = best_engine(hardware)
    yield Finding("engine", _ok(not choice.missing), "; ".join([choice.reason, *choice.missing]))


def check_llama_library() -> Iterator[Finding]:
    """Whether the bundled llama.cpp library loads and is the one our declarations describe."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIBRARY_PROBE],
            capture_output=True,
            text=True,
            timeout=_LIBRARY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("llama.cpp", Health.BROKEN, f"the library could not be tried: {error}")
        return
    if done.returncode == 0 and done.stdout.strip().endswith("loads"):
        yield Finding("llama.cpp", Health.OK, "the library loads")
    else:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        yield Finding("llama.cpp", Health.BROKEN, f"the library does not load: {said}")


def check_config(patient: Patient) -> Iterator[Finding]:
    """Every problem of the configuration, one finding each."""
    if patient.config_error:
        head, *rest = patient.config_error.splitlines()
        for line in rest or [head]:
            yield Finding("config", Health.BROKEN, line.strip())
        return
    try:
        store_name(patient.settings.store, patient.home.path)
    except (ConfigError, StoreError) as error:
        yield Finding("config", Health.BROKEN, str(error))
        return
    for sentence in overlooked(patient.settings, os.environ):
        yield Finding("environment", Health.NOTE, sentence)
    settings = patient.settings
    counts = f"{len(settings.workers)} [[workers]], {len(settings.replicas)} [[replicas]]"
    processes = settings.gateway.processes
    yield Finding("config", Health.OK, f"sound: {counts}, {processes} gateway process{'es' if processes > 1 else ''}")


def check_models(patient: Patient) -> Iterator[Finding]:
    """The model files of the workers that would be started, whether they are whole, and whether they fit."""
    try:
        sections = wanted_workers(patient.settings, patient.model, DEMO_MODEL_NAME)
    except ConfigError as error:
        yield Finding("model", Health.BROKEN, str(error))
        return
    count = sum(section.count for section in sections)
    if needs_demo_model(sections):
        yield _demo_model(patient.home.models / f"{DEMO_PACKAGE.name}.gguf")
    for section in sections:
        if section.path and section.engine == "gguf":
            yield _model_file(section, patient.hardware.memory_bytes)
    if count:
        threads = threads_per_worker(patient.hardware.cores, count)
        health = Health.OK if count <= patient.hardware.cores else Health.NOTE
        detail = f"{count} on {patient.hardware.cores} cores, {threads} thread{'s' if threads > 1 else ''} each"
        yield Finding(
            "workers", health, detail if health is Health.OK else f"{detail}: they will slow one another down"
        )


def check_home(home: Home) -> Iterator[Finding]:
    """Whether the home folder can be used, and whether a Warmlane uses it now."""
    try:
        home.check()
    except HomeError as error:
        yield Finding("home", Health.BROKEN, str(error))
        return
    holder = home.holder()
    if holder is None:
        is_there = home.path.exists()
        yield Finding(
            "home", Health.OK, f"{home.path} {'can be written' if is_there else 'is made at the first start'}"
        )
    else:
        yield Finding("home", Health.NOTE, f"{home.path} is in use by the Warmlane that runs as process {holder}")


def check_ports(patient: Patient) -> Iterator[Finding]:
    """Whether both listeners could be had now; taken by the Warmlane of this very home is no fault."""
    gateway, is_running = patient.settings.gateway, is_in_use(patient.home)
    both = (
        ("port", gateway.host, gateway.port, "--port or WARMLANE_PORT"),
        ("admin port", gateway.admin_host, gateway.admin_port, "--admin-port or WARMLANE_ADMIN_PORT"),
    )
    for name, host, port, remedy in both:
        try:
            check_port(host, port, remedy=remedy)
        except PortUnusable as error:
            health, why = (
                (Health.NOTE, "in use; a Warmlane runs in this home") if is_running else (Health.BROKEN, str(error))
            )
            yield Finding(name, health, why)
        else:
            yield Finding(name, Health.OK, f"{port} on {host} is free" if port else f"any free one on {host}")


async def check_store(patient: Patient) -> list[Finding]:
    """Whether the store can be read."""
    try:
        section, home = patient.settings.store, patient.home.path
        name = store_name(section, home)
        if not await is_made(section, home):
            return [Finding("store", Health.OK, f"{name} is made at the first start")]
        async with opened(section, home) as store:
            snapshot = await store.snapshot()
    except (StoreError, ConfigError) as error:
        return [Finding("store", Health.BROKEN, str(error))]
    now = time.time()
    keys = [key for key in snapshot.keys if key.expires_at is None or key.expires_at > now]
    detail = f"{name}: {len(snapshot.organizations)} organisations, {len(snapshot.projects)} projects, {len(keys)} keys"
    return [Finding("store", Health.OK, detail)]


def is_in_use(home: Home) -> bool:
    """Whether a running Warmlane holds this home."""
    return home.holder() is not None


def _demo_model(path: Path) -> Finding:
    if not path.is_file():
        megabytes = DEMO_PACKAGE.wheel_bytes / 1e6
        return Finding(
            "model", Health.NOTE, f"{DEMO_MODEL_NAME} is not there yet: the first start brings it ({megabytes:.0f} MB)"
        )
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return Finding("model", Health.BROKEN, f"{path} cannot be read: {error.strerror}")
    if digest != DEMO_PACKAGE.model_sha256:
        return Finding("model", Health.NOTE, f"{path} is damaged (its SHA-256 differs): the next start brings it anew")
    return Finding("model", Health.OK, f"{path}, SHA-256 as expected")


def _model_file(section: WorkerSection, memory_bytes: int) -> Finding:
    path = Path(section.path).expanduser()
    try:
        wrong, size = _header_problem(path), path.stat().st_size
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("model", Health.BROKEN, f"{section.model}: {path} cannot be read: {error}")
    if wrong:
        return Finding("model", Health.BROKEN, f"{section.model}: {wrong}")
    if size > memory_bytes:
        return Finding(
            "model", Health.BROKEN, f"{section.model}: {path} has {size / _GIB:.1f} GiB, more than the memory"
        )
    return Finding("model", Health.OK, f"{section.model}: {path} ({size / _GIB:.1f} GiB)")


def _header_problem(path: Path) -> str:
    """What the engine's own reader says against the file, empty for a whole one."""
    done = subprocess.run(
        [sys.executable, "-m", "engines.gguf.header", str(path)],
        capture_output=True,
        text=True,
        timeout=_LIBRARY_TIMEOUT_S,
        check=False,
    )
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]


def _ok(condition: bool) -> Health:
    return Health.OK if condition else Health.BROKEN
