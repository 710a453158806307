"""`warmlane simulate`: a trace on a fleet that does not exist, by our routing and by others', in virtual time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from engines.step_cost import StepCost
from gateway.admin.connection import CommandFailed
from gateway.admin.output import one_sentence, write_json
from gateway.simulation.trace_comparison import Comparison, OnProgress, compare
from gateway.simulation.trace_error import TraceError
from gateway.simulation.trace_files import read_recording
from gateway.simulation.trace_policies import BASELINES, OURS, POLICIES, OurSettings
from gateway.simulation.trace_run import TraceEngine, TraceSettings, speed_at

_MOST_SEEDS = 1000
_SHOWN = ("hit_ratio", "ttft_s", "itl_s", "e2e_s")
_DEFAULT = TraceEngine()


def _names(given: str | None) -> tuple[str, ...]:
    """The parser of --baselines."""
    if given is None or given == "all":
        return BASELINES if given else ()
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    if unknown := [name for name in names if name not in BASELINES]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of them; give all, or some of {', '.join(BASELINES)}")
    return names


def _policy(given: str) -> str:
    """The parser of --policy."""
    if given not in POLICIES:
        raise typer.BadParameter(f"{given!r} is none of them; give {OURS} or one of {', '.join(BASELINES)}")
    return given


@one_sentence
def simulate(
    *,
    trace: Annotated[
        Path, typer.Argument(help="Mooncake or chat JSON lines, or `warmlane usage export`'s CSV; gzipped or not.")
    ],
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=10_000, help="How many engines there are.")],
    kv_tokens: Annotated[int, typer.Option("--kv-tokens", min=1, help="Tokens that the KV cache of each holds.")],
    load: Annotated[
        float | None,
        typer.Option("--load", min=0.001, help="Of what the fleet could do at best, 1.0: time is scaled to it."),
    ] = None,
    speed: Annotated[
        float | None, typer.Option("--speed", min=0.001, help="So many times as fast as recorded (1).")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", parser=_policy, metavar="NAME", help="Who routes.")] = OURS,
    baselines: Annotated[
        str | None, typer.Option("--baselines", metavar="all|NAME,…", help="Others to compare with.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Give baselines the best parameters of their grids for this fleet first.")
    ] = False,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=_MOST_SEEDS, help="Runs of each; medians are told.")] = 1,
    gateways: Annotated[
        int, typer.Option("--gateways", min=1, max=256, help="Gateways that know only what they sent.")
    ] = 1,
    events: Annotated[
        bool, typer.Option("--events/--no-events", help="Whether engines tell our gateways what they hold.")
    ] = True,
    speed_error: Annotated[
        float,
        typer.Option(
            "--speed-error", min=0.0, max=0.99, help="Steps take up to so much more or less than said, by replica."
        ),
    ] = 0.3,
    max_seqs: Annotated[
        int, typer.Option("--max-seqs", min=1, help="Requests in an engine's batch.")
    ] = _DEFAULT.max_seqs,
    max_step_tokens: Annotated[
        int, typer.Option("--max-step-tokens", min=1, help="Tokens in one step.")
    ] = _DEFAULT.max_step_tokens,
    step_base_ms: Annotated[float, typer.Option("--step-base-ms", min=0.001, help="What a step costs at least.")] = 1e3
    * _DEFAULT.cost.base_s,
    step_row_ms: Annotated[
        float, typer.Option("--step-row-ms", min=0.0, help="For each request that decodes in it.")
    ] = 1e3 * _DEFAULT.cost.per_row_s,
    step_token_ms: Annotated[
        float, typer.Option("--step-token-ms", min=0.0, help="For each prompt token read in it.")
    ] = 1e3 * _DEFAULT.cost.per_prefill_token_s,
    requests: Annotated[
        int | None, typer.Option("--requests", min=1, help="Only the first so many of the trace.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for scripts.")] = False,
) -> None:
    """Simulate a trace on a fleet: hits, time to first token, gaps between tokens, by policy.

    Queue, routing and policies are those of live traffic, the engines are modelled: batch, KV cache and the time of a
    step. Several gateways do not exchange what they learn.
    """
    if load is not None and speed is not None:
        raise typer.BadParameter("give --load or --speed, not both")
    if max_step_tokens < max_seqs:
        raise typer.BadParameter(f"--max-step-tokens must be at least --max-seqs, {max_seqs}")
    compared = _names(baselines)
    engine = TraceEngine(
        StepCost(step_base_ms / 1e3, step_row_ms / 1e3, step_token_ms / 1e3), max_seqs, max_step_tokens
    )
    try:
        recording = read_recording(trace)
        if requests is not None:
            recording = recording.first(requests)
        if kv_tokens < recording.block_tokens:
            raise TraceError(f"--kv-tokens {kv_tokens} is less than one block of the trace, {recording.block_tokens}")
        if load is not None:
            speed = speed_at(load, recording.facts(), engine.settings(kv_tokens, recording.block_tokens), replicas)
        settings = TraceSettings(replicas, kv_tokens, speed or 1.0, gateways, speed_error, engine=engine)
        comparison = Comparison(
            settings, tuple(dict.fromkeys((policy, *compared))), range(1, seeds + 1), OurSettings(events=events), tune
        )
        with _progress() as on_progress:
            document = compare(recording, comparison, on_progress)
    except ValueError as error:  # the trace, or what does not go with it
        raise CommandFailed(str(error)) from error
    write_json(document) if as_json else _write_table(document)


def mount(app: typer.Typer) -> None:
    """Add the command to `warmlane`."""
    epilog = "Example: warmlane simulate trace.jsonl --replicas 8 --kv-tokens 1000000 --load 0.75 --baselines all"
    app.command("simulate", epilog=epilog)(simulate)


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """A bar on stderr, where somebody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("")
        yield lambda what, num, of: bars.update(bar, description=what, completed=num, total=of)


def _write_table(document: dict[str, Any]) -> None:
    """A line for each policy: seconds at p50, p95 and p99."""
    trace, settings = document["trace"], document["settings"]
    load = "" if settings["load"] is None else f", load {settings['load']:.2f}"
    oracle = trace["oracle_hit_tokens"] / trace["prompt_tokens"]
    typer.echo(
        f"{trace['requests']} requests, {trace['prompt_tokens']} prompt tokens, of which an endless cache would hit "
        f"{oracle:.1%}; {settings['replicas']} replicas of {settings['kv_tokens']} KV tokens{load}, "
        f"{settings['speed']:.3g} times as fast as recorded"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("policy", "hits", "TTFT p50", "p95", "p99", "ITL p50", "p95", "p99", "e2e p50", "p95", "p99"):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for name, found in document["policies"].items():
        times = (f"{found[kind][share]:.3f}" for kind in _SHOWN[1:] for share in ("p50", "p95", "p99"))
        table.add_row(name, f"{found['hit_ratio']:.1%}", *times)
    console = Console()
    # A terminal too narrow wraps lines; a file or pipe gets whole ones.
    Console(width=max(console.width, 110) if console.is_terminal else 10_000).print(table)
