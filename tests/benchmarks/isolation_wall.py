"""`python -m tests.benchmarks.isolation_wall [--quick]`: what bulk costs the people beside it, in wall time.

One replica on this machine, with Warmlane's own worker, with llama-server behind the gateway, and with llama-server
asked directly: people's chats at 40% of what the replica can do, alone and beside bulk at 300%. How to read it:
docs/isolation.md. Needs a quiet machine and about eight minutes.
"""

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.markdown import Markdown

from engines.hardware import detect, threads_per_worker
from engines.launch.demo_model import DEMO_MODEL_NAME, ensure_demo_model
from tests.benchmarks.isolation_load import BULK, INTERACTIVE, Run, Target, Text, ended_per_s, poisson, talk_summary
from tests.benchmarks.isolation_systems import (
    PATIENCE_S,
    Observer,
    Setup,
    System,
    attached,
    llama_server,
    own_worker,
)
from tests.models import REPOSITORY, models_folder

TALK_LOAD, BULK_LOAD = 0.4, 3.0  # of the capacity that is measured first
DOCS, PICTURE = REPOSITORY / "docs" / "isolation.md", REPOSITORY / "docs" / "images" / "isolation.png"
_BEGIN, _END = "<!-- isolation_wall: begin -->", "<!-- isolation_wall: end -->"


@dataclass(frozen=True)
class Plan:
    """`seconds`: of each measured window; `grace_s`: how long its people are waited for after it."""

    setup: Setup
    seed: int
    capacity_s: float
    warm_up_s: float
    seconds: float
    grace_s: float


async def capacity(system: System, plan: Plan, observer: Observer) -> dict[str, float]:
    """Requests a second that the replica ends with all seats taken: of chats alone, of bulk alone.

    Counted from when each seat has ended one: the first ones read what later ones find in the cache. At least until
    each has ended two more, as they end in waves.
    """
    found: dict[str, float] = {}
    seats = plan.setup.seats
    for lane, clients in ((INTERACTIVE, seats), (BULK, 3 * seats)):
        text = Text(system.target.model, plan.seed, f"{system.name} capacity {lane}")
        async with Run(system.target) as run:
            run.closed_loop(lane, text.talk if lane == INTERACTIVE else text.bulk, clients)
            await run.until(lambda run=run: run.num_good() >= seats, PATIENCE_S)
            begun_s = run.now()
            await asyncio.sleep(plan.capacity_s)
            await run.until(lambda run=run: run.num_good() >= 3 * seats, begun_s + 3 * plan.capacity_s)
            found[f"{lane}_per_s"], found[f"{lane}_tokens_per_s"] = ended_per_s(run.answers, lane, (begun_s, run.now()))
            errors = {answer.error for answer in run.answers if answer.error}
        if not found[f"{lane}_per_s"]:
            raise RuntimeError(f"{system.name} ended no {lane} request in time: {errors}")
        await observer.quiet()
    return found


async def load(
    system: System, plan: Plan, observer: Observer, talk_per_s: float, bulk_per_s: float
) -> dict[str, object]:
    """One run in open loop; what its people saw, what bulk got, and how full the batch was."""
    window = (plan.warm_up_s, plan.warm_up_s + plan.seconds)
    text = Text(system.target.model, plan.seed, f"{system.name} {'beside' if bulk_per_s else 'alone'}")
    asks = poisson(INTERACTIVE, text.talk, talk_per_s, window[1], plan.seed)
    asks += poisson(BULK, text.bulk, bulk_per_s, window[1], plan.seed)
    async with Run(system.target) as run:
        _, batch = await asyncio.gather(run.open_loop(asks, window[1]), observer.watch(window, run))
        talks = [one for one in run.answers if one.lane == INTERACTIVE]
        await run.until(lambda: not any(one.is_open for one in talks), window[1] + plan.grace_s)
        found = talk_summary(run.answers, window, run.now())
        answers = list(run.answers)
    ids = [one.request_id for one in talks if one.is_good and one.due_s >= window[0]]
    await observer.quiet()
    queued = await observer.queued_ms(ids)
    bulk_requests, bulk_tokens = ended_per_s(answers, BULK, window)
    refused = sum(one.lane == BULK and one.status not in (0, 200) for one in answers)
    bulk = {"requests_per_s": bulk_requests, "tokens_per_s": bulk_tokens, "refused": refused}
    return found | {"queue_max_ms": max(queued, default=None), "batch": batch, "bulk": bulk}


