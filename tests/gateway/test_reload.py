"""A configuration read again: what changes at once, what waits, and that a bad one changes nothing."""

import asyncio

import pytest

from gateway.admin.control_client import ControlError
from gateway.home import HomeError
from gateway.reload import Reloaded, Reloader, compare, merged
from gateway.settings import ConfigError, ReplicaSection, Settings, load
from tests.gateway.kit import MODEL, chat, settings_for
from tests.scripted_engine import ScriptedEngine, answer


def replica(name="a", **fields):
    """A configured replica."""
    return ReplicaSection(**{"name": name, "model": "m", "engine": "vllm", "url": "http://127.0.0.1:1", **fields})


def settings(**sections):
    """Settings as a file would give them."""
    return Settings(**sections)


CHANGES = [
    ({"replicas": [replica().model_dump()]}, ("replicas",), ()),
    ({"telemetry": {"log_level": "debug"}}, ("telemetry.log_level",), ()),
    ({"timeouts": {"idle_s": 5, "connect_s": 5}}, ("timeouts.idle_s",), ("timeouts.connect_s",)),
    ({"retries": {"max_attempts": 1, "budget_ratio": 0.5}}, ("retries.max_attempts",), ("retries.budget_ratio",)),
    ({"outliers": {"max_ejected_share": 0, "first_s": 5}}, ("outliers.max_ejected_share", "outliers.first_s"), ()),
    ({"slow_start": {"window_s": 0}, "hedging": {"max_share": 0.1}}, ("slow_start.window_s", "hedging.max_share"), ()),
    ({"lanes": {"bulk": {"labels": {"pool": "night"}}}}, ("lanes.bulk.labels",), ()),
    (
        {"lanes": {"bulk": {"queue": 5, "lift_after_s": None}, "standard": {"weight": 2, "max_wait_s": 9}}},
        ("lanes.standard.max_wait_s", "lanes.standard.weight", "lanes.bulk.queue", "lanes.bulk.lift_after_s"),
        (),
    ),
    (
        {"lanes": {"interactive": {"queue": 5, "itl_p95_s": 1.0, "reserved_seats": 3}}},
        ("lanes.interactive.queue",),
        ("lanes.interactive.reserved_seats", "lanes.interactive.itl_p95_s"),
    ),
    ({"gateway": {"port": 9, "drain_s": 1}}, (), ("gateway.port", "gateway.drain_s")),
    ({"models": [{"name": "m", "aliases": ["fast"], "price_in": 1, "price_out": 2}]}, ("models",), ()),
    ({"workers": [{"model": "m", "engine": "fake"}]}, (), ("workers",)),
    ({"store": {"url": "sqlite:///x"}}, (), ("store.url",)),
]


@pytest.mark.parametrize(("sections", "live", "later"), CHANGES)
def test_what_changes_at_once_and_what_needs_a_restart_is_told_by_key(sections, live, later):
    """And the settings in force have the one and not the other."""
    old, new = settings(), settings(**sections)
    assert compare(old, new) == Reloaded(live, later)
    force = merged(old, new)
    assert compare(old, force) == Reloaded(live, ())
    assert compare(force, new) == Reloaded((), later)


def test_the_same_again_changes_nothing():
    """People send SIGHUP twice."""
    assert compare(settings(), settings()) == Reloaded((), ())
    assert merged(settings(), settings()) == settings()


class Gateways:
    """Stands for all of them: what they were told, and whether they take it."""

    def __init__(self):
        self.told = []
        self.failing = 0

    async def tell(self, document):
        """One order."""
        if self.failing:
            self.failing -= 1
            raise ControlError("a gateway process did not answer within 2 s")
        self.told.append(Settings.model_validate_json(document))


@pytest.fixture
def gateways():
    return Gateways()


@pytest.fixture
def make(tmp_path, gateways):
    """A reloader that finds this the next time it reads."""

    def build(found, workers=()):
        def reread():
            if isinstance(found, Exception):
                raise found
            return found

        return Reloader(settings(), reread, gateways.tell, tmp_path / "settings.json", workers=frozenset(workers))

    return build


