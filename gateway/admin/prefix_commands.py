"""`warmlane prefixes`: where a project's successive prompts first differ, and what that costs."""

from typing import Annotated, Any

import typer

from gateway.admin.asking import Listing, asking
from gateway.admin.connection import AdminClient
from gateway.admin.names import ORGANIZATION, PROJECT, find_id

COLUMNS = ("project", "model", "differ in", "byte", "prompts", "of", "tokens each", "finding")
_FOLDED = "finding"


@asking
def prefixes(
    client: AdminClient,
    project: Annotated[
        str | None, typer.Option("--project", help="Only of this project, a name or id; default: all you may see.")
    ] = None,
    organization: Annotated[
        str | None, typer.Option("--org", help="Only of this organisation's projects, a name or id.")
    ] = None,
) -> Listing:
    """Show where successive prompts first differ, and how many tokens are read again for it. No text is kept.

    Of each project and model: the last 512 to 1,024 prompts that a gateway saw, each held against the one before.
    """
    query: dict[str, Any] = {}
    if project is not None:
        query["project_id"] = find_id(client, PROJECT, project)
    if organization is not None:
        query["organization_id"] = find_id(client, ORGANIZATION, organization)
    found = client.list_all("/prefixes", query)
    names = {str(one["id"]): str(one["name"]) for one in client.list_all("/projects")} if found else {}
    rows = [line for row in found for line in _lines(row, names.get(row["project_id"], row["project_id"]))]
    return Listing(found, COLUMNS, empty="no project has sent two prompts to a model yet", rows=rows)


def _lines(row: dict[str, Any], project: str) -> list[dict[str, Any]]:
    """A line for each place, the finding in words on the first; one line for a project whose prompts never differ."""
    head = {"project": project, "model": row["model"], "of": row["prompts"]}
    if not row["places"]:
        return [{**head, "finding": row["finding"]}]
    lines = [{**head, **_place(place)} for place in row["places"]]
    lines[0][_FOLDED] = row["finding"]
    return lines


def _place(place: dict[str, Any]) -> dict[str, Any]:
    first, last = place["from_byte"], place["to_byte"]
    where = place["kind"]
    if place["message"] is not None:
        part = "" if place["part"] is None else f", part {place['part']}"
        where = f"message {place['message']} ({place['role']}{part})"
    return {
        "differ in": where,
        "byte": str(first) if first == last else f"{first}-{last}",
        "prompts": place["prompts"],
        "tokens each": round(place["lost_tokens"] / place["prompts"]),
    }
