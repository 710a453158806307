"""`warmlane replay`: a trace sent for real, as text of the recorded lengths that shares what was shared."""

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from gateway.admin.connection import CommandFailed
from gateway.admin.options import AsJson
from gateway.admin.output import one_sentence, write_json
from gateway.admin.usage_commands import progress_bar
from gateway.simulation.command import TraceFile

SURFACES = ("chat", "completions")
EPILOG = "Example: warmlane replay trace.jsonl --requests 500 --rate 2 --out run.json"

TargetUrl = Annotated[
    str | None, typer.Option("--url", help="Gateway or engine, such as http://127.0.0.1:8080; default: the demo's.")
]
Key = Annotated[str | None, typer.Option("--key", envvar="WARMLANE_KEY", help="The key; better given as WARMLANE_KEY.")]
Model = Annotated[str | None, typer.Option("--model", help="What to ask for; default: the demo's model.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's words."""

    trace: Path
    url: str | None
    key: str | None
    model: str | None
    surface: str
    speed: float | None
    rate: float | None
    scale: int
    requests: int | None
    max_open: int
    timeout: float
    ttft: float
    salt: str
    ignores_end: bool


@one_sentence
def replay(
    *,
    trace: TraceFile,
    url: TargetUrl = None,
    key: Key = None,
    model: Model = None,
    surface: Annotated[str, typer.Option("--surface", help="chat or completions.")] = "chat",
    speed: Annotated[
        float | None, typer.Option("--speed", min=0.001, help="So many times as fast as recorded; default 1.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="Requests a second on average, instead of a speed.")
    ] = None,
    scale: Annotated[int, typer.Option("--scale", min=1, max=512, help="Divide all lengths by this.")] = 1,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Only the first so many.")] = None,
    max_open: Annotated[int, typer.Option("--max-open", min=1, max=10_000, help="Requests open at a time.")] = 1000,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds without a word.")] = 600.0,
    ttft: Annotated[
        float, typer.Option("--ttft", min=0.001, help="Goodput counts answers begun within so long.")
    ] = 2.0,
    salt: Annotated[str, typer.Option("--salt", help="Another one is other text, which no cache holds yet.")] = "",
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos/--no-ignore-eos", help="Answers as long as recorded, where engines can.")
    ] = True,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="An earlier run's --out, to compare with.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON into this file, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Send a trace's requests at their times and tell times to first token, gaps, hits and goodput.

    Every token is paid for: the key's limits hold, and engines compute.
    """
    if speed is not None and rate is not None:
        raise typer.BadParameter("give --speed or --rate, not both")
    if surface not in SURFACES:
        raise typer.BadParameter(f"--surface {surface!r} is none of {', '.join(SURFACES)}")
    before = None if baseline is None else _read(baseline)
    asked = Asked(
        trace, url, key, model, surface, speed, rate, scale, requests, max_open, timeout, ttft, salt, ignore_eos
    )  # fmt: skip
    document = _document(asked)
    if before is not None:
        document["baseline"] = _compared(document, before)
    if out is not None:
        write_document(out, document)
    write_json(document) if as_json else _show(document)
    if document["target"]["failed"] == document["target"]["requests"]:
        raise CommandFailed(f"no request was answered: {next(iter(document['target']['faults']))}")


def mount(app: typer.Typer) -> None:
    """Add the command to `warmlane`."""
    app.command("replay", epilog=EPILOG)(replay)


def _document(asked: Asked) -> dict[str, Any]:
    """What came of it. Raises `CommandFailed`."""
    from gateway.replay.player import Pace, play
    from gateway.replay.report import replayed
    from gateway.replay.target import find_target
    from gateway.replay.trace_text import scaled, texts_of
    from gateway.simulation.trace_files import read_recording

    target = find_target(asked.url, asked.key, asked.model, asked.surface)
    try:
        recording = read_recording(asked.trace)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if asked.requests is not None:
        recording = recording.first(asked.requests)
    facts = recording.facts()
    pace = Pace(_speed(asked, facts.requests, facts.duration_s), asked.max_open, asked.timeout, asked.ignores_end)
    texts = texts_of(recording, scale=asked.scale, salt=asked.salt)
    with progress_bar() as bars:
        bar = bars.add_task("answered", total=facts.requests)

        def on_progress(num: int, num_failed: int) -> None:
            failed = f", {num_failed} failed" if num_failed else ""
            bars.update(bar, completed=num, description=f"answered{failed}")

        heard = asyncio.run(play(texts, target, pace, on_progress))
    settings = {
        "url": target.url, "model": target.model, "surface": target.surface, "requests": facts.requests,
        "scale": asked.scale, "salt": asked.salt, **asdict(pace),
    }  # fmt: skip
    return replayed(heard, scaled(facts, asked.scale), settings, asked.ttft)


def _speed(asked: Asked, num: int, duration_s: float) -> float:
    if asked.rate is None:
        return asked.speed or 1.0
    if duration_s <= 0:
        how = "leave out --rate, or take more --requests"
        raise CommandFailed(f"all requests of the trace come at the same time, so no rate can be set: {how}")
    return asked.rate * duration_s / num


def _read(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandFailed(f"{file} is no output of `warmlane replay --json`: {error}") from error


def write_document(file: Path, document: dict[str, Any]) -> None:
    """The document as a JSON file. Raises `CommandFailed`."""
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error.strerror}") from error


def _compared(document: dict[str, Any], before: dict[str, Any]) -> list[dict[str, Any]]:
    from gateway.replay.report import compared

    try:
        return compared(document, before)
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def _show(document: dict[str, Any]) -> None:
    """Numbers in a table, beside an earlier run's if there is one; TTFT over the run as a plot."""
    from gateway.replay.report import COMPARED, at, plot

    trace, target = document["trace"], document["target"]
    typer.echo(
        f"{target['requests']} requests in {target['duration_s']:.1f} s, {target['failed']} failed; "
        f"{target['prompt_tokens']} prompt tokens reported, {target['hit_tokens']} of them cached"
        f" (one endless cache: {trace['oracle_hit_tokens'] / trace['prompt_tokens']:.1%})"
    )
    for fault, num in target["faults"].items():
        typer.echo(f"failed: {num} times {fault}")
    if target["sent_late_s"]["p95"] > 0.1:
        typer.echo(f"sent late by {target['sent_late_s']['p95']:.2f} s (p95): this client was too slow, or --max-open")
    table = Table(box=None, pad_edge=False)
    rows = document.get("baseline")
    for name in ("", "now") if rows is None else ("", "before", "now", "change", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, path, _ in COMPARED:
        change = next((one for one in rows or () if one["what"] == name), None)
        table.add_row(name, *_cells(at(target, path), change))
    Console(width=110).print(table)
    typer.echo(f"TTFT p95 over the run, to {max(filter(None, target['ttft_over_time_s']), default=0.0):.2f} s:")
    typer.echo(plot(target["ttft_over_time_s"]))


def _cells(now: float | None, change: dict[str, Any] | None) -> list[str]:
    if change is None:
        return [_number(now)]
    ratio = "-" if change["ratio"] is None else f"{change['ratio'] - 1:+.1%}"
    return [
        _number(change["before"]),
        _number(now),
        ratio,
        {True: "better", False: "worse", None: ""}[change["better"]],
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
