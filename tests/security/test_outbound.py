"""P42: the gateway opens connections to the engines of its configuration, and to nobody else, whatever a caller names."""

import socket
import sys
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

from gateway.announced import AnnouncedReplica, Announcement
from gateway.settings import ConfigError, load
from tests.gateway.conftest import launch, way  # noqa: F401  # fixtures
from tests.gateway.kit import chat

TRAP = "169.254.169.254"  # where clouds keep the credentials of a machine


class Watch:
    """Every address that this process connects to or asks a name server for, once it is on."""

    is_on = False
    connected: ClassVar[list] = []
    looked_up: ClassVar[list] = []


def _hook(event, arguments):
    if Watch.is_on and event == "socket.connect":
        Watch.connected.append(arguments[1])
    elif Watch.is_on and event in {"socket.getaddrinfo", "socket.gethostbyname"}:
        Watch.looked_up.append(arguments[0])


sys.addaudithook(_hook)  # cannot be taken away again, so it is switched


@pytest.fixture
def watch():
    """The watch, on from now to the test's end."""
    Watch.connected, Watch.looked_up, Watch.is_on = [], [], True
    yield Watch
    Watch.is_on = False


def image(url, kind="image_url"):
    """A message with a part that names a URL."""
    part = {"type": kind, kind: {"url": url}}
    return [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]


@pytest.mark.parametrize("kind", ["vllm", "warmlane", "llama-server", "openai"])
async def test_only_configured_engines_are_connected_to(launch, watch, kind):  # noqa: F811
    """URLs in messages, bodies and headers, hosts for transfers, redirects of requests: none of them is opened."""
    gateway = await launch(kind=kind)
    bait = f"http://{TRAP}/latest/meta-data"
    bodies = [
        chat(),
        chat(stream=True),
        chat(api_base=bait, base_url=bait, url=bait, callback_url=bait, webhook=bait),
        chat(extra_body={"api_base": bait}, metadata={"webhook_url": bait}),
        chat(kv_transfer_params={"remote_host": TRAP, "remote_port": 80}, bootstrap_host=TRAP),
        {**chat(), "messages": image(bait)},
        {**chat(), "messages": image("file:///etc/passwd")},
        {**chat(), "messages": image(bait, "audio_url")},
    ]
    headers = [("host", TRAP), ("x-forwarded-host", TRAP), ("x-upstream", bait), ("x-original-url", bait)]
    for body in bodies:
        await gateway.post(body, headers=headers[1:])
    await gateway.post(chat(), path=f"{bait}", headers=[])
    await gateway.get(f"//{TRAP}/v1/models")
    await gateway.parts.fleet.probe_all()
    engines = {("127.0.0.1", engine.port) for engine in gateway.engines.all}
    mine = {("127.0.0.1", gateway.port)}  # the test's own client
    assert {tuple(address[:2]) for address in watch.connected if isinstance(address, tuple)} <= engines | mine
    assert engines & {tuple(address[:2]) for address in watch.connected}
    assert {str(name) for name in watch.looked_up} <= {"127.0.0.1", "localhost"}
    for _, request in gateway.engines.requests:
        assert TRAP not in (request.header("host") or "")
        assert not [value for _, value in request.headers if TRAP in value]


async def test_the_watch_sees_what_it_is_there_for(watch):
    """The other half: a connection that is made is seen."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    assert watch.connected


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "gopher://127.0.0.1:70/",
        "unix:///run/engine.sock",
        "127.0.0.1:8000",
        f"http://{TRAP}",
        f"http://{TRAP}:80/v1",
        "http://169.254.1.1:8000",
        "http://[fe80::1]:8000",
        "http://[::ffff:169.254.169.254]",
        "http://0.0.0.0:8000",
        "http://[::]:8000",
        "http://224.0.0.1:8000",
        "http://2852039166",
        "http://0xA9FEA9FE",
        "http://0251.0376.0251.0376",
        "http://user:secret@h:8000",
    ],
)
def test_an_engine_at_a_forbidden_address_is_not_taken(tmp_path, url):
    """Link-local, unspecified and multicast addresses, other schemes, and numbers that hide an address."""
    file = tmp_path / "w.toml"
    file.write_text(f'[[replicas]]\nname = "a"\nmodel = "m"\nengine = "openai"\nurl = "{url}"\n')
    with pytest.raises(ConfigError, match="url"):
        load(file)


async def test_a_worker_that_is_announced_at_such_an_address_is_not_taken_either(launch):  # noqa: F811
    """P42: registration is a door of its own; what is refused there changes nothing."""
    gateway = await launch()
    for url in (f"http://{TRAP}:80", "http://[fe80::1]:8000", "file:///etc/passwd"):
        worker = AnnouncedReplica(name="w", model="m", engine="warmlane", url=url, seats=1)
        with pytest.raises(ValueError):
            gateway.parts.fleet.announce(Announcement(replicas=[worker]))
    assert [replica.name for replica in gateway.parts.router.pool] == ["r1"]


@pytest.mark.parametrize(
    "url", ["http://10.0.0.5:8000", "http://[fd00::5]:8000", "https://api.example/base", "http://h1:1"]
)
def test_an_engine_in_the_house_or_outside_is_taken(tmp_path, url):
    """The other half: private and public addresses and names are what engines have."""
    file = tmp_path / "w.toml"
    file.write_text(f'[[replicas]]\nname = "a"\nmodel = "m"\nengine = "openai"\nurl = "{url}"\n')
    assert urlsplit(load(file).replicas[0].url).hostname == urlsplit(url).hostname
