"""What bulk costs the people beside it, in wall time, on this machine, within ten minutes.

One replica with Warmlane's own worker, with llama-server behind the gateway, and with llama-server asked directly:
people's chats at 40% of what the replica can do, alone and beside bulk at 300%. How to read it: docs/isolation.md.
Needs a quiet machine; the demo model is fetched once. The picture needs matplotlib, which is no dependency of ours:
pip install -r requirements/plots.txt.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.markdown import Markdown

from engines.hardware import detect, threads_per_worker
from engines.launch.demo_model import DEMO_MODEL_NAME, ensure_demo_model
from tests.benchmarks.isolation_load import BULK, INTERACTIVE, Run, Target, Text, ended_per_s, poisson, talk_summary
from tests.benchmarks.isolation_report import DOCS, PICTURE, can_draw, draw, markdown_of, write_docs
from tests.benchmarks.isolation_stages import Stage, Stages
from tests.benchmarks.isolation_systems import (
    PATIENCE_S,
    Observer,
    Setup,
    System,
    attached,
    llama_server,
    own_worker,
)
from tests.models import models_folder

TALK_LOAD, BULK_LOAD = 0.4, 3.0  # of the capacity that is measured first
OWN, BEHIND, DIRECT = "Warmlane worker", "llama-server, gateway", "llama-server, direct"
LEAST_S = 8.0  # a shorter window says nothing
QUIET_LOAD = 0.5  # load average above which something else runs
_START_S, _QUIET_S = 8.0, 3.0  # expected of a start, and until all that was cancelled has ended
_EXAMPLES = """examples:
  python -m tests.benchmarks.isolation_wall                 measure, and show the table
  python -m tests.benchmarks.isolation_wall --write-docs    the same, and put table and picture into docs/
  python -m tests.benchmarks.isolation_wall --quick         two minutes: only to see that it works
  python -m tests.benchmarks.isolation_wall --from-json --write-docs   what was measured before, into docs/
