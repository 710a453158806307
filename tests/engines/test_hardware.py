"""What a machine has, read from recorded texts."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import hardware
from engines.hardware import (
    Gpu,
    Hardware,
    best_engine,
    cgroup_limits,
    cores_here,
    detect,
    host_kv_mb_per_worker,
    parse_cpu_max,
    parse_cpuinfo,
    parse_meminfo,
    parse_memory_limit,
    parse_nvidia_smi,
    parse_sysctl,
    spare_memory_bytes,
    threads_per_worker,
    usable_cores,
)

EPYC = """\
processor	: 0
vendor_id	: AuthenticAMD
model name	: AMD EPYC 9R45
cpu MHz		: 2596.096
flags		: fpu sse4_2 avx f16c fma avx2 bmi2 avx512f avx512bw avx512vl avx512_vnni avx512_bf16

processor	: 1
model name	: AMD EPYC 9R45
flags		: fpu sse4_2 avx
"""
XEON = "model name\t: Intel(R) Xeon(R) Platinum 8481C\nflags\t\t: avx avx2 fma avx512f amx_bf16 amx_tile amx_int8\n"
GRAVITON = "processor\t: 0\nBogoMIPS\t: 2100.00\nFeatures\t: fp asimd evtstrm aes fphp i8mm bf16\nCPU part\t: 0xd40\n"
MAC = """\
hw.memsize: 17179869184
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_BF16: 1
machdep.cpu.brand_string: Apple M2
kern.bootargs:
"""
SMI = "NVIDIA H200, 9.0, 143771\nNVIDIA GeForce RTX 4060 Ti, 8.9, 16380\nNVIDIA GB10, 12.1, [N/A]\n"
SMI_FAILURE = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest\n"
    "NVIDIA driver is installed and running, or not, as you like.\n"
)
PLAIN = Hardware("linux", "x86_64", "AMD EPYC", frozenset({"avx2"}), 2, 8 << 30)


@pytest.mark.parametrize(
    ("text", "name", "features"),
    [
        (EPYC, "AMD EPYC 9R45", {"avx2", "avx512f", "avx512_vnni", "avx512_bf16"}),
        (XEON, "Intel(R) Xeon(R) Platinum 8481C", {"avx2", "avx512f", "amx"}),
        (GRAVITON, "", {"neon", "i8mm"}),
        ("model name\t: Old\nflags\t\t: sse2 avx2\n", "Old", set()),
        ("", "", set()),
    ],
)
def test_processor_is_read_from_cpuinfo(text, name, features):
    """The features that the engines' kernels choose by; AVX2 without FMA does not count."""
    assert parse_cpuinfo(text) == (name, frozenset(features))


def test_processor_of_a_mac_is_read_from_sysctl():
    """A Mac has no /proc."""
    assert parse_sysctl(MAC, "arm64") == ("Apple M2", frozenset({"neon", "i8mm"}))
    intel = "machdep.cpu.brand_string: Intel(R) Core(TM) i7\nhw.optional.avx2_0: 1\n"
    assert parse_sysctl(intel, "x86_64") == ("Intel(R) Core(TM) i7", frozenset({"avx2"}))


def test_gpus_are_read_from_nvidia_smi():
    """Names, capability and memory; a GPU with unified memory reports none."""
    assert parse_nvidia_smi(SMI) == (
        Gpu("nvidia", "NVIDIA H200", "9.0", 143771 << 20),
        Gpu("nvidia", "NVIDIA GeForce RTX 4060 Ti", "8.9", 16380 << 20),
        Gpu("nvidia", "NVIDIA GB10", "12.1", None),
    )


@pytest.mark.parametrize("text", ["", "\n", SMI_FAILURE, "No devices were found\n", ",,\n", "a, b, c\n"])
def test_messages_of_nvidia_smi_are_no_gpus(text):
    """A machine with the tool and without a driver has no GPU."""
    assert parse_nvidia_smi(text) == ()


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000\n", 2.0),
        ("50000 100000", 0.5),
        ("max 100000", None),
        ("-1 100000", None),
        (" ", None),
        ("1 0", None),
    ],
)
def test_cpu_quota_is_read(text, cores):
    """Both forms of a container's quota; none is none."""
    assert parse_cpu_max(text) == cores


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("536870912\n", 536870912), ("9223372036854771712\n", None), ("", None), ("-1", None)],
)
def test_memory_limit_is_read(text, limit):
    """cgroup v1 writes "no limit" as a huge number."""
    assert parse_memory_limit(text) == limit


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"), [(8, None, 8), (8, 2.5, 2), (2, 16.0, 2), (4, 0.5, 1), (1, 0.0, 1)]
)
def test_cores_respect_affinity_and_quota(affinity, quota, cores):
    """More threads than the quota pays for are throttled in mid-step."""
    assert usable_cores(affinity, quota) == cores


@pytest.mark.parametrize(("cores", "workers", "threads"), [(2, 2, 1), (2, 1, 2), (1, 4, 1), (16, 3, 5), (4, 0, 4)])
def test_workers_share_the_cores(cores, workers, threads):
    """Two workers of two threads on two cores fell to a quarter of the speed."""
    assert threads_per_worker(cores, workers) == threads


