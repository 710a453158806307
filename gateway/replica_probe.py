"""The small questions that a gateway asks a replica from time to time: how it is, how busy, what its model does."""

from engines.contract import EngineAdapter, Fault, Headers, LoadReport, ReplicaError
from engines.upstream import Upstream
from gateway.replica_connection import ReplicaConnection
from routing.health import Probe

PROBE_TIMEOUT_S = 2.0
_MODELS = "/v1/models"


async def ask_health(connection: ReplicaConnection, *, is_serving: bool) -> Probe:
    """How it is, with its load noted. `is_serving`: it may be too busy to answer."""
    upstream, adapter = connection.probing, connection.adapter
    headers = key_headers(connection)
    try:
        answer = await upstream.fetch("GET", adapter.health_path, headers, timeout_s=PROBE_TIMEOUT_S)
    except ReplicaError as error:
        return Probe.BUSY if error.fault is Fault.TIMEOUT and is_serving else Probe.FAILED
    if answer.status != 200:
        return Probe.NOT_READY
    if adapter.load_path is not None:
        connection.load = await _ask_load(upstream, adapter, adapter.load_path, headers)
    return Probe.READY


def key_headers(connection: ReplicaConnection) -> Headers:
    """What an engine that has a key wants to see."""
    return [(b"authorization", b"Bearer " + connection.api_key.encode())] if connection.api_key else []


async def _ask_load(upstream: Upstream, adapter: EngineAdapter, path: str, headers: Headers) -> LoadReport:
    """What the engine says of its load; nothing, if it cannot say: that alone makes nobody unready."""
    try:
        load = await upstream.fetch("GET", path, headers, timeout_s=PROBE_TIMEOUT_S)
    except ReplicaError:
        return LoadReport()
    return adapter.read_load(load.body) if load.status == 200 else LoadReport()


async def ask_abilities(connection: ReplicaConnection, now: float) -> bool:
    """Ask what its model does if that is due; whether what it is believed to serve may be something else now."""
    abilities, adapter = connection.abilities, connection.adapter
    is_other = abilities.expire(now)
    if not abilities.is_due(adapter, now):
        return is_other
    headers = key_headers(connection)
    try:
        answer = await connection.probing.fetch("GET", _MODELS, headers, timeout_s=PROBE_TIMEOUT_S)
    except ReplicaError:
        return is_other
    before = (abilities.told, abilities.context_tokens)
    abilities.note_list(answer.body if answer.status == 200 else b"", connection.upstream_model, now)
    return is_other or before != (abilities.told, abilities.context_tokens)
