"""`warmlane audit`: who changed what, the newest first."""

from typing import Annotated, Any

import typer

from gateway.admin.asking import Listing, asking
from gateway.admin.connection import AdminClient
from gateway.admin.names import ORGANIZATION, PROJECT, find_id

_COLUMNS = ("time", "actor", "change", "subject")


@asking
def audit(
    client: AdminClient,
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most entries to show.")] = 50,
    actor: Annotated[str | None, typer.Option("--actor", help="A key's id, a person, or admin_token.")] = None,
    action: Annotated[str | None, typer.Option("--action", help="Such as key.created or limits.set.")] = None,
    subject: Annotated[str | None, typer.Option("--subject", help="The id of what was changed.")] = None,
    organization: Annotated[str | None, typer.Option("--org", help="Only within this one, a name or id.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only within this one, a name or id.")] = None,
    request_id: Annotated[str | None, typer.Option("--request", help="The x-request-id of the change.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="Such as 2026-11-01.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="This day is not in it.")] = None,
) -> Listing:
    """Show who changed what, the newest first. What it was before and after, and the request: with --json."""
    given = {
        "actor": actor,
        "action": action,
        "subject_id": subject,
        "organization_id": None if organization is None else find_id(client, ORGANIZATION, organization),
        "project_id": None if project is None else find_id(client, PROJECT, project),
        "request_id": request_id,
        "from": since,
        "to": until,
    }
    query = {name: value for name, value in given.items() if value is not None}
    entries = _newest(client, query, limit)
    return Listing(entries, _COLUMNS, empty="nothing was changed", rows=[_row(one) for one in entries])


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry for people; the admin token and the system have no name of their own."""
    actor = entry["actor"] or entry["actor_kind"]
    return {"time": entry["at"], "actor": actor, "change": entry["action"], "subject": entry["subject_id"]}


def _newest(client: AdminClient, query: dict[str, Any], limit: int) -> list[dict[str, Any]]:
    """So many entries at most, page after page: one may be short before the last."""
    found: list[dict[str, Any]] = []
    after: dict[str, Any] = {}
    while len(found) < limit:
        page = client.ask("GET", "/audit", query={**query, **after, "limit": min(1000, limit - len(found))})
        found += page.get("data") or []
        if not page.get("next_cursor"):
            break
        after = {"after": page["next_cursor"]}
    return found