"""


@dataclass(frozen=True)
class Plan:
    """`seconds`: of each measured window, if there is so much time; `grace_s`: how long its people are waited for after.

    `limit_s`: of the whole run; windows are made shorter to keep it.
    """

    setup: Setup
    seed: int
    capacity_s: float
    warm_up_s: float
    seconds: float
    grace_s: float
    limit_s: float

    def stages(self) -> list[Stage]:
        """All stages, with windows as long as wanted."""
        load_s = self.warm_up_s + self.seconds + self.grace_s + _QUIET_S
        found = []
        for system in (OWN, BEHIND, DIRECT):
            if system is not DIRECT:
                found.append(Stage(f"{system}: starting", _START_S))
                found += [Stage(f"{system}: capacity, {lane}", 1.5 * self.capacity_s) for lane in (INTERACTIVE, BULK)]
            found += [Stage(f"{system}: {name}", load_s) for name in ("without bulk", "beside bulk")]
        return found

    def seconds_of(self, stages: Stages, num_loads: int) -> float:
        """The windows of a system, when `num_loads` are still to come with its own: all are shortened alike."""
        return max(LEAST_S, min(self.seconds, self.seconds + stages.spare_s / num_loads))


async def capacity(system: System, plan: Plan, observer: Observer, stages: Stages) -> dict[str, float]:
    """Requests a second that the replica ends with all seats taken: of chats alone, of bulk alone.

    Counted from when each seat has ended one: the first ones read what later ones find in the cache. At least until
    each has ended two more, as they end in waves, but not for ever.
    """
    found: dict[str, float] = {}
    seats = plan.setup.seats
    for lane, clients in ((INTERACTIVE, seats), (BULK, 3 * seats)):
        text = Text(system.target.model, plan.seed, f"{system.name} capacity {lane}")
        with stages.stage(f"{system.name}: capacity, {lane}"):
            async with Run(system.target) as run:
                run.closed_loop(lane, text.talk if lane == INTERACTIVE else text.bulk, clients)
                await run.until(lambda run=run: run.num_good() >= seats, PATIENCE_S)
                begun_s = run.now()
                await asyncio.sleep(plan.capacity_s)
                await run.until(lambda run=run: run.num_good() >= 3 * seats, begun_s + 2 * plan.capacity_s)
                window = (begun_s, run.now())
            found[f"{lane}_per_s"], found[f"{lane}_tokens_per_s"] = ended_per_s(run.answers, lane, window)
            if not found[f"{lane}_per_s"]:
                errors = {answer.error for answer in run.answers if answer.error}
                raise RuntimeError(f"it ended no {lane} request in time {errors or ''}")
            await observer.quiet()
    return found


async def load(
    system: System, plan: Plan, observer: Observer, seconds: float, rates: tuple[float, float]
) -> dict[str, object]:
    """One run in open loop; what its people saw, what bulk got, and how full the batch was.

    `rates`: requests a second of people and of bulk.
    """
    window, (talk_per_s, bulk_per_s) = (plan.warm_up_s, plan.warm_up_s + seconds), rates
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
    if (
        system.admin
    ):  # asked directly a flooded engine takes minutes to notice that its clients left, and ends now anyway
        await observer.quiet()
    queued = await observer.queued_ms(ids)
    bulk_requests, bulk_tokens = ended_per_s(answers, BULK, window)
    refused = sum(one.lane == BULK and one.status not in (0, 200) for one in answers)
    bulk = {"requests_per_s": bulk_requests, "tokens_per_s": bulk_tokens, "refused": refused}
    return found | {"queue_max_ms": max(queued, default=None), "batch": batch, "bulk": bulk}


async def measure(
    system: System, plan: Plan, stages: Stages, num_loads: int, known: dict[str, float] | None = None
) -> dict[str, object]:
    """All runs against one system. `known`: its engine's capacity, where it was measured already."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        observer = Observer(system, client)
        found = known or await capacity(system, plan, observer, stages)
        talk_per_s, bulk_per_s = TALK_LOAD * found["interactive_per_s"], BULK_LOAD * found["bulk_per_s"]
        seconds = plan.seconds_of(stages, num_loads)
        stages.say(f"{system.name}: people {talk_per_s:.2f}/s, bulk {bulk_per_s:.2f}/s, windows of {seconds:.0f} s")
        with stages.stage(f"{system.name}: without bulk"):
            alone = await load(system, plan, observer, seconds, (talk_per_s, 0.0))
        with stages.stage(f"{system.name}: beside bulk"):
            beside = await load(system, plan, observer, seconds, (talk_per_s, bulk_per_s))
    ratios = {
        f"{kind}_{q}": beside[f"{kind}_ms"][q] / alone[f"{kind}_ms"][q]
        for kind in ("ttft", "itl")
        for q in ("p50", "p95")
        if beside[f"{kind}_ms"] and alone[f"{kind}_ms"]
    }
    told = {"name": system.name, "seconds": seconds, "capacity": found}
    return told | {"alone": alone, "beside": beside, "ratios": ratios}


class Series:
    """The three systems in turn. What failed of one is in `failed`, and the others go on."""

    def __init__(self, plan: Plan, stages: Stages, model: Path, folder: Path) -> None:
        self.results: list[dict[str, object]] = []
        self.failed: dict[str, str] = {}
        self._plan, self._stages, self._model, self._folder = plan, stages, model, folder

    def run(self) -> None:
        """All of it."""
        with self._failing(OWN), ExitStack() as started:
            with self._stages.stage(f"{OWN}: starting"):
                system = started.enter_context(own_worker(self._plan.setup, self._model, self._folder))
            self._measure(system, 6)
        with self._failing(DIRECT), ExitStack() as started:
            with self._failing(BEHIND), ExitStack() as gateway:
                with self._stages.stage(f"{BEHIND}: starting"):
                    url = started.enter_context(llama_server(self._plan.setup, self._model, self._folder))
                    system = gateway.enter_context(attached(self._plan.setup, url, self._folder))
                self._measure(system, 4)
            if BEHIND in self.failed:
                raise RuntimeError("its capacity is not known")
            direct = System(DIRECT, "llama-server", Target(url, "none", DEMO_MODEL_NAME), url)
            self._measure(direct, 2, known=self.results[-1]["capacity"])

    def _measure(self, system: System, num_loads: int, known: dict[str, float] | None = None) -> None:
        self.results.append(asyncio.run(measure(system, self._plan, self._stages, num_loads, known)))

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, httpx.HTTPError) as error:
            self.failed[name] = str(error) or repr(error)
            self._stages.skip(name)
            self._stages.say(f"{name} failed: {self.failed[name]}")


