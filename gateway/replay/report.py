"""What a replay came to: the JSON of the contract, and how it differs from an earlier run's."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gateway.replay.exchange import Heard
from gateway.simulation.recording import TraceFacts
from gateway.simulation.trace_report import percentiles, trace_told

Json = dict[str, Any]
# What is compared with an earlier run: its name, the path to it, and whether more of it is better.
COMPARED: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("TTFT p50, s", ("ttft_s", "p50"), False),
    ("TTFT p95, s", ("ttft_s", "p95"), False),
    ("TTFT p99, s", ("ttft_s", "p99"), False),
    ("ITL p50, s", ("itl_s", "p50"), False),
    ("ITL p95, s", ("itl_s", "p95"), False),
    ("ITL p99, s", ("itl_s", "p99"), False),
    ("e2e p95, s", ("e2e_s", "p95"), False),
    ("hit ratio", ("hit_ratio",), True),
    ("goodput, requests/s", ("goodput_per_s",), True),
    ("failed", ("failed",), False),
)
_MUST_MATCH = ("requests", "scale", "speed", "surface")
_SAME = 0.02  # of a number: closer is neither better nor worse; chosen
_BARS = "▁▂▃▄▅▆▇█"
_PLOT_COLUMNS = 60


def replayed(heard: Sequence[Heard], facts: TraceFacts, settings: Json, ttft_objective_s: float) -> Json:
    """The document. `facts`: of what was sent, as recorded. Percentiles are of answers that were complete."""
    answered = [one for one in heard if not one.fault]
    known = [one for one in answered if one.prompt_tokens is not None and one.cached_tokens is not None]
    prompt, hit = (sum(getattr(one, name) or 0 for one in known) for name in ("prompt_tokens", "cached_tokens"))
    begun, over = min((one.due_at for one in heard), default=0.0), max((one.over_at for one in heard), default=0.0)
    duration_s = max(over - begun, 1e-9)
    num_good = sum(one.ttft_s <= ttft_objective_s for one in answered)
    output = sum(len(one.at) if one.output_tokens is None else one.output_tokens for one in answered)
    target = {
        "requests": len(heard),
        "failed": len(heard) - len(answered),
        "faults": dict(Counter(one.fault for one in heard if one.fault).most_common()),
        "reported": len(known),
        "prompt_tokens": prompt,
        "hit_tokens": hit,
        "hit_ratio": hit / prompt if prompt else None,
        "hit_of_oracle": _of_oracle(hit, prompt, facts),
        "output_tokens": output,
        "ttft_s": percentiles(np.array([one.ttft_s for one in answered])),
        "itl_s": percentiles(np.array([gap for one in answered for gap in one.gaps])),
        "e2e_s": percentiles(np.array([one.over_at - one.due_at for one in answered])),
        "duration_s": duration_s,
        "requests_per_s": len(answered) / duration_s,
        "output_tokens_per_s": output / duration_s,
        "ttft_objective_s": ttft_objective_s,
        "goodput_per_s": num_good / duration_s,
        "goodput_ratio": num_good / len(heard) if heard else 0.0,
        "sent_late_s": percentiles(np.array([one.sent_at - one.due_at for one in heard])),
        "ttft_over_time_s": _over_time(answered, begun),
    }
    return {"trace": trace_told(facts), "settings": settings, "target": target}


def compared(now: Json, before: Json) -> list[Json]:
    """Each number of both runs, and how much it changed. Raises ValueError for what is no earlier run of the same."""
    try:
        own, other = now["settings"], before["settings"]
        unlike = next((name for name in _MUST_MATCH if own[name] != other[name]), None)
        if now["trace"] != before["trace"]:
            unlike = "trace"
        if unlike is not None:
            raise ValueError(f"the baseline is of another {unlike}: the two runs cannot be compared")
        return [_change(name, path, is_more_better, now, before) for name, path, is_more_better in COMPARED]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the baseline is no output of `warmlane replay --json`: it lacks {error}") from None


def plot(values: Sequence[float | None]) -> str:
    """One bar for each value, the highest as high as can be; a blank for none."""
    most = max((value for value in values if value is not None), default=0.0)
    step = most / (len(_BARS) - 1) if most else 1.0
    return "".join(" " if value is None else _BARS[round(value / step)] for value in values)


def _change(name: str, path: tuple[str, ...], is_more_better: bool, now: Json, before: Json) -> Json:
    one, other = at(now["target"], path), at(before["target"], path)
    ratio = None if one is None or not other else one / other
    is_same = one is None or other is None or abs(one - other) <= _SAME * other
    better = None if is_same else (one > other) == is_more_better
    return {"what": name, "before": other, "now": one, "ratio": ratio, "better": better}


def at(found: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """What lies there."""
    for name in path:
        found = found[name]
    return found


def _of_oracle(hit: int, prompt: int, facts: TraceFacts) -> float | None:
    """Hits as a part of what one endless cache would hit, the engine's tokens for the trace's."""
    possible = facts.oracle_hit_tokens / facts.prompt_tokens * prompt
    return hit / possible if possible else None


def _over_time(answered: Sequence[Heard], begun: float) -> list[float | None]:
    """p95 of TTFT in equal parts of the run; None where nothing came due."""
    if not answered:
        return []
    last = max(one.due_at for one in answered) - begun
    parts: list[list[float]] = [[] for _ in range(_PLOT_COLUMNS)]
    for one in answered:
        parts[min(_PLOT_COLUMNS - 1, int((one.due_at - begun) / max(last, 1e-9) * _PLOT_COLUMNS))].append(one.ttft_s)
    return [float(np.percentile(part, 95)) if part else None for part in parts]
