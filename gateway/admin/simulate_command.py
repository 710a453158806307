"""`warmlane limits simulate`: a limits document tried on the past, before it is set."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gateway.admin.connection import AdminClient, CommandFailed
from gateway.admin.names import PROJECT, find_id
from gateway.admin.options import AsJson, Token, Url, connected, segment
from gateway.admin.output import one_sentence, write_json, write_table
from gateway.admin.usage_commands import From, To, given, progress_bar
from gateway.admin.usage_export import pages
from gateway.errors import ClientError
from gateway.usage_wire import ledger_row, read_period
from policies.ledger import LedgerRow
from policies.limits import LimitsDocument, LimitsError, effective, parse_limits
from policies.limits_replay import LimitsReplay, Replay, primed_from
from policies.tenant import Tenant

COLUMNS = ("limit", "requests", "share", "charged_tokens", "first_at")


@one_sentence
def simulate_limits(
    *,
    project: Annotated[str, typer.Option("--project", help="The name or id of the project.")],
    document: Annotated[Path, typer.Option("--document", help="The proposed limits document, a JSON file.")],
    since: From = None,
    until: To = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a limits document would have refused in a past period. Nothing is changed.

    What was used of the minute, the day and the month in which the period begins counts as it was.
    """
    proposed = _parsed(_content(document), str(document))
    with connected(url, token) as client, progress_bar() as progress:
        project_id = find_id(client, PROJECT, project)
        organization = str(client.ask("GET", f"/projects/{segment(project_id)}")["organization_id"])
        tenants = _tenants(client, organization, project_id, proposed)
        replay = LimitsReplay(tenants, project_id, _aliases(client))
        period = _period(since, until)
        before = (primed_from(tenants.values(), period[0]), period[0])
        for of, take in ((before, replay.prime), (period, replay.take)):
            query = {"organization_id": organization, "from": of[0], "to": of[1]}
            expected = sum(row["requests"] for row in client.list_all("/usage", {**query, "group_by": "day"}))
            task = progress.add_task("replaying" if of is period else "before that", total=expected)
            for rows in _rows(client, query):
                take(rows)
                progress.advance(task, len(rows))
    _write(replay.found, as_json=as_json)


def _period(since: str | None, until: str | None) -> tuple[int, int]:
    """As the admin plane reads it."""
    try:
        return read_period(given({"from": since, "to": until}), time.time())
    except ClientError as error:
        raise CommandFailed(str(error)) from error


def _tenants(client: AdminClient, organization: str, project_id: str, proposed: LimitsDocument) -> dict[str, Tenant]:
    """Every project of the organisation with its limits, and the one in question with the proposed ones."""
    above = _document(client, f"/organizations/{segment(organization)}/limits")
    found = {}
    for item in client.list_all("/projects", {"organization_id": organization}):
        of = str(item["id"])
        own = proposed if of == project_id else _document(client, f"/projects/{segment(of)}/limits")
        found[of] = Tenant(of, organization, "", effective(above, own), effective(above))
    return found


def _aliases(client: AdminClient) -> dict[str, frozenset[str]]:
    """Other names of the models; none for who may not read the settings."""
    models = client.ask_if_allowed("/config").get("models") or []
    return {str(one["name"]): frozenset(map(str, one["aliases"])) for one in models}


def _rows(client: AdminClient, query: dict[str, Any]) -> Iterator[list[LedgerRow]]:
    for page in pages(client, query):
        yield [ledger_row(one) for one in page]


def _document(client: AdminClient, path: str) -> LimitsDocument:
    return _parsed(msgspec.json.encode(client.ask("GET", path)), path)


def _parsed(content: bytes, where: str) -> LimitsDocument:
    try:
        return parse_limits(content)
    except LimitsError as error:
        raise CommandFailed(f"{where}: {error}") from error


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror}") from error


def _write(found: Replay, *, as_json: bool) -> None:
    by_limit = [
        {
            "limit": limit,
            "requests": one.requests,
            "share": round(one.requests / found.requests, 4),
            "charged_tokens": one.charged_tokens,
            "first_at": one.first_at,
        }
        for limit, one in sorted(found.by_limit.items())
    ]
    if as_json:
        counts = {
            "requests": found.requests,
            "refused_then": found.refused_then,
            "refused": found.refused_now,
            "newly_refused": found.newly_refused,
        }
        return write_json({**counts, "by_limit": by_limit})
    typer.echo(
        f"of {found.requests} requests {found.refused_now} would have been refused, {found.newly_refused} of which "
        f"were served; {found.refused_then} were refused then"
    )
    for one in by_limit:
        one["share"] = f"{one['share']:.1%}"
    return write_table(by_limit, COLUMNS, empty="no limit would have refused anything") if by_limit else None