async def measure(system: System, plan: Plan, known: dict[str, float] | None, console: Console) -> dict[str, object]:
    """All runs against one system. `known`: its engine's capacity, where it was measured already."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        observer = Observer(system, client)
        console.print(f"{system.name}: " + ("capacity as before" if known else "measuring capacity"))
        found = known or await capacity(system, plan, observer)
        talk_per_s, bulk_per_s = TALK_LOAD * found["interactive_per_s"], BULK_LOAD * found["bulk_per_s"]
        console.print(f"{system.name}: people {talk_per_s:.2f}/s alone, then beside bulk {bulk_per_s:.2f}/s")
        alone = await load(system, plan, observer, talk_per_s, 0.0)
        beside = await load(system, plan, observer, talk_per_s, bulk_per_s)
    ratios = {
        f"{kind}_{q}": beside[f"{kind}_ms"][q] / alone[f"{kind}_ms"][q]
        for kind in ("ttft", "itl")
        for q in ("p50", "p95")
        if beside[f"{kind}_ms"] and alone[f"{kind}_ms"]
    }
    return {"name": system.name, "capacity": found, "alone": alone, "beside": beside, "ratios": ratios}


Row = Mapping[str, object]


def measured(plan: Plan, console: Console) -> dict[str, object]:
    """Everything, on all three systems in turn. Raises RuntimeError if something does not start or do its work."""
    model = ensure_demo_model(models_folder())
    hardware = detect()
    results = []
    with tempfile.TemporaryDirectory(prefix="warmlane-wall-") as folder:
        home = Path(folder)
        with own_worker(plan.setup, model, home) as system:
            results.append(asyncio.run(measure(system, plan, None, console)))
        with llama_server(plan.setup, model, home) as url:
            with attached(plan.setup, url, home) as system:
                results.append(asyncio.run(measure(system, plan, None, console)))
            direct = System("llama-server, direct", "llama-server", Target(url, "none", DEMO_MODEL_NAME), url)
            results.append(asyncio.run(measure(direct, plan, results[-1]["capacity"], console)))
    machine = f"{hardware.cores} cores, {hardware.cpu_name or hardware.machine}"
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {"at": at, "machine": machine, "model": model.name, "plan": asdict(plan), "systems": results}


_COLUMNS = (
    "system",
    "bulk",
    "TTFT p50",
    "p95 ms",
    "ITL p50",
    "p95 ms",
    "rows a step",
    "seats",
    "people tok/s",
    "bulk tok/s",
)


def rows_of(result: Row) -> Iterator[tuple[str, ...]]:
    """Three lines a system: without bulk, beside it, and the ratios."""
    for one in result["systems"]:
        for name in ("alone", "beside"):
            found = one[name]
            late, batch = f" ({found['unanswered']} unanswered)" * bool(found["unanswered"]), found["batch"]
            seats = " + ".join(f"{held:.1f}" for lane, held in batch["seats"].items() if lane != "standard")
            times = [f"{found[kind].get(q, 0):.0f}" for kind in ("ttft_ms", "itl_ms") for q in ("p50", "p95")]
            bulk = f"{found['bulk']['tokens_per_s']:.0f} of {one['capacity']['bulk_tokens_per_s']:.0f}"
            load = (f"{batch['rows']:.2f}", seats, f"{found['tokens_per_s']:.1f}", bulk if name == "beside" else "")
            yield (one["name"] + late, "beside" if name == "beside" else "none", *times, *load)
        ratios = [f"**{one['ratios'].get(f'{kind}_{q}', 0):.2f}**" for kind in ("ttft", "itl") for q in ("p50", "p95")]
        yield (one["name"], "ratio", *ratios, "", "", "", "")


def markdown_of(result: Row) -> str:
    """The lines as a table, with what was run and on what."""
    plan = result["plan"]
    told = (
        f"{result['at']}; {result['machine']}; {result['model']}, {plan['setup']['threads']} threads, {plan['setup']['seats']} seats; "
        f"windows of {plan['seconds']:g} s, seed {plan['seed']}. People's requests in a window: "
        + ", ".join(f"{one['name']} {one['beside']['requests']}" for one in result["systems"])
    )
    lines = [_COLUMNS, ["---"] * 2 + ["---:"] * (len(_COLUMNS) - 2), *rows_of(result)]
    return f"{told}.\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_docs(result: Row, page: Path) -> None:
    """Put the table between the page's markers. Raises ValueError where those are missing."""
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no {_BEGIN} and {_END}")
    page.write_text(f"{before}{begin}\n{markdown_of(result)}\n{end}{after}")


