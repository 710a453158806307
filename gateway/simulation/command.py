"""`warmlane simulate`: a trace on a fleet that does not exist, by our routing and by others', in virtual time.

The simulator is imported when it is asked for: the other commands need not wait for it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from gateway.admin.connection import CommandFailed
from gateway.admin.options import AsJson
from gateway.admin.output import one_sentence, write_json

_MOST_SEEDS = 1000
_TIMES = ("ttft_s", "itl_s", "e2e_s")
_COLUMNS = ("policy", "hits", "TTFT p50", "p95", "p99", "ITL p50", "p95", "p99", "e2e p50", "p95", "p99")
_LEAST_WIDTH = 110

OnProgress = Callable[[str, int, int], Any]

TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="Mooncake's or chats' JSON lines, or a ledger export in CSV; or gzipped."),
]
Replicas = Annotated[int, typer.Option("--replicas", min=1, max=10_000, help="How many engines there are.")]
KvTokens = Annotated[int, typer.Option("--kv-tokens", min=1, help="Tokens that the KV cache of each engine holds.")]
Load = Annotated[
    float | None, typer.Option("--load", min=0.001, help="Scale time to this part of what the fleet could do at best.")
]
Speed = Annotated[
    float | None, typer.Option("--speed", min=0.001, help="So many times as fast as recorded; default 1.")
]
PolicyName = Annotated[str, typer.Option("--policy", metavar="NAME", help="Who routes: warmlane, or a baseline.")]
Baselines = Annotated[
    str | None, typer.Option("--baselines", metavar="all|NAME,…", help="Other routers' rules to compare with.")
]
Tune = Annotated[bool, typer.Option("--tune", help="Give baselines the best of their parameters for this fleet first.")]
Seeds = Annotated[
    int, typer.Option("--seeds", min=1, max=_MOST_SEEDS, help="Runs of each policy; their medians are told.")
]
Gateways = Annotated[
    int, typer.Option("--gateways", min=1, max=256, help="Gateways; ours tell each other what they send where.")
]
Gossip = Annotated[bool, typer.Option("--gossip/--no-gossip", help="Whether our gateways tell each other anything.")]
GossipMs = Annotated[float, typer.Option("--gossip-ms", min=0.0, help="How long that takes to the others.")]
Events = Annotated[bool, typer.Option("--events/--no-events", help="Whether engines tell our gateways what they hold.")]
SpeedError = Annotated[
    float, typer.Option("--speed-error", min=0.0, max=0.99, help="By how much engines differ from what is believed.")
]
MaxSeqs = Annotated[int | None, typer.Option("--max-seqs", min=1, help="Requests in an engine's batch; default 32.")]
MaxStepTokens = Annotated[
    int | None, typer.Option("--max-step-tokens", min=1, help="Tokens in an engine's step; default 2048.")
]
StepBase = Annotated[float | None, typer.Option("--step-base-ms", min=0.001, help="Of every step; default 10.")]
StepRow = Annotated[
    float | None, typer.Option("--step-row-ms", min=0.0, help="For each request that decodes in it; default 0.25.")
]
StepToken = Annotated[
    float | None, typer.Option("--step-token-ms", min=0.0, help="For each prompt token read in it; default 0.04.")
]
EngineFile = Annotated[
    Path | None, typer.Option("--engine", metavar="FILE", help="The engine as `warmlane calibrate --out` wrote it.")
]
Requests = Annotated[int | None, typer.Option("--requests", min=1, help="Only the first so many of the trace.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's words. None: the default."""

    trace: Path
    replicas: int
    kv_tokens: int
    load: float | None
    speed: float | None
    policies: tuple[str, ...]
    tune: bool
    seeds: int
    gateways: int
    gossip_s: float | None
    events: bool
    speed_error: float
    max_seqs: int | None
    max_step_tokens: int | None
    step_ms: tuple[float | None, float | None, float | None]
    requests: int | None
    engine: Path | None = None


@one_sentence
def simulate(
    *,
    trace: TraceFile,
    replicas: Replicas,
    kv_tokens: KvTokens,
    load: Load = None,
    speed: Speed = None,
    policy: PolicyName = "warmlane",
    baselines: Baselines = None,
    tune: Tune = False,
    seeds: Seeds = 1,
    gateways: Gateways = 1,
    gossip: Gossip = True,
    gossip_ms: GossipMs = 20.0,
    events: Events = True,
    speed_error: SpeedError = 0.3,
    max_seqs: MaxSeqs = None,
    max_step_tokens: MaxStepTokens = None,
    step_base_ms: StepBase = None,
    step_row_ms: StepRow = None,
    step_token_ms: StepToken = None,
    requests: Requests = None,
    engine: EngineFile = None,
    as_json: AsJson = False,
) -> None:
    """Simulate a trace on a fleet: hits, time to first token, gaps between tokens, by policy.

    Queue, routing and policies are those of live traffic; engines are modelled: batch, KV cache, time of a step.
    """
    if load is not None and speed is not None:
        raise typer.BadParameter("give --load or --speed, not both")
    asked = Asked(
        trace, replicas, kv_tokens, load, speed, _policies(policy, baselines), tune, seeds, gateways,
        gossip_ms / 1000 if gossip else None, events, speed_error, max_seqs, max_step_tokens,
        (step_base_ms, step_row_ms, step_token_ms), requests, engine,
    )  # fmt: skip
    with progress() as on_progress:
        document = _document(asked, on_progress)
    write_json(document) if as_json else _write_table(document)