async def test_a_change_reaches_the_gateways_that_run_and_those_that_start(make, gateways, tmp_path):
    """Both must serve alike."""
    new = settings(telemetry={"log_level": "debug"}, gateway={"port": 9})
    reloader = make(new)
    assert load(tmp_path / "settings.json") == settings()
    assert await reloader.reload() == Reloaded(("telemetry.log_level",), ("gateway.port",))
    force = settings(telemetry={"log_level": "debug"})
    assert reloader.settings == force
    assert gateways.told == [force]
    assert load(tmp_path / "settings.json") == force
    assert await reloader.reload() == Reloaded((), ("gateway.port",)), "still to be restarted for"
    assert len(gateways.told) == 1


@pytest.fixture
def bad_key(monkeypatch):
    """A replica's key that no header can carry."""
    monkeypatch.setenv("BAD_KEY", "two words")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ConfigError("f.toml: [gateway] unknown key"), "unknown key"),
        (settings(replicas=[replica("worker-1").model_dump()]), "belongs to a worker"),
        (settings(replicas=[replica(api_key_env="BAD_KEY").model_dump()]), "BAD_KEY must hold visible ASCII"),
    ],
)
@pytest.mark.usefixtures("bad_key")
async def test_a_bad_configuration_is_refused_as_a_whole(make, gateways, tmp_path, found, words):
    """The old one stays in force, also for gateways that start later."""
    reloader = make(found, workers=["worker-1"])
    with pytest.raises(ConfigError, match=words):
        await reloader.reload()
    assert (reloader.settings, gateways.told) == (settings(), [])
    assert load(tmp_path / "settings.json") == settings()


async def test_a_file_that_was_emptied_does_not_end_the_service(make, gateways, tmp_path):
    """Read in the moment in which an editor or a full disk had left nothing in it."""
    reloader = make(settings(replicas=[replica().model_dump()]))
    await reloader.reload()
    reloader._reread = settings
    with pytest.raises(ConfigError, match="an empty file changes nothing"):
        await reloader.reload()
    assert reloader.settings == settings(replicas=[replica().model_dump()])
    assert len(gateways.told) == 1
    reloader._reread = lambda: settings(models=[{"name": "m"}])
    assert "replicas" in (await reloader.reload()).changed, "to name none is possible, beside something else"


async def test_a_gateway_that_does_not_take_it_brings_all_back(make, gateways, tmp_path):
    """Half of them with one configuration and half with another is worse than none."""
    reloader = make(settings(telemetry={"log_level": "debug"}))
    gateways.failing = 1
    with pytest.raises(ControlError):
        await reloader.reload()
    assert (reloader.settings, gateways.told) == (settings(), [settings()])
    assert load(tmp_path / "settings.json") == settings()
    gateways.failing = 2
    with pytest.raises(ControlError):
        await reloader.reload()
    assert reloader.settings == settings()
    assert (await reloader.reload()).changed == ("telemetry.log_level",)


async def test_settings_that_cannot_be_handed_on_are_not_in_force(make, gateways, tmp_path, monkeypatch):
    """A full disk."""
    reloader = make(settings(telemetry={"log_level": "debug"}))

    def full(*_):
        raise HomeError("no space left")

    monkeypatch.setattr("gateway.reload.write_private", full)
    with pytest.raises(ControlError, match="no space left"):
        await reloader.reload()
    assert (reloader.settings, gateways.told) == (settings(), [])


async def test_two_reloads_at_once_are_one_after_the_other(make, gateways):
    """A signal and an order of the admin plane."""
    reloader = make(settings(telemetry={"log_level": "debug"}))
    found = await asyncio.gather(reloader.reload(), reloader.reload())
    assert [one.changed for one in found] == [("telemetry.log_level",), ()]
    assert len(gateways.told) == 1


