"""`warmlane usage`: what was used, as a table, as JSON, or exported request by request."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gateway.admin.connection import AdminClient
from gateway.admin.names import ORGANIZATION, PROJECT, Kind, find_id
from gateway.admin.options import AsJson, Token, Url, choice, connected, words
from gateway.admin.output import one_sentence, write_json, write_table
from gateway.admin.usage_export import Format, export, format_of, pages
from policies.ledger import Group

usage = typer.Typer(
    help="What was used, from the ledger.", epilog="Example: warmlane usage --group-by model --from 2026-11-01"
)

GroupBy = Annotated[
    Group, typer.Option("--group-by", parser=choice(Group), metavar="NAME", help=f"What to sum by: {words(Group)}.")
]
From = Annotated[
    str | None, typer.Option("--from", help="Where the period begins, such as 2026-11-01; default 30 days ago.")
]
To = Annotated[str | None, typer.Option("--to", help="Where it ends; this day is not in it. Default: now.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="Only this project, a name or id.")]
OrgOption = Annotated[str | None, typer.Option("--org", help="Only this organisation, a name or id.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Only this model.")]

_COUNTS = ("requests", "refused", "prompt_tokens", "cached_tokens", "completion_tokens", "charged_tokens", "cost_usd")
_NAMED: dict[Group, str] = {Group.ORGANIZATION: ORGANIZATION.path, Group.PROJECT: PROJECT.path, Group.KEY: "/keys"}


@usage.callback(invoke_without_command=True)
@one_sentence
def show_usage(
    context: typer.Context,
    *,
    group_by: GroupBy = Group.PROJECT.value,  # type: ignore[assignment]  # parsed as if it had been given
    since: From = None,
    until: To = None,
    project: ProjectOption = None,
    organization: OrgOption = None,
    model: ModelOption = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what was used, summed by organisation, project, key, model, lane or day. The middle columns are tokens."""
    if context.invoked_subcommand is not None:
        return _refuse_options(context)
    with connected(url, token) as client:
        query = _query(client, project, organization, since=since, until=until, model=model)
        rows = client.list_all("/usage", {**query, "group_by": group_by.value})
        names = {} if as_json or group_by not in _NAMED else _names(client, _NAMED[group_by])
    if as_json:
        return write_json({"data": rows})
    columns = ("group", *(("name",) if names else ()), *(_heading(name) for name in _COUNTS))
    return write_table([_shown(row, names) for row in rows], columns, empty="nothing was used")


def _shown(row: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    counts = {_heading(name): row[name] for name in _COUNTS}
    return counts | {
        "group": row["group"] or None,
        "name": names.get(row["group"]),
        "cost_usd": f"{row['cost_usd']:.6f}",
    }


def _heading(name: str) -> str:
    """Without the unit that four columns share: so a line with an id fits into 100 columns."""
    return name.removesuffix("_tokens")


@usage.command("export", epilog="Example: warmlane usage export --format csv --out november.csv --from 2026-11-01")
@one_sentence
def export_usage(
    *,
    out: Annotated[Path, typer.Option("--out", help="The file to write.", dir_okay=False)],
    kind: Annotated[
        Format | None,
        typer.Option(
            "--format",
            parser=choice(Format),
            metavar="NAME",
            help=f"{words(Format)}; by default what the file's name ends in, else csv.",
        ),
    ] = None,
    since: From = None,
    until: To = None,
    project: ProjectOption = None,
    organization: OrgOption = None,
    model: ModelOption = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Write every request of a period to a file, one row each, as long as rows are kept."""
    with connected(url, token) as client, progress_bar() as progress:
        query = _query(client, project, organization, since=since, until=until, model=model)
        expected = sum(row["requests"] for row in client.list_all("/usage", {**query, "group_by": "day"}))
        task = progress.add_task(f"writing {out.name}", total=expected)
        num_rows = export(pages(client, query), out, kind or format_of(out), lambda rows: progress.advance(task, rows))
    if as_json:
        return write_json({"file": str(out), "rows": num_rows})
    return typer.echo(f"{num_rows} request{' is' if num_rows == 1 else 's are'} in {out}")


def _refuse_options(context: typer.Context) -> None:
    """Bad usage for options before a subcommand: they would be believed, and not heard."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"give the options after `{context.invoked_subcommand}`")


def _query(
    client: AdminClient,
    project: str | None,
    organization: str | None,
    *,
    since: str | None,
    until: str | None,
    model: str | None,
) -> dict[str, Any]:
    """What people gave, names as ids."""
    named: list[tuple[str, Kind, str | None]] = [
        ("project_id", PROJECT, project),
        ("organization_id", ORGANIZATION, organization),
    ]
    found = {name: find_id(client, kind, text) for name, kind, text in named if text is not None}
    return found | given({"from": since, "to": until, "model": model})


def given(options: dict[str, str | None]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _names(client: AdminClient, path: str) -> dict[str, str]:
    """What people call what an id stands for."""
    return {str(item["id"]): str(item["name"]) for item in client.list_all(path)}


def progress_bar() -> Progress:
    """A bar on stderr, where somebody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
