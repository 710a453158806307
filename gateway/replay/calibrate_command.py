"""`warmlane calibrate`: what an engine's steps cost, measured or from the ledger, for `simulate` and `plan`."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.admin.connection import CommandFailed
from gateway.admin.options import AsJson
from gateway.admin.output import one_sentence, write_json, write_table
from gateway.admin.usage_commands import progress_bar
from gateway.replay.command import SURFACES, Key, Model, write_document

if TYPE_CHECKING:
    from gateway.replay.step_fit import Fit, Observation

EPILOG = "Example: warmlane calibrate http://127.0.0.1:9100 --model demo --out engine.json"
_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
_MOST_SHOWN = 200  # measurements in the JSON; of a ledger there are more
_COLUMNS = ("term", "value", "for simulate and plan")
_FLAGS = {"base_s": "--step-base-ms", "per_row_s": "--step-row-ms", "per_prefill_token_s": "--step-token-ms"}


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's words."""

    url: str | None
    ledger: Path | None
    replica: str | None
    key: str | None
    model: str | None
    surface: str
    max_prompt: int
    max_rows: int
    repeats: int
    max_step_tokens: int


@one_sentence
def calibrate(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="An engine, or a gateway with one replica of the model.")
    ] = None,
    *,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="In place of measuring: a CSV of `warmlane usage export`.")
    ] = None,
    replica: Annotated[str | None, typer.Option("--replica", help="Of the ledger's replicas only this one.")] = None,
    key: Key = None,
    model: Model = None,
    surface: Annotated[str, typer.Option("--surface", help="chat or completions.")] = "chat",
    max_prompt: Annotated[
        int, typer.Option("--max-prompt", min=128, max=32_768, help="The longest prompt, in tokens.")
    ] = 2048,
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, max=256, help="The most answers at a time.")] = 8,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=100, help="How often each is measured.")] = 3,
    max_seqs: Annotated[int | None, typer.Option("--max-seqs", min=1, help="The engine's batch, for the file.")] = None,
    max_step_tokens: Annotated[
        int, typer.Option("--max-step-tokens", min=1, help="What the engine reads in one step at most.")
    ] = 2048,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON into this file, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what an engine's steps cost: of every step, for each answer in it, for each prompt token.

    Sends prompts of new text to URL, alone and side by side; there should be nothing else to do there. Or reads the
    ledger, which knows less. `simulate` and `plan` take the file with --engine.
    """
    if (url is None) == (ledger is None):
        raise typer.BadParameter("give the URL of an engine, or --ledger")
    if surface not in SURFACES:
        raise typer.BadParameter(f"--surface {surface!r} is none of {', '.join(SURFACES)}")
    asked = Asked(url, ledger, replica, key, model, surface, max_prompt, max_rows, repeats, max_step_tokens)
    source, observations = _measured(asked) if ledger is None else _recorded(asked, ledger)
    document = _document(source, observations, max_seqs, max_step_tokens)
    if out is not None:
        write_document(out, document)
    write_json(document) if as_json else _show(document)


def mount(app: typer.Typer) -> None:
    """Add the command to `warmlane`."""
    app.command("calibrate", epilog=EPILOG)(calibrate)


def _measured(asked: Asked) -> tuple[dict[str, Any], "Sequence[Observation]"]:
    """(where from, measurements of a live engine). Raises `CommandFailed`."""
    from gateway.replay.probe import ProbeFailed, ProbePlan, probe
    from gateway.replay.target import find_target

    target = find_target(asked.url, asked.key, asked.model, asked.surface)
    plan = ProbePlan(
        lengths=tuple(length for length in _LENGTHS if length <= asked.max_prompt),
        rows=tuple(rows for rows in (1 << n for n in range(9)) if rows <= asked.max_rows),
        repeats=asked.repeats,
        max_step_tokens=asked.max_step_tokens,
        salt=secrets.token_hex(8),
    )
    with progress_bar() as bars:
        bar = bars.add_task("measuring", total=plan.num_requests)
        try:
            found = asyncio.run(probe(target, plan, lambda num: bars.update(bar, completed=num)))
        except ProbeFailed as failed:
            raise CommandFailed(str(failed)) from failed
    return {"url": target.url, "model": target.model, "requests": plan.num_requests}, found


def _recorded(asked: Asked, ledger: Path) -> tuple[dict[str, Any], "Sequence[Observation]"]:
    """(where from, what the ledger says of steps). Raises `CommandFailed`."""
    from gateway.replay.ledger_steps import NoLedger, observations, read_served

    try:
        with ledger.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            served = read_served(lines)
    except OSError as error:
        raise CommandFailed(f"cannot read {ledger}: {error.strerror}") from error
    except NoLedger as error:
        raise CommandFailed(f"{ledger}: {error}") from error
    if asked.replica is not None and asked.replica not in served:
        known = ", ".join(sorted(served)[:10]) or "none"
        raise CommandFailed(f"{ledger} has no streamed answer of a replica {asked.replica!r}; of these it has: {known}")
    chosen = served if asked.replica is None else {asked.replica: served[asked.replica]}
    found = [one for of in chosen.values() for one in observations(of, asked.max_step_tokens)]
    requests = sum(map(len, chosen.values()))
    return {"ledger": str(ledger), "replicas": sorted(chosen), "requests": requests}, found


def _document(
    source: dict[str, Any], observations: "Sequence[Observation]", max_seqs: int | None, max_step_tokens: int
) -> dict[str, Any]:  # fmt: skip
    from gateway.replay.step_fit import fit

    try:
        found = fit(observations)
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    return {
        "engine": {**asdict(found.cost), "max_seqs": max_seqs, "max_step_tokens": max_step_tokens},
        "hop_s": found.hop_s,
        "fit": {
            "measurements": found.num,
            "left_out": found.num_left_out,
            "median_error": found.median_error,
            "p90_error": found.p90_error,
            "unseen": list(found.unseen),
        },
        "source": source,
        "measured": [_measurement(one, found) for one in observations[:_MOST_SHOWN]],
    }


def _measurement(one: "Observation", found: "Fit") -> dict[str, Any]:
    return {**asdict(one), "modelled_s": found.seconds(one)}


def _show(document: dict[str, Any]) -> None:
    """The terms with the flags that take them, and how far the model is off."""
    engine, found = document["engine"], document["fit"]
    unseen = set(found["unseen"])
    rows = [
        {
            "term": term,
            "value": "not measured" if term in unseen else f"{engine[term] * 1000:.4g} ms",
            "for simulate and plan": f"{flag} {engine[term] * 1000:.6g}",
        }
        for term, flag in _FLAGS.items()
    ]
    rows.append({"term": "hop_s", "value": f"{document['hop_s'] * 1000:.4g} ms", "for simulate and plan": "-"})
    write_table(rows, _COLUMNS, empty="")
    typer.echo(
        f"{found['measurements']} measurements, {found['left_out']} left out as unlike the others: the model is off by "
        f"{found['median_error']:.1%} in the median, {found['p90_error']:.1%} at p90"
    )
