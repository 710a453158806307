"""`warmlane plan`: the cheapest fleet that keeps a promise for a trace, found by simulating candidates."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.admin.connection import CommandFailed
from gateway.admin.options import AsJson
from gateway.admin.output import one_sentence, write_json, write_table
from gateway.simulation.command import EngineFile, Events, Requests, Seeds, Speed, SpeedError, TraceFile, progress

if TYPE_CHECKING:
    from gateway.simulation.plan import Candidate, Kind, Plan
    from gateway.simulation.recording import Recording

EPILOG = (
    "Example: warmlane plan trace.jsonl --ttft-p95 1 --kind l4,kv=60000,cost=0.7,engine=l4.json "
    "--kind h100,kv=800000,cost=3.5,engine=h100.json"
)
_COLUMNS = ("replicas", "kind", "KV tokens", "cost", "load", "TTFT p50", "TTFT p95", "ITL p95", "hits", "open", "holds")
_PARTS = {"kv": int, "cost": float, "engine": Path}


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's words."""

    trace: Path
    kinds: tuple[str, ...]
    kv_tokens: int | None
    engine: Path | None
    speed: float | None
    rate: float | None
    requests: int | None


@one_sentence
def plan_fleet(
    *,
    trace: TraceFile,
    ttft_p95: Annotated[
        float, typer.Option("--ttft-p95", min=0.001, help="Seconds to the first token that 95% must not exceed.")
    ] = 2.0,
    itl_p95: Annotated[
        float | None, typer.Option("--itl-p95", min=0.0001, help="Seconds between tokens, likewise; default: any.")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="NAME,kv=N[,cost=X][,engine=FILE]",
            help="A kind of replica: KV tokens, cost of each, and what `warmlane calibrate` found; more than once.",
        ),
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option("--kv-tokens", min=1, help="In place of --kind: one kind, with so much KV.")
    ] = None,
    engine: EngineFile = None,
    most: Annotated[int, typer.Option("--max-replicas", min=1, max=1000, help="Of a kind at most.")] = 64,
    speed: Speed = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="Requests a second on average, instead of a speed.")
    ] = None,
    seeds: Seeds = 1,
    events: Events = True,
    speed_error: SpeedError = 0.3,
    requests: Requests = None,
    as_json: AsJson = False,
) -> None:
    """Find how many replicas of which kind a trace needs for a p95 of TTFT, by simulation, and which is cheapest.

    Exit code 1 if no candidate holds.
    """
    if speed is not None and rate is not None:
        raise typer.BadParameter("give --speed or --rate, not both")
    if bool(kinds) == (kv_tokens is not None):
        raise typer.BadParameter("give --kind, once or more, or --kv-tokens")
    from gateway.simulation.plan import Objective, PlanSettings

    asked = Asked(trace, tuple(kinds or ()), kv_tokens, engine, speed, rate, requests)
    recording = _recording(asked)
    settings = PlanSettings(_speed(asked, recording), most, range(1, seeds + 1), speed_error, events)
    objective = Objective(ttft_p95, itl_p95)
    document = _document(recording, _kinds(asked), objective, settings)
    write_json(document) if as_json else _show(document)
    if document["chosen"] is None:
        raise CommandFailed(document["reason"])


def mount(app: typer.Typer) -> None:
    """Add the command to `warmlane`."""
    app.command("plan", epilog=EPILOG)(plan_fleet)


def _recording(asked: Asked) -> "Recording":
    from gateway.simulation.trace_files import read_recording

    try:
        recording = read_recording(asked.trace)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    return recording if asked.requests is None else recording.first(asked.requests)


def _speed(asked: Asked, recording: "Recording") -> float:
    if asked.rate is None:
        return asked.speed or 1.0
    facts = recording.facts()
    return max(asked.rate * facts.duration_s / facts.requests, 1e-9)


def _kinds(asked: Asked) -> list["Kind"]:
    """What may be chosen from. Raises `BadParameter` and `CommandFailed`."""
    from gateway.simulation.plan import Kind

    if asked.kv_tokens is not None:
        return [Kind("replica", asked.kv_tokens, engine=_engine(asked.engine))]
    found = [_kind(spelled, asked.engine) for spelled in asked.kinds]
    names = [kind.name for kind in found]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise typer.BadParameter(f"--kind: two are called {doubled!r}")
    return found


def _kind(spelled: str, engine: Path | None) -> "Kind":
    from gateway.simulation.plan import Kind

    name, *parts = (part.strip() for part in spelled.split(","))
    told: dict[str, Any] = {"engine": engine}
    for part in parts:
        key, separator, value = part.partition("=")
        if not separator or key not in _PARTS:
            raise typer.BadParameter(f"--kind {spelled!r}: {part!r} is none of kv=N, cost=X, engine=FILE")
        try:
            told[key] = _PARTS[key](value)
        except ValueError as error:
            raise typer.BadParameter(f"--kind {spelled!r}: {value!r} is no number for {key}") from error
    if not name or "=" in name:
        raise typer.BadParameter(f"--kind {spelled!r} must begin with a name")
    kv_tokens, cost = told.get("kv", 0), told.get("cost", 1.0)
    if kv_tokens < 1 or not 0 < cost < float("inf"):
        raise typer.BadParameter(f"--kind {spelled!r} needs kv=N above 0, and a cost above 0")
    return Kind(name, kv_tokens, cost, _engine(told["engine"]))


