"""`warmlane doctor`: every reason why a start would fail."""

import hashlib
from dataclasses import replace

import pytest

from engines.hardware import Gpu, Hardware
from gateway import doctor
from gateway.admin_settings import AlertsSection
from gateway.doctor import (
    check_config,
    check_hardware,
    check_llama_library,
    check_models,
    check_plan,
    check_python,
    examine,
)
from gateway.finding import Health, Patient
from gateway.home import Home
from gateway.settings import GatewaySection, ReplicaSection, Settings, StoreSection, WorkerSection
from tests.engines.gguf.files import gguf

HARDWARE = Hardware("linux", "x86_64", "AMD EPYC", frozenset({"avx2"}), 2, 8 << 30)
ANY_PORTS = GatewaySection(port=0, admin_port=0)


@pytest.fixture
def patient(tmp_path):
    """A machine in good health."""
    return Patient(HARDWARE, Home(tmp_path / "home"), Settings(gateway=ANY_PORTS))


def health(findings):
    """How the findings of one check stand."""
    return [one.health for one in findings]


def test_a_healthy_interpreter_has_every_library():
    """The environment that the tests run in."""
    assert health(check_python()) == [Health.OK, Health.OK]


def test_an_absent_library_is_named(monkeypatch):
    """A half-installed environment."""
    monkeypatch.setattr(doctor, "LIBRARIES", ("msgspec", "no-such-library"))
    _, libraries = check_python()
    assert libraries.health is Health.BROKEN
    assert "no-such-library" in libraries.detail
    assert "msgspec" not in libraries.detail


def test_hardware_that_lacks_something_is_broken():
    """A start would end in an illegal instruction."""
    assert health(check_hardware(HARDWARE)) == [Health.OK] * 3
    *_, engine = check_hardware(replace(HARDWARE, cpu_features=frozenset()))
    assert engine.health is Health.BROKEN
    assert "AVX2" in engine.detail


def test_a_gpu_is_shown():
    """With what is known of it."""
    gpus = (Gpu("nvidia", "NVIDIA H200", "9.0", 141 << 30), Gpu("nvidia", "NVIDIA GB10", "", None))
    shown = [one.detail for one in check_hardware(replace(HARDWARE, gpus=gpus)) if one.check == "gpu"]
    assert shown == [
        "NVIDIA H200, compute capability 9.0, 141 GiB",
        "NVIDIA GB10, compute capability unknown, memory unknown",
    ]


def test_the_llama_library_is_tried_in_another_process(monkeypatch, tmp_path):
    """It loads here, and this process still does not hold it."""
    monkeypatch.delenv("WARMLANE_LLAMA_LIBRARY", raising=False)
    (finding,) = check_llama_library(tmp_path)
    assert finding.health is Health.OK
    assert finding.detail.startswith("the library loads: wheel xllamacpp ")


def test_a_native_build_that_is_not_used_is_a_note(tmp_path):
    """Who built one wants to know why it does nothing."""
    (tmp_path / "native").mkdir()
    library, note = check_llama_library(tmp_path)
    assert (library.health, note.health) == (Health.OK, Health.NOTE)
    assert "no native build" in note.detail


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("raise SystemExit('wants glibc 2.38')", "wants glibc 2.38"),
        ("import os; os.kill(os.getpid(), 11)", "exit status -11"),
        ("pass", "exit status 0"),
    ],
)
def test_a_library_that_does_not_load_or_crashes_is_reported(monkeypatch, probe, said):
    """The doctor survives it."""
    monkeypatch.setattr(doctor, "_LIBRARY_PROBE", ("-c", probe))
    (finding,) = check_llama_library()
    assert finding.health is Health.BROKEN
    assert said in finding.detail


