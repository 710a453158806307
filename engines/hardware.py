"""What this machine has, and which bundled engine fits it.

Reading is split from understanding: parsers are pure and tested on recorded texts, `detect` alone touches the machine.
Limits of a container count: cores and memory are what this process may use, not what the host owns.
"""

import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

# Names on the left are ours; a feature counts when every Linux flag on the right is there.
_FEATURE_FLAGS = {
    "avx2": {"avx2", "fma"},
    "avx512f": {"avx512f"},
    "avx512_vnni": {"avx512_vnni"},
    "avx512_bf16": {"avx512_bf16"},
    "amx": {"amx_tile", "amx_int8"},
    "neon": {"asimd"},
    "i8mm": {"i8mm"},
}
_NVIDIA_QUERY = ("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
_UNLIMITED_BYTES = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63
_MAX_HOST_KV_MB = 1024  # chosen: some 45,000 tokens of a model with 135 million parameters, 8,000 of one with 8 billion
_PROBE_TIMEOUT_S = 10  # nvidia-smi takes seconds where persistence mode is off


@dataclass(frozen=True, slots=True)
class Gpu:
    """One graphics processor. `compute_capability`: such as "9.0", empty when the driver does not say."""

    vendor: str
    name: str
    compute_capability: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """What this process may use. `cores`: after affinity and quota, at least 1. `system`: linux, darwin or windows."""

    system: str
    machine: str
    cpu_name: str
    cpu_features: frozenset[str]
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()

    @property
    def is_apple_silicon(self) -> bool:
        """A Mac with Apple's own processor."""
        return self.system == "darwin" and self.machine == "arm64"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that fits, why, and what this machine lacks to run it (empty: nothing)."""

    engine: str
    reason: str
    missing: tuple[str, ...] = ()


def threads_per_worker(cores: int, workers: int) -> int:
    """Compute threads for each of `workers` on `cores`: never more in sum than there are cores, at least 1 each.

    Measured on 2 cores: two workers of two threads each fell to a quarter of the speed of two workers of one.
    """
    return max(1, cores // max(1, workers))


def host_kv_mb_per_worker(spare_bytes: int, workers: int) -> int:
    """MiB of memory in which each of `workers` keeps KV that it must evict: an eighth of what is spare, shared.

    At most 1 GiB each: it costs nothing until it fills, but a machine's other programs did not ask for it.
    """
    return min(_MAX_HOST_KV_MB, spare_bytes // 8 // max(1, workers) >> 20)


def spare_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that could be taken now; of a container's limit all, since what is used of it is not known."""
    _, limit_bytes = cgroup_limits(root)
    available = int(psutil.virtual_memory().available)
    return available if limit_bytes is None else min(available, limit_bytes)


def best_engine(hardware: Hardware) -> EngineChoice:
    """The bundled engine for this machine. This version bundles one for real models: gguf, on the processor."""
    on = f"{hardware.cores} core{'s' if hardware.cores > 1 else ''} of {hardware.cpu_name or hardware.machine}"
    reason = f"gguf (llama.cpp) on {on}"
    if hardware.gpus:
        names = ", ".join(gpu.name for gpu in hardware.gpus)
        reason += f"; {len(hardware.gpus)} GPU found ({names}), but the engines bundled in this version use the CPU"
    elif hardware.is_apple_silicon:
        reason += "; the engines bundled in this version use the CPU, not the GPU of this Mac"
    is_x86 = hardware.machine.lower() in {"x86_64", "amd64"}
    if is_x86 and "avx2" not in hardware.cpu_features:
        return EngineChoice(
            "gguf", reason, ("AVX2: the bundled llama.cpp library needs a processor with AVX2 and FMA",)
        )
    return EngineChoice("gguf", reason)


def detect(root: Path = Path("/"), run: Callable[[list[str]], str] | None = None) -> Hardware:
    """What this machine has. `root`: where /proc and /sys stand; `run`: a program's stdout, empty if it cannot run."""
    run = run or _program_output
    system, machine = platform.system().lower(), platform.machine()
    if system == "darwin":
        cpu_name, features = parse_sysctl(run(["sysctl", "-a"]), machine)
    else:
        cpu_name, features = parse_cpuinfo(_text(root / "proc/cpuinfo"))
    total_bytes = parse_meminfo(_text(root / "proc/meminfo")) or psutil.virtual_memory().total
    quota, limit_bytes = cgroup_limits(root)
    return Hardware(
        system=system,
        machine=machine,
        cpu_name=cpu_name,
        cpu_features=features,
        cores=usable_cores(_affinity(), quota),
        memory_bytes=min(total_bytes, limit_bytes or total_bytes),
        gpus=parse_nvidia_smi(run(["nvidia-smi", *_NVIDIA_QUERY])),
    )


def cores_here(root: Path = Path("/")) -> int:
    """Whole cores that this process may use, after affinity and quota; at least 1."""
    quota, _ = cgroup_limits(root)
    return usable_cores(_affinity(), quota)


def usable_cores(affinity: int, quota: float | None) -> int:
    """Whole cores: those we may run on, and no more than the quota pays for (1.5 is 1: a second would be throttled)."""
    return max(1, affinity if quota is None else min(affinity, math.floor(quota)))


def parse_cpuinfo(text: str) -> tuple[str, frozenset[str]]:
    """Name and features from Linux' /proc/cpuinfo (x86 says `flags`, Arm says `Features` and no name)."""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    features = frozenset(ours for ours, needed in _FEATURE_FLAGS.items() if needed <= present)
    return (name[1].strip() if name else "", features)


def parse_sysctl(text: str, machine: str) -> tuple[str, frozenset[str]]:
    """Name and features from macOS' `sysctl -a` (`key: value` lines)."""
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    features = set()
    if machine == "arm64":
        features.add("neon")
    if values.get("hw.optional.arm.FEAT_I8MM") == "1":
        features.add("i8mm")
    if values.get("hw.optional.avx2_0") == "1":
        features.add("avx2")
    return values.get("machdep.cpu.brand_string", ""), frozenset(features)


def parse_meminfo(text: str) -> int | None:
    """Bytes of memory from Linux' /proc/meminfo."""
    total = re.search(r"^MemTotal:\s*(\d+) kB$", text, re.MULTILINE)
    return int(total[1]) * 1024 if total else None


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """One GPU a line of `nvidia-smi --query-gpu=name,compute_cap,memory.total` without header and units (MiB).

    Anything else on the line (the tool prints its failures on stdout) is no GPU.
    """
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 2)]
        if len(fields) != 3 or not fields[0]:
            continue
        name, capability, mebibytes = fields
        memory_bytes = int(mebibytes) << 20 if re.fullmatch(r"[0-9]{1,9}", mebibytes) else None
        known = capability if re.fullmatch(r"[0-9]+\.[0-9]+", capability) else ""
        if memory_bytes is not None or known:
            gpus.append(Gpu("nvidia", name, known, memory_bytes))
    return tuple(gpus)


