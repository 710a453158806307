"""`warmlane limits`: what an organisation or a project may use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.admin.connection import AdminClient, CommandFailed
from gateway.admin.names import ORGANIZATION, PROJECT, Kind, find_id
from gateway.admin.options import AsJson, Token, Url, connected, segment
from gateway.admin.output import one_sentence, write_item, write_json
from gateway.admin.simulate_command import simulate_limits
from policies.limits import MAX_DOCUMENT_BYTES

limits = typer.Typer(help="Limits of an organisation or a project.", no_args_is_help=True)

_OF_WHAT = "give --project or --org, or the id of one (proj_…, org_…)"
_ONE_DOCUMENT = "give the document as an argument or with --file, one of them"

_CLOSED = "usd_per_month closes models without a price ({}); give them price_in and price_out in the configuration"

ProjectOption = Annotated[str | None, typer.Option("--project", help="The name or id of a project.")]
OrgOption = Annotated[str | None, typer.Option("--org", help="The name or id of an organisation.")]


limits.command(
    "simulate",
    epilog="Example: warmlane limits simulate --project demo --document limits.json --from 2026-11-01",
)(simulate_limits)


@limits.command("get", epilog="Example: warmlane limits get --project demo")
@one_sentence
def get_limits(
    *,
    of: Annotated[str | None, typer.Argument(metavar="[ID]", help="In place of --project or --org.")] = None,
    project: ProjectOption = None,
    organization: OrgOption = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show a limits document; what is not in it is inherited."""
    kind, given = _subject(project, organization, [of] if of is not None else [])
    with connected(url, token) as client:
        document = client.ask("GET", _path(client, kind, given))
    if as_json:
        return write_json(document)
    return _show(document)


@limits.command(
    "set", epilog="""Example: warmlane limits set --project demo '{"rpm": 60, "concurrency": {"bulk": 4}}'"""
)
@one_sentence
def set_limits(
    *,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[ID] [DOCUMENT]", help="The whole new document, JSON.")
    ] = None,
    project: ProjectOption = None,
    organization: OrgOption = None,
    file: Annotated[Path | None, typer.Option("--file", help="Read the document from a file.")] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Replace a limits document as a whole: what is not in the new one is inherited, so '{}' takes all limits back."""
    given_words = list(words or [])
    if file is not None and given_words and given_words[-1].lstrip()[:1] in ("{", "["):
        raise typer.BadParameter(_ONE_DOCUMENT)
    texts = [] if file is not None else given_words[-1:]
    kind, given = _subject(project, organization, given_words[: len(given_words) - len(texts)])
    if file is None and not texts:
        raise typer.BadParameter("give the document as an argument or with --file, one of them")
    content = _content(file) if file is not None else texts[0].encode()
    with connected(url, token) as client:
        document = client.ask("PUT", _path(client, kind, given), body=content)
        closed = () if document.get("usd_per_month") is None else _unpriced_models(client)
    write_json(document) if as_json else _show(document)
    if closed:
        typer.echo(_CLOSED.format(", ".join(closed)), err=True)


def _unpriced_models(client: AdminClient) -> list[str]:
    """The models that are configured or served without a price, as far as the caller may know."""
    configured = client.ask_if_allowed("/config").get("models")
    if configured is None:
        return []
    served = client.ask_if_allowed("/replicas").get("data") or ()
    priced = {one["name"] for one in configured if one["price_in"] is not None}
    known = {one["name"] for one in configured} | {one["model"] for one in served}
    return sorted(known - priced)


def _show(document: dict[str, Any]) -> None:
    write_item(document) if document else typer.echo("nothing is set: all is inherited")


def _subject(project: str | None, organization: str | None, ids: Sequence[str]) -> tuple[Kind, str]:
    """Whose limits; bad usage unless exactly one is named."""
    named = [(PROJECT, project), (ORGANIZATION, organization), *((_kind(one), one) for one in ids)]
    given = [(kind, name) for kind, name in named if name is not None]
    if len(given) != 1:
        raise typer.BadParameter(_OF_WHAT if not given else f"{_OF_WHAT}: exactly one of them")
    return given[0]


def _kind(given: str) -> Kind:
    for kind in (ORGANIZATION, PROJECT):
        if given.startswith(kind.prefix):
            return kind
    raise typer.BadParameter(f"{given[:64]!r} is no id: {_OF_WHAT}")


def _path(client: AdminClient, kind: Kind, given: str) -> str:
    return f"{kind.path}/{segment(find_id(client, kind, given))}/limits"


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_DOCUMENT_BYTES + 1)  # the admin plane has a sentence for one that is too long
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror}") from error
