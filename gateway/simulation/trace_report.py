"""What simulated runs are told as: the JSON of the contract, medians over the seeds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from gateway.simulation.measure import Percentiles
from gateway.simulation.recording import TraceFacts
from gateway.simulation.trace_run import Seconds, TraceResult, TraceSettings

_SHARES = {"p50": 50, "p95": 95, "p99": 99}
Json = dict[str, Any]


def percentiles(values: Seconds) -> dict[str, float]:
    """p50, p95 and p99 by linear interpolation; all 0 for none."""
    found = Percentiles.of(values)
    return {name: getattr(found, name) for name in _SHARES}


def counted_percentiles(values: Seconds, counts: Sequence[int]) -> dict[str, float]:
    """The same of values that come so often each: the least value that so many are not above; all 0 for none."""
    if not len(values):
        return dict.fromkeys(_SHARES, 0.0)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(np.asarray(counts)[order])
    places = np.searchsorted(reached, [share / 100 * reached[-1] for share in _SHARES.values()])
    return {name: float(values[order[place]]) for name, place in zip(_SHARES, places, strict=True)}


def one_run(result: TraceResult, facts: TraceFacts) -> Json:
    """A run with one seed, but for the replicas."""
    return {
        "hit_tokens": result.hit_tokens,
        "hit_ratio": result.hit_tokens / facts.prompt_tokens,
        "ttft_s": percentiles(result.ttft_s),
        "itl_s": counted_percentiles(result.gap_s, result.gap_counts),  # type: ignore[arg-type]
        "e2e_s": percentiles(result.e2e_s),
    }


def one_policy(results: Sequence[TraceResult], facts: TraceFacts, parameters: Json) -> Json:
    """A policy over its seeds: medians of every number, each seed's own, and the replicas of the first."""
    runs = [one_run(result, facts) for result in results]
    per_replica = [asdict(replica) for replica in results[0].replicas]
    told = _median(runs) | {"per_replica": per_replica, "parameters": parameters}
    return told if len(runs) == 1 else told | {"by_seed": runs}


def whole(facts: TraceFacts, settings: Json, policies: Json) -> Json:
    """The document."""
    return {"trace": trace_told(facts), "settings": settings, "policies": policies}


def trace_told(facts: TraceFacts) -> Json:
    """What the trace asks for. Tokens, and seconds."""
    return {
        "requests": facts.requests,
        "prompt_tokens": facts.prompt_tokens,
        "output_tokens": facts.output_tokens,
        "oracle_hit_tokens": facts.oracle_hit_tokens,
        "duration_s": facts.duration_s,
    }


def settings_told(settings: TraceSettings, load: float | None, seeds: Sequence[int]) -> Json:
    """The settings, with the load they come to."""
    engine = settings.engine
    return {
        "replicas": settings.num_replicas,
        "kv_tokens": settings.kv_tokens,
        "load": load,
        "speed": settings.speed,
        "gateways": settings.num_gateways,
        "speed_error": settings.speed_error,
        "seeds": list(seeds),
        "engine": {**asdict(engine.cost), "max_seqs": engine.max_seqs, "max_step_tokens": engine.max_step_tokens},
    }


def _median(runs: Sequence[Json]) -> Json:
    """The median of each number, however deep it lies."""
    return {name: _median_of([run[name] for run in runs]) for name in runs[0]}


def _median_of(values: Sequence[Any]) -> Any:
    take: Callable[[Sequence[Any]], Any] = _median if isinstance(values[0], dict) else median
    return take(values)