@pytest.mark.parametrize(
    ("spare_gib", "workers", "megabytes"),
    [(64, 1, 1024), (64, 16, 512), (4, 1, 512), (4, 2, 256), (0, 1, 0), (4, 0, 512)],
)
def test_workers_share_an_eighth_of_the_spare_memory(spare_gib, workers, megabytes):
    """However many there are, and never more than 1 GiB each."""
    assert host_kv_mb_per_worker(spare_gib << 30, workers) == megabytes


def test_what_a_container_may_not_have_is_not_spare(tmp_path):
    """The host's free memory is not ours."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1000000\n")
    assert spare_memory_bytes(tmp_path) == 1_000_000
    assert spare_memory_bytes(tmp_path / "nowhere") > 1_000_000


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 512), st.integers(1, 64))
def test_the_thread_plan_never_oversubscribes_unless_it_must(cores, workers):
    """With fewer cores than workers each still has one thread."""
    threads = threads_per_worker(cores, workers)
    assert threads >= 1
    assert threads * workers <= max(cores, workers)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=300))
def test_no_text_breaks_a_parser(text):
    """Files and tools change their form; then something is unknown, not broken: the kind of answer stays."""
    for parse in (parse_cpuinfo, parse_nvidia_smi, parse_cpu_max, parse_memory_limit, parse_meminfo):
        assert isinstance(parse(text), (type(parse("")), type(None), int, float))
    assert isinstance(parse_sysctl(text, "arm64"), type(parse_sysctl("", "arm64")))


def write(root, files):
    """A recorded /proc and /sys."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_the_tightest_group_above_us_counts(tmp_path):
    """A pod's limit binds although the container's own group says max."""
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000",
            "sys/fs/cgroup/pod/container/memory.max": "2147483648",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000",
            "sys/fs/cgroup/pod/memory.max": "1073741824",
        },
    )
    assert cgroup_limits(tmp_path) == (1.5, 1 << 30)


def test_a_group_path_that_the_container_does_not_show_falls_back_to_its_mount(tmp_path):
    """Without a cgroup namespace the path is the host's and only the mount is ours."""
    write(
        tmp_path,
        {
            "proc/self/cgroup": "12:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    assert cgroup_limits(tmp_path) == (3.0, 512 << 20)


def test_a_machine_without_groups_has_no_limits(tmp_path):
    """A Mac, or a bare machine."""
    assert cgroup_limits(tmp_path) == (None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="recorded from Linux")
def test_a_recorded_machine_is_detected(tmp_path, monkeypatch):
    """All the parts together."""
    monkeypatch.setattr(hardware.platform, "machine", lambda: "x86_64")
    write(
        tmp_path,
        {
            "proc/cpuinfo": EPYC,
            "proc/meminfo": "MemTotal:       24684092 kB\nMemFree: 1 kB\n",
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "100000 100000",
            "sys/fs/cgroup/memory.max": "4294967296",
        },
    )
    found = detect(tmp_path, lambda argv: SMI if argv[0] == "nvidia-smi" else "")
    assert (found.cpu_name, found.cores, found.memory_bytes) == ("AMD EPYC 9R45", 1, 4 << 30)
    assert found.gpus[0].name == "NVIDIA H200"


def test_this_very_machine_is_detected():
    """Nothing raises on the machine at hand."""
    found = detect()
    assert found.cores >= 1
    assert found.memory_bytes > 0


def test_gguf_fits_a_plain_machine():
    """The laptop case."""
    choice = best_engine(PLAIN)
    assert (choice.engine, choice.missing) == ("gguf", ())
    assert choice.reason == "gguf (llama.cpp) on 2 cores of AMD EPYC"


def test_a_gpu_is_named_and_not_promised():
    """This version's engines run on the processor, and say so."""
    choice = best_engine(replace(PLAIN, gpus=parse_nvidia_smi(SMI)[:1]))
    assert choice.engine == "gguf"
    assert "NVIDIA H200" in choice.reason
    assert "use the CPU" in choice.reason


def test_a_mac_is_told_that_its_gpu_is_not_used():
    """Apple silicon runs gguf on the processor."""
    mac = Hardware("darwin", "arm64", "Apple M2", frozenset({"neon", "i8mm"}), 8, 16 << 30)
    assert mac.is_apple_silicon
    assert "GPU of this Mac" in best_engine(mac).reason


def test_what_is_missing_is_said_in_a_sentence():
    """An old processor would end the worker with an illegal instruction."""
    (missing,) = best_engine(replace(PLAIN, cpu_features=frozenset())).missing
    assert "AVX2" in missing
    assert best_engine(replace(PLAIN, machine="aarch64", cpu_features=frozenset())).missing == ()


def test_the_cores_of_a_process_are_those_its_quota_pays_for(tmp_path):
    """A container of half a core computes with one thread, whatever its host owns."""
    assert cores_here(tmp_path) >= 1
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/box\n")
    (tmp_path / "sys" / "fs" / "cgroup" / "box").mkdir(parents=True)
    (tmp_path / "sys" / "fs" / "cgroup" / "box" / "cpu.max").write_text("50000 100000\n")
    assert cores_here(tmp_path) == 1