async def test_a_replica_that_is_left_out_ends_what_it_began(launch):
    """No request is dropped: the stream goes on to its end, and new ones go to the replica that took its place."""
    gateway = await launch()
    gate = asyncio.Event()
    gateway.script(answer("a", "b", gates={2: gate}))
    client = await gateway.start(chat(stream=True))
    await client.until('"a"')
    async with ScriptedEngine() as other:
        section = {**gateway.gateway.settings.replicas[0].model_dump(), "name": "r2", "url": other.url}
        gateway.gateway.apply(gateway.gateway.settings.model_copy(update={"replicas": (ReplicaSection(**section),)}))
        assert [one.name for one in gateway.parts.router.pool] == ["r2"]
        await gateway.parts.fleet.probe_all()
        other.script(answer("new"))
        assert (await gateway.post(chat())).text == "new"
        assert gateway.engine.num_running == 1
        gate.set()
        assert (await client.answer()).text == "ab"
        await gateway.until_quiet()
        await gateway.engine.until_connections(0)


async def test_a_replica_at_another_address_is_probed_there_first(launch):
    """The same name, another process."""
    gateway = await launch()
    async with ScriptedEngine() as other:
        moved = gateway.gateway.settings.replicas[0].model_copy(update={"url": other.url, "seats": 3})
        gateway.gateway.apply(gateway.gateway.settings.model_copy(update={"replicas": (moved,)}))
        assert gateway.parts.router.pool.get("r1").state.value == "joining"
        await gateway.parts.fleet.probe_all()
        other.script(answer("there"))
        assert (await gateway.post(chat())).text == "there"
        assert gateway.parts.router.pool.get("r1").spec.seats == 3


async def test_timeouts_and_labels_hold_for_the_next_request(launch):
    """They are asked for at every use."""
    gateway = await launch()
    changed = settings_for(
        gateway.engines, timeouts={"first_token_s": 0.05}, lanes={"interactive": {"labels": {"a": "b"}}}
    )
    gateway.gateway.apply(changed)
    assert (await gateway.post(chat())).code == "no_replica_not_labelled"
    gateway.gateway.apply(settings_for(gateway.engines, timeouts={"first_token_s": 0.05}))
    gateway.script(answer("x", gates={0: asyncio.Event()}))
    assert (await gateway.post(chat(stream=True))).code == "replica_timeout"


@pytest.mark.usefixtures("bad_key")
async def test_settings_that_a_gateway_cannot_take_change_nothing(launch):
    """It says why, and serves as before."""
    gateway = await launch()
    bad = gateway.gateway.settings.replicas[0].model_copy(update={"name": "r9", "api_key_env": "BAD_KEY"})
    with pytest.raises(ConfigError, match="BAD_KEY"):
        gateway.gateway.apply(gateway.gateway.settings.model_copy(update={"replicas": (bad,)}))
    assert [one.name for one in gateway.parts.router.pool] == ["r1"]
    gateway.script(answer("still"))
    assert (await gateway.post(chat())).text == "still"
    assert MODEL in gateway.parts.fleet.models()


async def test_what_cannot_stand_beside_what_waits_for_a_restart_is_refused(tmp_path, gateways):
    """A worker's model is its own until the restart that ends it, so it is nobody's alias before."""
    old = settings(workers=[{"model": "fast", "engine": "fake"}])
    new = settings(models=[{"name": "m", "aliases": ["fast"]}])
    reloader = Reloader(old, lambda: new, gateways.tell, tmp_path / "settings.json")
    with pytest.raises(ConfigError, match=r"not before a restart.*the name fast stands more than once"):
        await reloader.reload()
    assert (reloader.settings, gateways.told) == (old, [])


def priced(engines, **fields):
    """Settings with a priced model that has an alias."""
    return settings_for(engines, models=[{"name": MODEL, "price_in": 1, "price_out": 10, **fields}])


