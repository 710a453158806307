"""An engine's load out of its Prometheus text. Never raises: what is missing or unreadable is None."""

import math
from collections.abc import Mapping

from engines.contract import LoadReport

RUNNING = "running"
WAITING = "waiting"
KV_USED = "kv_used"

# What vLLM calls its gauges; our worker says the same under its own prefix. The last is an older vLLM's name.
_VLLM_GAUGES = {
    b"num_requests_running": RUNNING,
    b"num_requests_waiting": WAITING,
    b"kv_cache_usage_perc": KV_USED,
    b"gpu_cache_usage_perc": KV_USED,
}


def vllm_names(prefix: bytes) -> dict[bytes, str]:
    """VLLM's load gauges under `prefix` (`vllm:`), by the meaning of each."""
    return {prefix + name: meaning for name, meaning in _VLLM_GAUGES.items()}


def read_load(text: bytes, names: Mapping[bytes, str]) -> LoadReport:
    """The load that `text` reports under `names`.

    Counts are summed over series (ranks of one engine); the KV use is the fullest rank's.
    """
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        name = line.partition(b"{")[0].partition(b" ")[0]
        meaning = names.get(name)
        if meaning is not None and (value := _sample(line[len(name) :])) is not None:
            found.setdefault(meaning, []).append(value)
    return LoadReport(
        running=_count(found.get(RUNNING)),
        waiting=_count(found.get(WAITING)),
        kv_used_ratio=min(1.0, max(found[KV_USED])) if KV_USED in found else None,
    )


def _sample(rest: bytes) -> float | None:
    """The value in ` value` or `{labels} value`, with or without a timestamp; a label may hold braces and spaces."""
    words = rest[rest.rfind(b"}") + 1 :].split()
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _count(values: list[float] | None) -> int | None:
    return None if values is None else round(sum(values))
