"""What a neighbour's stream feels while ten large schemas are compiled at once (case P50), on a real worker.

A stream alone, beside ten small requests without schemas, and beside the same ten with a different schema of many optional
properties each. All ask the same for one token, so that what is felt is the compiling, not the reading or ten more rows.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from engines.hardware import detect
from engines.launch.demo_model import DEMO_MODEL_NAME, ensure_demo_model
from tests.benchmarks.gguf_worker import Setup, worker
from tests.benchmarks.streamed import streamed
from tests.models import models_folder

_NUM_SCHEMAS, _NUM_PROPERTIES = 10, 480
_BESIDE = ("alone", "ten without schemas", "ten schemas")
_PROMPT = list(range(1000, 1129))  # token ids: whole KV blocks and one more, so all but one of them are cached
_STREAMING_S = 0.5


def _body(prompt: object, max_tokens: int, schema: dict[str, object] | None = None) -> dict[str, object]:
    asked = {"model": DEMO_MODEL_NAME, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "prompt": prompt}
    if schema is not None:
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return asked


def schema_of(number: int, num_properties: int) -> dict[str, object]:
    """A schema unlike any other's: nothing compiled before is of use."""
    properties = {
        f"p{number}_{index}": {"type": "string", "maxLength": 1000 + index} for index in range(num_properties)
    }
    return {"type": "object", "properties": properties}


async def gaps(url: str, beside: str, number: int, num_properties: int) -> list[float]:
    """Seconds between pieces of the neighbour's stream while the ten are under way (alone: of all of it)."""
    ask = partial(streamed, url, "/v1/completions")
    neighbour = asyncio.create_task(ask(_body(f"Story {number} of a small town:", 400)))
    await asyncio.sleep(_STREAMING_S)
    if beside == "alone":
        told = await neighbour
        begun_at, ended_at = told.first_at, told.ended_at
    else:
        schemas = [schema_of(number * _NUM_SCHEMAS + one, num_properties) for one in range(_NUM_SCHEMAS)]
        with_schema = beside == "ten schemas"
        bodies = [_body(_PROMPT, 1, schema if with_schema else None) for schema in schemas]
        others = await asyncio.gather(*map(ask, bodies))
        begun_at, ended_at = min(one.begun_at for one in others), max(one.ended_at for one in others)
        told = await neighbour
    return [later - one for one, later in pairwise(told.came_at) if later > begun_at and one < ended_at]


def measure(url: str, num_rounds: int, num_properties: int, console: Console) -> dict[str, list[dict[str, float]]]:
    """Of each round and kind of company: mean, p95 and longest gap in ms, and how long the company was there."""
    found: dict[str, list[dict[str, float]]] = {beside: [] for beside in _BESIDE}
    asyncio.run(streamed(url, "/v1/completions", _body(_PROMPT, 1)))
    steps = [(number, beside) for number in range(num_rounds) for beside in _BESIDE]
    for step, (_, beside) in enumerate(track(steps, "rounds", console=console)):
        seen = sorted(asyncio.run(gaps(url, beside, step, num_properties)))
        found[beside].append(
            {
                "mean_ms": statistics.fmean(seen) * 1e3,
                "p95_ms": seen[int(0.95 * (len(seen) - 1))] * 1e3,
                "longest_ms": seen[-1] * 1e3,
                "seconds": sum(seen),
            }
        )
    return found


def table_of(found: dict[str, list[dict[str, float]]]) -> Table:
    """Medians of the rounds."""
    table = Table("beside", "mean gap ms", "of alone", "p95 ms", "longest ms", "for s")
    alone_ms = statistics.median(one["mean_ms"] for one in found["alone"])
    for beside, of_it in found.items():
        mean, p95, longest, seconds = (
            statistics.median(one[name] for one in of_it) for name in ("mean_ms", "p95_ms", "longest_ms", "seconds")
        )
        numbers = (f"{mean:.1f}", f"{mean / alone_ms:.2f}", f"{p95:.1f}", f"{longest:.0f}", f"{seconds:.1f}")
        table.add_row(beside, *numbers)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with a sentence when not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.grammar_gaps",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (5)")
    parser.add_argument(
        "--properties", type=int, default=_NUM_PROPERTIES, help="of each schema (480; the worker refuses about 500)"
    )
    options = parser.parse_args(arguments)
    console, hardware = Console(), detect()
    model, load_average = ensure_demo_model(models_folder()), os.getloadavg()[0]
    setup = Setup(16, 16384, os.cpu_count() or 1)
    try:
        with tempfile.TemporaryDirectory(prefix="warmlane-gguf-") as home, worker(setup, model, Path(home)) as url:
            found = measure(url, options.rounds, options.properties, console)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    console.print(f"{at}; {hardware.cores} cores, {hardware.cpu_name}, load average {load_average:.1f} before")
    console.print(table_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