def parse_cpu_max(text: str) -> float | None:
    """Cores that cgroup v2's cpu.max pays for (`200000 100000` is 2.0), None for no quota."""
    match = re.fullmatch(r"([0-9]{1,15}) ([1-9][0-9]{0,15})", text.strip())
    return int(match[1]) / int(match[2]) if match else None


def parse_memory_limit(text: str) -> int | None:
    """Bytes of cgroup v2's memory.max or v1's memory.limit_in_bytes, None for no limit."""
    match = re.fullmatch(r"[0-9]{1,20}", text.strip())
    limit = int(match[0]) if match else None
    return limit if limit is not None and limit < _UNLIMITED_BYTES else None


def cgroup_limits(root: Path) -> tuple[float | None, int | None]:
    """The tightest (cores, bytes) of the control groups this process is in and all above them; None: no limit."""
    quotas, limits = [], []
    for folder in _cgroup_folders(root):
        quotas.append(parse_cpu_max(_text(folder / "cpu.max")))
        v1_quota = f"{_text(folder / 'cpu.cfs_quota_us').strip()} {_text(folder / 'cpu.cfs_period_us').strip()}"
        quotas.append(parse_cpu_max(v1_quota))
        limits.append(parse_memory_limit(_text(folder / "memory.max")))
        limits.append(parse_memory_limit(_text(folder / "memory.limit_in_bytes")))
    return (
        min((quota for quota in quotas if quota is not None), default=None),
        min((limit for limit in limits if limit is not None), default=None),
    )


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """Every folder from our groups up to their mounts; a path that the container does not show is left out."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount = root / "sys/fs/cgroup" / controllers if controllers else root / "sys/fs/cgroup"
        parts = [part for part in path.split("/") if part not in {"", ".."}]
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _program_output(argv: list[str]) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