def test_a_library_that_hangs_is_reported(monkeypatch):
    """The doctor comes back."""
    monkeypatch.setattr(doctor, "_LIBRARY_PROBE", ("-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(doctor, "_LIBRARY_TIMEOUT_S", 0.1)
    assert health(check_llama_library()) == [Health.BROKEN]


def test_every_problem_of_a_configuration_is_a_finding(patient):
    """One look, all of them."""
    error = "f.toml: [gateway] too high\nf.toml: unknown section [storee]"
    findings = list(check_config(replace(patient, config_error=error)))
    assert [one.detail for one in findings] == error.splitlines()
    assert health(findings) == [Health.BROKEN] * 2
    (single,) = check_config(replace(patient, config_error="cannot read f.toml"))
    assert single.detail == "cannot read f.toml"


def test_a_store_that_this_version_does_not_know_is_a_finding(patient):
    """It is a valid string, and no store."""
    settings = patient.settings.model_copy(update={"store": StoreSection(url="postgres://x/y")})
    assert health(check_config(replace(patient, settings=settings))) == [Health.BROKEN]


def test_the_demo_model_is_looked_at_and_hashed(patient, monkeypatch):
    """Absent and damaged are both repaired by the next start."""
    path = patient.home.models / f"{doctor.DEMO_PACKAGE.name}.gguf"
    model, workers = check_models(patient)
    assert (model.health, workers.health) == (Health.NOTE, Health.OK)
    assert "93 MB" in model.detail
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF damaged")
    model, _ = check_models(patient)
    assert model.health is Health.NOTE
    assert "damaged" in model.detail
    whole = replace(doctor.DEMO_PACKAGE, model_sha256=hashlib.sha256(b"GGUF damaged").hexdigest())
    monkeypatch.setattr(doctor, "DEMO_PACKAGE", whole)
    model, _ = check_models(patient)
    assert model.health is Health.OK


def test_configured_model_files_are_looked_at(patient, tmp_path):
    """Missing, not GGUF, larger than the memory, and well."""
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    good.write_bytes(gguf())
    bad.write_bytes(b"GGUF....")  # begins well
    paths = [good, bad, tmp_path / "absent.gguf"]
    settings = Settings(workers=tuple(WorkerSection(model="m", path=str(path)) for path in paths))
    *models, workers = check_models(replace(patient, settings=settings))
    assert health(models) == [Health.OK, Health.BROKEN, Health.BROKEN]
    assert "cut off" in models[1].detail
    assert workers.health is Health.NOTE
    assert "slow one another" in workers.detail
    tiny = replace(patient, settings=settings, hardware=replace(HARDWARE, memory_bytes=4))
    assert health(check_models(tiny))[0] is Health.BROKEN


def test_the_model_of_the_command_line_is_looked_at(patient, tmp_path):
    """`--model`, as `up` has it; beside configured workers it is a mistake."""
    (tmp_path / "m.gguf").write_bytes(gguf())
    model, _ = check_models(replace(patient, model=tmp_path / "m.gguf"))
    assert model.health is Health.OK
    folder, _ = check_models(replace(patient, model=tmp_path))
    assert (folder.health, "is not a file" in folder.detail) == (Health.BROKEN, True)
    settings = Settings(workers=(WorkerSection(model="m"),))
    assert health(check_models(replace(patient, model=tmp_path / "m.gguf", settings=settings))) == [Health.BROKEN]


def test_what_the_environment_says_to_nobody_is_noted(patient, monkeypatch):
    """A misspelt name, and a replica's key that is not there."""
    monkeypatch.setenv("WARMLANE_GATEWY__PORT", "1")
    replica = ReplicaSection(name="a", model="m", engine="vllm", url="http://127.0.0.1:1", api_key_env="NO_SUCH_KEY")
    notes = [
        one for one in check_config(replace(patient, settings=Settings(replicas=(replica,)))) if one.check != "config"
    ]
    assert health(notes) == [Health.NOTE, Health.NOTE]
    assert "WARMLANE_GATEWY__PORT" in notes[0].detail
    assert "NO_SUCH_KEY" in notes[1].detail


def test_replicas_alone_need_no_model(patient):
    """Nothing would be started."""
    replica = ReplicaSection(name="a", model="m", engine="vllm", url="http://127.0.0.1:1")
    assert list(check_models(replace(patient, settings=Settings(replicas=(replica,))))) == []


def test_an_engine_that_no_start_wants_need_not_fit(patient):
    """A gateway for replicas alone runs on any processor."""
    bare = replace(HARDWARE, cpu_features=frozenset())
    assert list(check_hardware(bare, is_gguf_wanted=False))[-1].health is Health.NOTE


def test_what_a_start_would_run_is_told(patient):
    """Without port variables too: the ports of the configuration, not those somebody had in mind."""
    settings = Settings(workers=(WorkerSection(model="m", engine="fake", count=2),))
    assert [one.detail for one in check_plan(replace(patient, settings=settings))] == [
        "1 gateway process at 127.0.0.1:8080, admin plane at 127.0.0.1:8081",
        "2 fake workers with m: 8 seats, 16384 KV tokens, 1 of 2 cores each",
    ]
    assert list(check_plan(replace(patient, config_error="bad"))) == []


def test_models_that_do_not_fit_together_are_broken(patient, tmp_path):
    """Each alone would."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(gguf())
    size = (tmp_path / "a").stat().st_size
    workers = tuple(WorkerSection(model=name, path=str(tmp_path / name), count=2) for name in ("a", "b"))
    tight = replace(patient, settings=Settings(workers=workers), hardware=replace(HARDWARE, memory_bytes=size + 1))
    assert [one.detail for one in check_models(tight) if one.health is Health.BROKEN] == [
        f"together the model files have {2 * size / 2**30:.1f} GiB, more than the memory"
    ]


def test_a_replica_with_a_workers_name_is_broken(patient):
    """A start refuses it, after a download."""
    replica = ReplicaSection(name="worker-1", model="m", engine="vllm", url="http://127.0.0.1:1")
    settings = Settings(replicas=(replica,), workers=(WorkerSection(model="w", engine="fake"),))
    broken = [one.detail for one in check_models(replace(patient, settings=settings)) if one.health is Health.BROKEN]
    assert broken == ["replicas: the name worker-1 belongs to a worker; choose another"]


def test_no_room_for_the_demo_model_is_broken(patient, monkeypatch):
    """The first start would fail in the middle of it."""
    monkeypatch.setattr(doctor, "free_bytes", lambda _path: 1_000_000)
    model, _ = check_models(patient)
    assert (model.health, "only 1 MB left" in model.detail) == (Health.BROKEN, True)


async def test_a_whole_examination_of_a_bad_configuration_goes_on(tmp_path):
    """A bad file does not hide what else is wrong."""
    (tmp_path / "bad.toml").write_text("[gateway]\nport = 'x'\n[nonsense]\n")
    findings = await examine(Home(tmp_path / "home"), tmp_path / "bad.toml", {"port": 0, "admin_port": 0})
    broken = [one.check for one in findings if one.health is Health.BROKEN]
    assert broken == ["config", "config"]
    assert [one.check for one in findings][:2] == ["python", "libraries"]
    assert "any free one on 127.0.0.1" in [one.detail for one in findings if one.check == "port"]


async def test_a_configuration_that_cannot_be_read_tells_nothing_of_its_models(tmp_path):
    """The defaults' workers are not those that a start would want."""
    findings = await examine(Home(tmp_path / "home"), tmp_path / "none.toml", {"port": 0, "admin_port": 0})
    assert {one.check for one in findings if one.health is Health.BROKEN} == {"config"}
    assert not {"model", "workers", "plan"} & {one.check for one in findings}


@pytest.mark.parametrize(("secret", "is_broken"), [("", True), ("short", True), ("long-enough-to-sign-with", False)])
def test_alerts_that_nothing_can_sign_are_broken(patient, monkeypatch, secret, is_broken):
    """A start would be refused for it."""
    monkeypatch.setenv("HOOK_SECRET", secret)
    alerts = AlertsSection(webhook_url="https://hooks.example.com/x", webhook_secret_env="HOOK_SECRET")
    [found] = check_config(replace(patient, settings=patient.settings.model_copy(update={"alerts": alerts})))
    assert found.health is (Health.BROKEN if is_broken else Health.OK)
    assert not is_broken or "HOOK_SECRET" in found.detail