def draw(result: Row, path: Path) -> bool:
    """Whether a picture of the p95s without and with bulk was made: matplotlib is no dependency of ours."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    figure_of = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(9, 3.6), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), ("ttft", "itl"), strict=True):
        for offset, name, colour in ((-0.2, "alone", "#8fb8de"), (0.2, "beside", "#1f4e79")):
            heights = [one[name][f"{kind}_ms"].get("p95", 0) for one in result["systems"]]
            bars = axes.bar([place + offset for place in range(len(heights))], heights, 0.4, label=name, color=colour)
            ratios = [f"{one['ratios'].get(f'{kind}_p95', 0):.2f}x" for one in result["systems"]]
            axes.bar_label(bars, ratios if name == "beside" else [""] * len(heights))
        axes.set_xticks(range(len(heights)), [str(one["name"]).replace(", ", ",\n") for one in result["systems"]])
        axes.set(title=f"{kind.upper()} p95, ms (log)", yscale="log")
        axes.margins(y=0.15)
    figure.legend(axes.containers, ["no bulk", "beside bulk at 300%"], loc="outside lower center", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with one sentence when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.isolation_wall", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes: to see that it works")
    parser.add_argument("--seconds", type=float, help="of each measured window (50)")
    parser.add_argument("--seats", type=int, default=8, help="sequences at once")
    parser.add_argument("--threads", type=int, default=threads_per_worker(os.cpu_count() or 1, 1), help="of the engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/isolation_wall.json"), help="the results")
    parser.add_argument("--from-json", action="store_true", help="measure nothing: show what is in --json")
    parser.add_argument("--write-docs", action="store_true", help="put table and picture into docs/")
    options = parser.parse_args(arguments)
    capacity_s, warm_up_s, seconds, grace_s = (6.0, 2.0, 11.0, 3.0) if options.quick else (18.0, 5.0, 50.0, 5.0)
    setup = Setup(options.seats, 16_384, options.threads)
    console = Console()
    try:
        if options.from_json:
            result = json.loads(options.json.read_text())
        else:
            result = measured(
                Plan(setup, options.seed, capacity_s, warm_up_s, options.seconds or seconds, grace_s), console
            )
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=1))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    Console(width=max(130, console.width)).print(Markdown(markdown_of(result)))
    picture = PICTURE if options.write_docs else options.json.with_suffix(".png")
    console.print(f"details: {options.json}")
    console.print(f"picture: {picture}" if draw(result, picture) else "no picture: matplotlib is not installed")
    if options.write_docs:
        write_docs(result, DOCS)
        console.print(f"table: {DOCS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
