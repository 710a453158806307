"""Where a replica publishes its KV events: by the configuration, or asked of the replica itself. Pure but for asking.

`kv_events` of a replica is empty (our own workers are asked, others not), `off`, `discover`, or an address to subscribe
to, with a second one behind a comma where batches can be had again.
"""

import re
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from pydantic import AfterValidator

from engines.upstream.addresses import no_engine_at

OFF, DISCOVER = "off", "discover"
SOURCES_PATH = "/kv_event_sources"
_ADDRESS = re.compile(r"tcp://(?P<host>\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._*-]+):(?P<port>[0-9]{1,5})|ipc://[^\s,]{1,200}")
_WILDCARDS = frozenset({"*", "0.0.0.0", "[::]"})  # what an engine says it listens on


class NoSource(Exception):
    """The replica publishes nothing that could be subscribed to; the message says why."""


class KvSource(msgspec.Struct, frozen=True):
    """One stream. `replay`: where batches can be asked for again, None: nowhere. `topic`: what messages begin with."""

    endpoint: str
    replay: str | None = None
    topic: str = ""


class _Listed(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    topic: str | None = None
    data_parallel_rank: int | None = None


_read_listed = msgspec.json.Decoder(list[_Listed]).decode


def _kv_events(value: str) -> str:
    if value in {"", OFF, DISCOVER}:
        return value
    addresses = value.split(",")
    if len(addresses) > 2 or not all(map(_is_address, addresses)):
        raise ValueError("use off, discover, or tcp://host:port, with ,tcp://host:port for the replay socket")
    return value


KvEvents = Annotated[str, AfterValidator(_kv_events)]


def configured(kv_events: str, engine: str) -> KvSource | str:
    """The source that the configuration names, else `DISCOVER` or `OFF`."""
    if not kv_events:
        return DISCOVER if engine == "warmlane" else OFF
    if kv_events in {OFF, DISCOVER}:
        return kv_events
    endpoint, _, replay = kv_events.partition(",")
    return KvSource(endpoint, replay or None)


def discovered(body: bytes, url: str) -> KvSource:
    """The source in what `SOURCES_PATH` of the replica at `url` answered. Raises `NoSource`."""
    try:
        listed = _read_listed(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NoSource("it does not list its sources as vLLM does") from error
    if not listed:
        raise NoSource("it publishes no KV events")
    if len(listed) > 1:
        raise NoSource("it has several caches (data-parallel ranks) behind one URL, which nobody here can choose from")
    host = urlsplit(url).hostname or ""
    one = listed[0]
    replay = _reachable(one.replay_endpoint, host) if one.replay_endpoint else None
    return KvSource(_reachable(one.endpoint, host), replay, one.topic or "")


def _is_address(value: str) -> bool:
    match = _ADDRESS.fullmatch(value)
    if match is None or match["host"] is None:
        return match is not None
    is_port = 0 < int(match["port"]) <= 65535
    return is_port and match["host"] not in _WILDCARDS and no_engine_at(match["host"].strip("[]")) is None


def _reachable(endpoint: str, host: str) -> str:
    """The address with the replica's own host for a wildcard. Raises `NoSource` for one nobody should connect to."""
    match = _ADDRESS.fullmatch(endpoint)
    if match is not None and match["host"] in _WILDCARDS:
        shown = f"[{host}]" if ":" in host else host
        endpoint = f"tcp://{shown}:{match['port']}"
    if not _is_address(endpoint):
        raise NoSource("it names an address that cannot be subscribed to")
    return endpoint