def _engine(file: Path | None) -> Any:
    from gateway.simulation.engine_file import read_engine
    from gateway.simulation.trace_run import TraceEngine

    try:
        return TraceEngine() if file is None else read_engine(file)
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def _document(recording: "Recording", kinds: list["Kind"], objective: Any, settings: Any) -> dict[str, Any]:
    """What came of it. Raises `CommandFailed`."""
    from gateway.simulation.plan import plan

    try:
        with progress() as on_progress:
            found = plan(recording, kinds, objective, settings, on_progress)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    facts = recording.facts()
    trace = {
        "requests": facts.requests, "prompt_tokens": facts.prompt_tokens, "output_tokens": facts.output_tokens,
        "oracle_hit_tokens": facts.oracle_hit_tokens, "duration_s": facts.duration_s,
        "requests_per_s": facts.requests * settings.speed / facts.duration_s,
        "longest_tokens": max(one.prompt_tokens + one.output_tokens for one in recording.requests),
        "working_set_tokens": facts.distinct_tokens,
    }  # fmt: skip
    return {
        "trace": trace,
        "settings": {**asdict(settings), "seeds": list(settings.seeds)},
        "objective": asdict(objective),
        "candidates": [asdict(one) for one in sorted(found.candidates, key=lambda one: (one.cost, one.replicas))],
        "unfit": [{"kind": kind, "why": why} for kind, why in found.unfit],
        "chosen": None if found.chosen is None else asdict(found.chosen),
        "reason": _reason(found, trace, objective.ttft_p95_s),
    }


def _reason(found: "Plan", trace: dict[str, Any], ttft_p95_s: float) -> str:
    """Why this fleet, and what holds it back, or why none."""
    chosen = found.chosen
    if chosen is None:
        if not found.candidates:
            return "no kind can do it: " + "; ".join(f"{kind}: {why}" for kind, why in found.unfit)
        best = min(found.candidates, key=lambda one: one.ttft_p95_s)
        return (
            f"no candidate holds: the best, {best.replicas} x {best.kind}, has a TTFT p95 of {best.ttft_p95_s:.2f} s "
            f"and an ITL p95 of {best.itl_p95_s:.3f} s; allow more replicas or other kinds"
        )
    fewer = max(
        (one for one in found.candidates if one.kind == chosen.kind and one.replicas < chosen.replicas),
        key=lambda one: one.replicas, default=None,
    )  # fmt: skip
    words = [f"{chosen.replicas} x {chosen.kind} is the cheapest that holds: TTFT p95 {chosen.ttft_p95_s:.2f} s"]
    if fewer is not None:
        words.append(f"{fewer.replicas} would have {fewer.ttft_p95_s:.2f} s of the {ttft_p95_s:g} s allowed")
    words.append(_about_hits(chosen, trace))
    words.append(f"at most {chosen.peak_in_flight} requests are open at a time: a lower concurrency limit refuses some")
    return "; ".join(words)


def _about_hits(chosen: "Candidate", trace: dict[str, Any]) -> str:
    oracle = trace["oracle_hit_tokens"] / trace["prompt_tokens"]
    held = chosen.replicas * chosen.kv_tokens / max(1, trace["working_set_tokens"])
    return (
        f"{chosen.hit_ratio:.0%} of prompt tokens hit of {oracle:.0%} possible, KV holds {held:.0%} of the working set"
    )


def _show(document: dict[str, Any]) -> None:
    """A line for each candidate, the cheapest first, and the reason."""
    trace = document["trace"]
    typer.echo(
        f"{trace['requests']} requests at {trace['requests_per_s']:.3g} a second, {trace['prompt_tokens']} prompt "
        f"tokens; TTFT p95 must be {document['objective']['ttft_p95_s']:g} s or less; times in seconds"
    )
    rows = [_line(one, is_chosen=one == document["chosen"]) for one in document["candidates"]]
    if rows:
        write_table(rows, _COLUMNS, empty="")
    for one in document["unfit"]:
        typer.echo(f"{one['kind']}: not simulated, {one['why']}")
    if document["chosen"] is not None:
        typer.echo(document["reason"])


def _line(one: dict[str, Any], *, is_chosen: bool) -> dict[str, Any]:
    return {
        "replicas": one["replicas"],
        "kind": one["kind"],
        "KV tokens": one["kv_tokens"],
        "cost": f"{one['cost']:g}",
        "load": f"{one['load']:.2f}",
        "TTFT p50": f"{one['ttft_p50_s']:.3f}",
        "TTFT p95": f"{one['ttft_p95_s']:.3f}",
        "ITL p95": f"{one['itl_p95_s']:.3f}",
        "hits": f"{one['hit_ratio']:.1%}",
        "open": one["peak_in_flight"],
        "holds": "yes, chosen" if is_chosen else "yes" if one["holds"] else "no",
    }
