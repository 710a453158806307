"""`warmlane doctor`: every reason why a start would fail."""

import contextlib
import hashlib
from dataclasses import replace

import pytest

from engines.hardware import Gpu, Hardware
from gateway import doctor
from gateway.doctor import (
    Finding,
    Health,
    Patient,
    check_config,
    check_hardware,
    check_home,
    check_llama_library,
    check_models,
    check_ports,
    check_python,
    check_store,
    examine,
)
from gateway.home import Home
from gateway.ports import listen_on
from gateway.settings import GatewaySection, ReplicaSection, Settings, StoreSection, WorkerSection
from gateway.stores import opened
from policies.sqlite_store import SqliteStore
from tests.engines.gguf.files import gguf
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures

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


def test_the_llama_library_is_tried_in_another_process():
    """It loads here, and this process still does not hold it."""
    (finding,) = check_llama_library()
    assert finding == Finding("llama.cpp", Health.OK, "the library loads")


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
    monkeypatch.setattr(doctor, "_LIBRARY_PROBE", probe)
    (finding,) = check_llama_library()
    assert finding.health is Health.BROKEN
    assert said in finding.detail


def test_a_library_that_hangs_is_reported(monkeypatch):
    """The doctor comes back."""
    monkeypatch.setattr(doctor, "_LIBRARY_PROBE", "import time; time.sleep(600)")
    monkeypatch.setattr(doctor, "_LIBRARY_TIMEOUT_S", 0.1)
    assert health(check_llama_library()) == [Health.BROKEN]


def test_every_problem_of_a_configuration_is_a_finding(patient):
    """One look, all of them."""
    error = "the configuration f.toml cannot be used:\n  gateway.port: too high\n  storee: unknown"
    findings = list(check_config(replace(patient, config_error=error)))
    assert [one.detail for one in findings] == ["gateway.port: too high", "storee: unknown"]
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


def test_a_home_that_cannot_be_used_is_broken(patient, tmp_path):
    """A file stands in its place."""
    (tmp_path / "file").write_text("")
    assert health(check_home(Home(tmp_path / "file"))) == [Health.BROKEN]
    assert health(check_home(Home(tmp_path / "file" / "below"))) == [Health.BROKEN]
    assert health(check_home(patient.home)) == [Health.OK]
    assert not patient.home.path.exists()  # looking makes nothing


def test_taken_ports_are_broken_unless_our_own_warmlane_has_them(patient):
    """Running the doctor beside a running Warmlane is no fault."""
    patient.home.create()
    with contextlib.closing(listen_on("127.0.0.1", 0, remedy="")) as taken:
        gateway = GatewaySection(port=taken.getsockname()[1], admin_port=0)
        settings = patient.settings.model_copy(update={"gateway": gateway})
        port, admin = check_ports(replace(patient, settings=settings))
        assert (port.health, admin.health) == (Health.BROKEN, Health.OK)
        assert "is taken; choose another with --port or WARMLANE_PORT" in port.detail
        with patient.home.held():
            port, _ = check_ports(replace(patient, settings=settings))
            assert port.health is Health.NOTE
            (home,) = check_home(patient.home)
            assert home.health is Health.NOTE


async def test_the_store_is_read_when_there_is_one(patient):
    """Absent is well, damaged is broken."""
    patient.home.create()
    path = patient.home.path / "warmlane.sqlite3"
    (finding,) = await check_store(patient)
    assert "made at the first start" in finding.detail
    assert not path.exists()
    async with await SqliteStore.open(path) as store:
        await store.create_organization("demo")
    (finding,) = await check_store(patient)
    assert "1 organisations, 0 projects, 0 keys" in finding.detail
    path.write_bytes(b"this is no database" * 100)
    assert health(await check_store(patient)) == [Health.BROKEN]


async def test_a_whole_examination_of_a_bad_configuration_goes_on(tmp_path):
    """A bad file does not hide what else is wrong."""
    (tmp_path / "bad.toml").write_text("[gateway]\nport = 'x'\n[nonsense]\n")
    findings = await examine(Home(tmp_path / "home"), tmp_path / "bad.toml", {"port": 0, "admin_port": 0})
    broken = [one.check for one in findings if one.health is Health.BROKEN]
    assert broken == ["config", "config"]
    assert [one.check for one in findings][:2] == ["python", "libraries"]
    assert "any free one on 127.0.0.1" in [one.detail for one in findings if one.check == "port"]


async def test_a_shared_store_is_asked_and_not_written(patient, redis_server):  # noqa: F811
    """Reachable and empty is well; what lives in it is counted; one that does not answer is broken."""

    def with_store(url):
        return replace(patient, settings=patient.settings.model_copy(update={"store": StoreSection(url=url)}))

    shared = with_store(redis_server.url)
    assert health(check_config(shared)) == [Health.OK]
    (finding,) = await check_store(shared)
    assert finding.detail == f"{redis_server.url} is made at the first start"
    with redis_server.client() as client:
        assert client.dbsize() == 0
    async with opened(shared.settings.store, patient.home.path) as store:
        await store.create_organization("demo")
    (finding,) = await check_store(shared)
    assert finding.detail == f"{redis_server.url}: 1 organisations, 0 projects, 0 keys"
    redis_server.kill()
    (finding,) = await check_store(shared)
    assert finding.health is Health.BROKEN
    assert health(check_config(with_store("redis://host:99999999/0"))) == [Health.BROKEN]