def mount(app: typer.Typer) -> None:
    """Add the command to `warmlane`."""
    epilog = "Example: warmlane simulate trace.jsonl --replicas 8 --kv-tokens 1000000 --load 0.75 --baselines all"
    app.command("simulate", epilog=epilog)(simulate)


def _policies(policy: str, baselines: str | None) -> tuple[str, ...]:
    """The names of what is simulated. Raises `BadParameter`."""
    from gateway.simulation.trace_policies import BASELINES, POLICIES

    if policy not in POLICIES:
        raise typer.BadParameter(f"--policy {policy!r} is none of {', '.join(POLICIES)}")
    if baselines is None:
        return (policy,)
    names = BASELINES if baselines == "all" else tuple(name.strip() for name in baselines.split(","))
    if unknown := [name for name in names if name not in BASELINES]:
        raise typer.BadParameter(f"--baselines {unknown[0]!r} is none of all, {', '.join(BASELINES)}")
    return tuple(dict.fromkeys((policy, *names)))


def _document(asked: Asked, on_progress: OnProgress) -> dict[str, Any]:
    """What came of it. Raises `CommandFailed` for a trace that is none, or that does not go with the fleet."""
    from gateway.simulation.trace_comparison import Comparison, compare
    from gateway.simulation.trace_files import read_recording
    from gateway.simulation.trace_policies import OurSettings
    from gateway.simulation.trace_run import TraceSettings, speed_at

    try:
        recording = read_recording(asked.trace)
        if asked.requests is not None:
            recording = recording.first(asked.requests)
        model = _engine(asked)
        engine, speed = model.settings(asked.kv_tokens, recording.block_tokens), asked.speed
        if asked.load is not None:
            speed = speed_at(asked.load, recording.facts(), engine, asked.replicas)
        settings = TraceSettings(
            asked.replicas, asked.kv_tokens, speed or 1.0, asked.gateways, asked.speed_error, engine=model
        )
        seeds = range(1, asked.seeds + 1)
        ours = OurSettings(events=asked.events, gossip_s=asked.gossip_s)
        comparison = Comparison(settings, asked.policies, seeds, ours, asked.tune)
        return compare(recording, comparison, on_progress)
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def _engine(asked: Asked) -> Any:
    from engines.step_cost import StepCost
    from gateway.simulation.engine_file import read_engine
    from gateway.simulation.trace_run import TraceEngine

    usual = TraceEngine() if asked.engine is None else read_engine(asked.engine)
    cost, given = usual.cost, [None if ms is None else ms / 1000 for ms in asked.step_ms]
    told = (cost.base_s, cost.per_row_s, cost.per_prefill_token_s)
    seconds = [old if new is None else new for old, new in zip(told, given, strict=True)]
    return TraceEngine(
        StepCost(*seconds), asked.max_seqs or usual.max_seqs, asked.max_step_tokens or usual.max_step_tokens
    )


@contextmanager
def progress() -> Iterator[OnProgress]:
    """A bar on stderr, where somebody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("reading the trace")
        yield lambda what, num, of: bars.update(bar, description=what, completed=num, total=of)


def _write_table(document: dict[str, Any]) -> None:
    """A line for each policy, times in seconds."""
    trace, settings = document["trace"], document["settings"]
    load = "" if settings["load"] is None else f", load {settings['load']:.2f}"
    oracle = trace["oracle_hit_tokens"] / trace["prompt_tokens"]
    typer.echo(
        f"{trace['requests']} requests of {trace['prompt_tokens']} prompt tokens, of which one endless cache would hit "
        f"{oracle:.1%}; {settings['replicas']} replicas of {settings['kv_tokens']} KV tokens{load}, "
        f"{settings['speed']:.3g} times as fast as recorded; times in seconds"
    )
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for name, found in document["policies"].items():
        times = (f"{found[kind][share]:.3f}" for kind in _TIMES for share in ("p50", "p95", "p99"))
        table.add_row(name, f"{found['hit_ratio']:.1%}", *times)
    console = Console()
    # A narrow terminal wraps lines, a file or pipe gets whole ones.
    Console(width=max(console.width, _LEAST_WIDTH) if console.is_terminal else 10_000).print(table)
