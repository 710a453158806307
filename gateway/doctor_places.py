"""The doctor's look at what a start would take: home folder, ports, store, replicas. Leaves nothing behind."""

import asyncio
import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import psutil

from gateway.finding import Finding, Health, Patient
from gateway.fleet import api_key
from gateway.home import Home, HomeError, store_path, try_to_write
from gateway.model_settings import ModelSection
from gateway.ports import PortUnusable, check_port
from gateway.prompt_tokens import unreadable
from gateway.settings import ConfigError, ReplicaSection
from gateway.stores import is_made, opened, store_name
from policies.store import StoreError

_CONNECT_S = 1.0  # chosen: a replica that takes longer to be reached is worth a word


def check_home(home: Home) -> Iterator[Finding]:
    """Whether the home folder can be used, and whether a Warmlane uses it now."""
    try:
        home.check()
    except HomeError as error:
        yield Finding("home", Health.BROKEN, str(error))
        return
    holder = home.holder()
    if holder is not None:
        detail = f"{home.path} is in use by the Warmlane that runs as process {holder}: a second start is refused"
        yield Finding("home", Health.NOTE, detail)
        return
    what = "can be written" if home.path.exists() else "is made at the first start"
    yield Finding("home", Health.OK, f"{home.path} {what}")


def check_token(home: Home, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the admin token can be used, where the environment has one; else a start makes or finds its own."""
    if environment.get("WARMLANE_ADMIN_TOKEN"):
        try:
            home.admin_token(environment)
        except HomeError as error:
            yield Finding("admin token", Health.BROKEN, str(error))


def check_ports(patient: Patient) -> Iterator[Finding]:
    """Whether both listeners could be had now, and who has them; the Warmlane of this very home is no fault."""
    gateway = patient.settings.gateway
    if gateway.port and gateway.port == gateway.admin_port:
        yield Finding("port", Health.BROKEN, f"gateway and admin plane cannot share port {gateway.port}")
        return
    both = (
        ("port", gateway.host, gateway.port, "--port or WARMLANE_PORT"),
        ("admin port", gateway.admin_host, gateway.admin_port, "--admin-port or WARMLANE_ADMIN_PORT"),
    )
    for name, host, port, remedy in both:
        try:
            check_port(host, port, remedy=remedy)
        except PortUnusable as error:
            yield _taken(name, host, port, str(error), patient.home)
        else:
            yield Finding(name, Health.OK, f"{port} on {host} is free" if port else f"any free one on {host}")


def _taken(name: str, host: str, port: int, why: str, home: Home) -> Finding:
    if home.holder() is not None and port in _own_ports(home):
        return Finding(name, Health.NOTE, f"{port} on {host} is taken by the Warmlane that runs in this home")
    owner = listener_of(port)
    return Finding(name, Health.BROKEN, why.replace(" is taken;", f" is taken by {owner};") if owner else why)


def _own_ports(home: Home) -> frozenset[int]:
    """The ports of the Warmlane that was last ready in this home."""
    demo = home.read_demo()
    found = (re.search(r":(\d+)(?:/|$)", str(demo.get(name, "")).removeprefix("http://")) for name in ("url", "admin"))
    return frozenset(int(one[1]) for one in found if one)


def listener_of(port: int) -> str:
    """Which program listens on a port, empty where the machine does not tell this user."""
    try:
        for connection in psutil.net_connections("tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if is_it and connection.pid is not None:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        return ""
    return ""


async def check_store(patient: Patient) -> list[Finding]:
    """Whether the store can be read."""
    try:
        section, home = patient.settings.store, patient.home.path
        name = store_name(section, home)
        if not await is_made(section, home):
            if not section.is_shared:
                try_to_write(store_path(section.url, home).absolute().parent)
            return [Finding("store", Health.OK, f"{name} is made at the first start")]
        async with opened(section, home) as store:
            snapshot = await store.snapshot()
    except (StoreError, ConfigError) as error:
        return [Finding("store", Health.BROKEN, str(error))]
    except OSError as error:
        return [Finding("store", Health.BROKEN, f"{name} cannot be made: {error.strerror}")]
    now = time.time()
    keys = [key for key in snapshot.keys if key.expires_at is None or key.expires_at > now]
    found = {"organisation": snapshot.organizations, "project": snapshot.projects, "key": keys}
    return [Finding("store", Health.OK, f"{name}: {', '.join(counted(len(all_), one) for one, all_ in found.items())}")]


def counted(number: int, word: str) -> str:
    """A number and what it counts: "1 key", "2 keys"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def check_tokenizers(models: Sequence[ModelSection]) -> Iterator[Finding]:
    """Whether prompts can be tokenised here by what is configured; a start goes on without."""
    for model in models:
        if model.tokenizer:
            why = unreadable(model.tokenizer)
            told = f"hits are predicted, not known: {why}" if why else f"prompts are tokenised by {model.tokenizer}"
            yield Finding("tokenizer", Health.NOTE if why else Health.OK, f"{model.name}: {told}")


async def check_replicas(replicas: Sequence[ReplicaSection]) -> list[Finding]:
    """Whether each configured engine can be reached; a start does not wait for one that cannot."""
    return list(await asyncio.gather(*map(_replica, replicas)))


async def _replica(section: ReplicaSection) -> Finding:
    try:
        api_key(section)
    except ConfigError as error:
        return Finding("replica", Health.BROKEN, str(error))
    parts = urlsplit(section.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError as error:  # a wait that is over is one too
        why = "no answer" if isinstance(error, TimeoutError) else (error.strerror or "it cannot be reached")
        return Finding("replica", Health.NOTE, f"{section.name}: nobody at {parts.hostname}:{port} ({why})")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Finding("replica", Health.OK, f"{section.name}: {parts.hostname}:{port} accepts connections")