def measured(plan: Plan, console: Console) -> dict[str, object]:
    """Everything, on all three systems. Raises RuntimeError where there is no model."""
    model, hardware, load_average = ensure_demo_model(models_folder()), detect(), os.getloadavg()[0]
    if load_average > QUIET_LOAD:
        console.print(f"[yellow]the machine is not quiet (load average {load_average:.1f}): the figures will be off")
    with (
        tempfile.TemporaryDirectory(prefix="warmlane-wall-") as folder,
        Stages(plan.stages(), console, plan.limit_s) as stages,
    ):
        series = Series(plan, stages, model, Path(folder))
        series.run()
    machine = f"{hardware.cores} cores, {hardware.cpu_name or hardware.machine}"
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    told = {"at": at, "machine": machine, "load_average": load_average, "model": model.name, "plan": asdict(plan)}
    return told | {"systems": series.results, "failed": series.failed}


def plan_of(options: argparse.Namespace) -> Plan:
    """What the command line asks for. Seconds that are not asked for were chosen so that all fits into the limit."""
    times = (6.0, 2.0, 11.0, 3.0, 240.0) if options.quick else (15.0, 5.0, 60.0, 5.0, 570.0)
    capacity_s, warm_up_s, seconds, grace_s, limit_s = times
    limit_s = 60 * options.minutes - 30 if options.minutes else limit_s
    setup = Setup(options.seats, 16_384, options.threads)
    return Plan(setup, options.seed, capacity_s, warm_up_s, options.seconds or seconds, grace_s, limit_s)


def show(result: dict[str, object], options: argparse.Namespace, console: Console) -> None:
    """The table on the terminal, the picture beside the JSON file; with `--write-docs` both in docs/."""
    Console(width=max(130, console.width)).print(Markdown(markdown_of(result)))
    picture = PICTURE if options.write_docs else options.json.with_suffix(".png")
    if can_draw():
        draw(result, picture)
    console.print(f"details: {options.json}")
    console.print(f"picture: {picture}" if can_draw() else "no picture: pip install -r requirements/plots.txt")
    if options.write_docs:
        write_docs(result)
        console.print(f"table: {DOCS}")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with a sentence when not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.isolation_wall",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="two minutes, four on a busy machine: to see that it works"
    )
    parser.add_argument("--minutes", type=float, help="the whole run takes at most (10)")
    parser.add_argument("--seconds", type=float, help="of each measured window, at most (60)")
    parser.add_argument("--seats", type=int, default=8, help="sequences at once (8)")
    parser.add_argument("--threads", type=int, default=threads_per_worker(os.cpu_count() or 1, 1), help="of the engine")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and texts (1)")
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/isolation_wall.json"), help="the results")
    parser.add_argument("--from-json", action="store_true", help="measure nothing: show what is in --json")
    parser.add_argument("--write-docs", action="store_true", help="put table and picture into docs/")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        if options.from_json:
            result = json.loads(options.json.read_text())
        else:
            result = measured(plan_of(options), console)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(result, indent=1))
    except (RuntimeError, OSError, json.JSONDecodeError) as error:
        print(error, file=sys.stderr)
        return 1
    if result["systems"] and not (result["failed"] and options.write_docs):
        show(result, options, console)
    for name, why in result["failed"].items():
        print(f"{name} was not measured: {why}", file=sys.stderr)
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