async def test_an_alias_and_a_price_hold_for_the_next_request(launch):
    """No restart: known at once, charged at the new price, and gone again with the next file."""
    gateway = await launch()
    assert (await gateway.post(chat(model="fast"))).status == 404
    gateway.gateway.apply(priced(gateway.engines, aliases=["fast"]))
    gateway.script(answer("a", prompt_tokens=5))
    assert (await gateway.post(chat(model="fast"))).status == 200
    gateway.gateway.apply(priced(gateway.engines, price_out=20))
    assert (await gateway.post(chat(model="fast"))).status == 404
    gateway.script(answer("a", prompt_tokens=5))
    await gateway.post(chat())
    served = [one for one in await gateway.until_recorded(4) if one.status == 200]
    assert [one.cost_nanousd for one in served] == [5_000 + 10_000, 5_000 + 20_000]
    assert (await gateway.get("/v1/models")).json["data"][0]["id"] == MODEL


async def test_a_stream_goes_on_under_an_alias_and_a_price_that_are_gone(launch):
    """It keeps the model and the price that it came for."""
    gateway = await launch()
    gateway.gateway.apply(priced(gateway.engines, aliases=["fast"]))
    gate = asyncio.Event()
    gateway.script(answer("a", "b", gates={2: gate}, prompt_tokens=5))
    client = await gateway.start(chat(model="fast", stream=True))
    await client.until('"a"')
    gateway.gateway.apply(settings_for(gateway.engines))
    gate.set()
    found = await client.answer()
    assert (found.text, found.is_done) == ("ab", True)
    [record] = await gateway.until_recorded(1)
    assert record.cost_nanousd == 5_000 + 20_000


async def test_queues_and_waits_hold_for_the_next_request_and_nobody_loses_a_place(launch):
    """Who waits goes on waiting, though the queue is shorter now; who comes is under the new bounds."""
    gateway = await launch(seats=1, lanes={"interactive": {"reserved_seats": 0}})
    gate = asyncio.Event()
    gateway.script(answer("one", gates={0: gate}), answer("two"), answer("three"))
    clients = [await gateway.start(chat())]
    await gateway.received()
    clients += [await gateway.start(chat()) for _ in range(2)]
    await gateway.until(lambda: gateway.parts.dispatch.num_waiting == 2)
    short = {"interactive": {"reserved_seats": 0, "queue": 1, "max_wait_s": 1}}
    gateway.gateway.apply(settings_for(gateway.engines, seats=1, lanes=short))
    assert gateway.parts.dispatch.num_waiting == 2
    assert (await gateway.post(chat())).code == "queue_full"
    gateway.gateway.apply(settings_for(gateway.engines, seats=1))
    late = await gateway.start(chat())
    await gateway.until(lambda: gateway.parts.dispatch.num_waiting == 3)
    gate.set()
    gateway.script(answer("four"))
    assert [(await one.answer()).status for one in [*clients, late]] == [200] * 4


async def test_a_refusal_is_told_until_a_good_reading_and_generations_are_counted(make, gateways):
    """P44: also the very same text as before clears it; a reading that changes nothing is no new generation."""
    readings = [
        ConfigError("w.toml: [gateway] unknown key"),
        settings(),
        settings(telemetry={"log_level": "debug"}),
        settings(telemetry={"log_level": "debug"}),
    ]
    reloader = make(settings())

    def reread():
        found = readings.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    reloader._reread = reread
    with pytest.raises(ConfigError):
        await reloader.reload()
    assert reloader.statistics() == {"config": {"generation": 1, "fault": "w.toml: [gateway] unknown key"}}
    assert ("warmlane_config_refused", {}, True) in list(reloader.metrics())
    await reloader.reload()
    assert reloader.statistics() == {"config": {"generation": 1, "fault": None}}
    for _ in range(2):
        await reloader.reload()
        assert reloader.statistics() == {"config": {"generation": 2, "fault": None}}
    readings.append(settings())
    gateways.failing = 2
    with pytest.raises(ControlError):
        await reloader.reload()
    assert reloader.statistics()["config"] == {
        "generation": 2,
        "fault": "a gateway process did not answer within 2 s",
    }
