"""What the doctor says of the places that a start would take."""

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from engines.hardware import Hardware
from gateway.doctor import check_config
from gateway.doctor_places import (
    check_home,
    check_ports,
    check_replicas,
    check_store,
    check_token,
    check_tokenizers,
    listener_of,
)
from gateway.finding import Health, Patient
from gateway.home import Home
from gateway.model_settings import ModelSection
from gateway.ports import listen_on
from gateway.settings import GatewaySection, ReplicaSection, Settings, StoreSection
from gateway.stores import opened
from policies.sqlite_store import SqliteStore
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures

HARDWARE = Hardware("linux", "x86_64", "AMD EPYC", frozenset({"avx2"}), 2, 8 << 30)


@pytest.fixture
def patient(tmp_path):
    """A machine in good health."""
    return Patient(HARDWARE, Home(tmp_path / "home"), Settings(gateway=GatewaySection(port=0, admin_port=0)))


def health(findings):
    """How the findings of one check stand."""
    return [one.health for one in findings]


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
        me = f"{psutil.Process().name()} (process {os.getpid()})"
        assert f"is taken by {me}; choose another with --port or WARMLANE_PORT" in port.detail
        with patient.home.held():
            port, _ = check_ports(replace(patient, settings=settings))
            assert port.health is Health.BROKEN, "this home's Warmlane runs, but on other ports"
            url = f"http://127.0.0.1:{gateway.port}/v1"
            patient.home.demo.write_text(json.dumps({"url": url, "admin": "http://127.0.0.1:1"}))
            port, _ = check_ports(replace(patient, settings=settings))
            assert (port.health, "in this home" in port.detail) == (Health.NOTE, True)
            (home,) = check_home(patient.home)
            assert (home.health, "a second start is refused" in home.detail) == (Health.NOTE, True)


def test_one_port_for_both_is_told_as_a_start_would(patient):
    """Each of them is free."""
    settings = Settings(gateway=GatewaySection(port=9, admin_port=9))
    (finding,) = check_ports(replace(patient, settings=settings))
    assert (finding.health, "cannot share port 9" in finding.detail) == (Health.BROKEN, True)


def test_who_listens_may_be_unknown(monkeypatch):
    """Another user's program: its port is taken all the same."""

    def denied(_kind):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "net_connections", denied)
    assert listener_of(80) == ""


def test_an_admin_token_that_no_start_takes_is_broken(patient):
    """It is looked at, not made."""
    (finding,) = check_token(patient.home, {"WARMLANE_ADMIN_TOKEN": "short"})
    assert finding.health is Health.BROKEN
    assert list(check_token(patient.home, {"WARMLANE_ADMIN_TOKEN": "long, but of several words"})) != []
    assert list(check_token(patient.home, {"WARMLANE_ADMIN_TOKEN": "x" * 32})) == []
    assert list(check_token(patient.home, {})) == []
    assert not patient.home.path.exists()


async def test_replicas_are_knocked_at(patient, monkeypatch):
    """One that is not there is worth knowing and stops no start; a key that no header can carry does."""
    monkeypatch.setenv("BAD_KEY", "two words")
    fields = {"model": "m", "engine": "vllm"}
    with contextlib.closing(listen_on("127.0.0.1", 0, remedy="")) as there:
        replicas = (
            ReplicaSection(name="a", url=f"http://127.0.0.1:{there.getsockname()[1]}", **fields),
            ReplicaSection(name="b", url="http://127.0.0.1:1", **fields),
            ReplicaSection(name="c", url="http://127.0.0.1:1", api_key_env="BAD_KEY", **fields),
        )
        findings = await check_replicas(replicas)
    assert health(findings) == [Health.OK, Health.NOTE, Health.BROKEN]
    assert "b: nobody at 127.0.0.1:1" in findings[1].detail


def test_a_tokenizer_that_cannot_be_used_is_told(tmp_path):
    """Routing would go by predictions, and nobody would know why."""
    missing = str(tmp_path / "tokenizer.json")
    models = [
        ModelSection(name="a", tokenizer="fake"),
        ModelSection(name="b", tokenizer=missing),
        ModelSection(name="c"),
    ]
    findings = list(check_tokenizers(models))
    assert health(findings) == [Health.OK, Health.NOTE]
    assert "tokenizer.json cannot be read" in findings[1].detail


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
    assert "1 organisation, 0 projects, 0 keys" in finding.detail
    path.write_bytes(b"this is no database" * 100)
    assert health(await check_store(patient)) == [Health.BROKEN]


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
    assert finding.detail == f"{redis_server.url}: 1 organisation, 0 projects, 0 keys"
    redis_server.kill()
    (finding,) = await check_store(shared)
    assert finding.health is Health.BROKEN
    assert health(check_config(with_store("redis://host:99999999/0"))) == [Health.BROKEN]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a file system that lets nobody make a folder")
async def test_a_home_or_store_that_nothing_can_be_made_in_is_broken(patient):
    """Rights alone do not tell: in /proc root may do all, and can make nothing."""
    (finding,) = check_home(Home(Path("/proc/warmlane/home")))
    assert finding.health is Health.BROKEN
    assert "/proc/warmlane/home cannot be made: " in finding.detail
    assert "choose another with --home" in finding.detail
    assert health(check_home(Home(Path("/proc")))) == [Health.BROKEN]
    store = StoreSection(url="sqlite:////proc/warmlane/store.sqlite3")
    (finding,) = await check_store(replace(patient, settings=patient.settings.model_copy(update={"store": store})))
    assert (finding.health, "cannot be made" in finding.detail) == (Health.BROKEN, True)


async def test_looking_leaves_nothing_behind(patient, tmp_path):
    """Neither a folder that was missing nor a file in one that was there."""
    deep = Home(tmp_path / "a" / "b" / "c")
    assert health(check_home(deep)) == [Health.OK]
    assert health(await check_store(replace(patient, home=deep))) == [Health.OK]
    patient.home.create()
    assert health(check_home(patient.home)) == [Health.OK]
    assert [one.name for one in tmp_path.rglob("*")] == [patient.home.path.name]
