"""The admin API from a shell: `warmlane org`, `project`, `key`, `limits`, `replica`, `usage`, `audit` and `receipt`.

Mount them with `mount(app)`. Exit code 0 on success, 1 on failure with one sentence on stderr, 2 on bad usage.
"""

import re
import time
from typing import Annotated, Any

import typer

from gateway.admin.asking import Item, Listing, Report, asking
from gateway.admin.audit_commands import audit
from gateway.admin.connection import AdminClient, CommandFailed, NotFound
from gateway.admin.limit_commands import limits
from gateway.admin.names import ORGANIZATION, PROJECT, Kind, find_id
from gateway.admin.options import a_name, choice, key_id, one_word, segment, words
from gateway.admin.prefix_commands import prefixes
from gateway.admin.receipt_report import candidates_report, request_of
from gateway.admin.usage_commands import usage
from gateway.admin.warm_command import warm
from policies.lane import Lane
from policies.tenant import Role

org = typer.Typer(help="Organisations: who pays for projects.", no_args_is_help=True)
project = typer.Typer(help="Projects: what a limit, a key and a cache belong to.", no_args_is_help=True)
key = typer.Typer(help="Keys: what a client sends.", no_args_is_help=True)
replica = typer.Typer(help="Replicas: the engines behind the gateway.", no_args_is_help=True)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MOST_S = 100 * 366 * 86400
_KEY_COLUMNS = ("id", "name", "project_id", "max_lane", "roles", "state")
_PROJECT_KEY_COLUMNS = ("id", "name", "max_lane", "roles", "state", "last_used_at")
_REPLICA_COLUMNS = ("name", "model", "engine", "state", "seats", "running")
_SHOWN_ONCE = "the secret is shown only this once: keep it now"
_MEMORY_ONLY = (
    "receipts live in memory, of the last 10,000 requests of each gateway, until it restarts; the ledger's row of an "
    "older one is at /admin/v1/usage/requests/REQUEST_ID and in `warmlane usage export`"
)


def _seconds(duration: str) -> int:
    if not (found := re.fullmatch(r"(\d{1,9})([smhdw])", duration)):
        raise typer.BadParameter("give a duration such as 90s, 15m, 12h, 30d or 4w")
    seconds = int(found[1]) * _SECONDS[found[2]]
    if seconds > _MOST_S:
        raise typer.BadParameter("that is more than a hundred years")
    return seconds


def _time_to_come(duration: str) -> int:
    if not (seconds := _seconds(duration)):
        raise typer.BadParameter("it would be over at once; give a duration such as 90s, 15m, 12h, 30d or 4w")
    return seconds


Name = Annotated[str, typer.Option("--name", parser=a_name, metavar="TEXT", help="What people call it.")]
KeyId = Annotated[str, typer.Argument(parser=key_id, metavar="KEY_ID", help="The key's id, not its secret.")]
Cascade = Annotated[bool, typer.Option("--cascade", help="What is in it goes too.")]
ReplicaName = Annotated[str, typer.Argument(parser=a_name, metavar="NAME", help="The replica's name.")]


def mount(app: typer.Typer) -> None:
    """Add all of these commands to the `warmlane` command."""
    app.add_typer(org, name="org")
    app.add_typer(project, name="project")
    app.add_typer(key, name="key")
    app.add_typer(limits, name="limits")
    app.add_typer(replica, name="replica")
    app.add_typer(usage, name="usage")
    app.command("audit", epilog="Example: warmlane audit --project demo --action limits.set --from 2026-11-01")(audit)
    app.command("prefixes", epilog="Example: warmlane prefixes --project chat")(prefixes)
    app.command("receipt", epilog="Example: warmlane receipt req_0123456789abcdef")(receipt)


@org.command("create", epilog='Example: warmlane org create --name "Research"')
@asking
def create_organization(client: AdminClient, name: Name) -> Item:
    """Create an organisation."""
    return Item(client.ask("POST", "/organizations", body={"name": name}))


@org.command("list", epilog="Example: warmlane org list --json")
@asking
def list_organizations(client: AdminClient) -> Listing:
    """List organisations."""
    items = client.list_all("/organizations")
    return Listing(items, ("id", "name", "created_at"), empty="there are no organisations")


@org.command("delete", epilog="Example: warmlane org delete Research --cascade")
@asking
def delete_organization(
    client: AdminClient,
    organization: Annotated[str, typer.Argument(help="Its name or id.")],
    cascade: Cascade = False,
) -> Item:
    """Delete an organisation that has no projects, or all that is in it."""
    return Item(_delete(client, ORGANIZATION, organization, cascade))


@project.command("delete", epilog="Example: warmlane project delete chat --cascade")
@asking
def delete_project(
    client: AdminClient,
    project_given: Annotated[str, typer.Argument(metavar="PROJECT", help="Its name or id.")],
    cascade: Cascade = False,
) -> Item:
    """Delete a project that has no usable keys, or its keys too: they are refused at once."""
    return Item(_delete(client, PROJECT, project_given, cascade))


def _delete(client: AdminClient, kind: Kind, given: str, cascade: bool) -> dict[str, Any]:
    path = f"{kind.path}/{segment(find_id(client, kind, given))}"
    return client.ask("DELETE", path, query={"cascade": "true"} if cascade else None)


@project.command("create", epilog="Example: warmlane project create --org Research --name chat")
@asking
def create_project(
    client: AdminClient,
    organization: Annotated[str, typer.Option("--org", help="The name or id of its organisation.")],
    name: Name,
) -> Item:
    """Create a project."""
    body = {"name": name, "organization_id": find_id(client, ORGANIZATION, organization)}
    return Item(client.ask("POST", "/projects", body=body))


@project.command("list", epilog="Example: warmlane project list --org Research")
@asking
def list_projects(
    client: AdminClient,
    organization: Annotated[
        str | None, typer.Option("--org", help="Only those of this organisation, a name or id.")
    ] = None,
) -> Listing:
    """List projects."""
    within = {"organization_id": find_id(client, ORGANIZATION, organization)} if organization is not None else None
    items = client.list_all("/projects", within)
    return Listing(items, ("id", "name", "organization_id", "created_at"), empty="there are no projects")


@key.command("create", epilog="Example: warmlane key create --project demo --name laptop --expires-in 30d")
@asking
def create_key(
    client: AdminClient,
    *,
    project_given: Annotated[str, typer.Option("--project", help="The name or id of its project.")],
    name: Name,
    roles: Annotated[
        list[Role] | None,
        typer.Option(
            "--role",
            parser=choice(Role),
            metavar="ROLE",
            help=f"What it may do, more than once: {words(Role)}; default: service.",
        ),
    ] = None,
    max_lane: Annotated[
        Lane | None,
        typer.Option(
            "--max-lane", parser=choice(Lane), metavar="LANE", help=f"The highest lane it may use: {words(Lane)}."
        ),
    ] = None,
    default_lane: Annotated[
        Lane | None,
        typer.Option(
            "--default-lane", parser=choice(Lane), metavar="LANE", help="Its lane if a call names none; one of these."
        ),
    ] = None,
    expires_in: Annotated[
        int | None, typer.Option("--expires-in", parser=_time_to_come, metavar="TEXT", help="Such as 12h, 30d or 4w.")
    ] = None,
) -> Item:
    """Create a key. Its secret is shown this once."""
    body: dict[str, Any] = {"name": name, "max_lane": max_lane, "default_lane": default_lane}
    if roles:
        body["roles"] = [role.value for role in roles]
    if expires_in is not None:
        body["expires_at"] = int(time.time()) + expires_in
    body["project_id"] = find_id(client, PROJECT, project_given)
    return Item(client.ask("POST", "/keys", body=body), note=_SHOWN_ONCE)


@key.command("list", epilog="Example: warmlane key list --project demo")
@asking
def list_keys(
    client: AdminClient,
    project_given: Annotated[
        str | None, typer.Option("--project", help="Only those of this project, a name or id.")
    ] = None,
) -> Listing:
    """List keys, revoked ones too; with --project also when each was last used. Prefixes and all times: with --json."""
    within = {"project_id": find_id(client, PROJECT, project_given)} if project_given is not None else None
    keys, now = client.list_all("/keys", within), time.time()
    rows = [{**one, "state": key_state(one, now)} for one in keys]
    columns = _KEY_COLUMNS if within is None else _PROJECT_KEY_COLUMNS
    return Listing(keys, columns, empty="there are no keys", rows=rows)


def key_state(fields: dict[str, Any], now: float) -> str:
    """Whether a key opens anything at Unix second `now`; a rotated one's old secret is not told of."""
    if fields["revoked_at"] is not None:
        return "revoked"
    return "usable" if fields["expires_at"] is None or fields["expires_at"] > now else "expired"


@key.command("revoke", epilog="Example: warmlane key revoke key_0123")
@asking
def revoke_key(client: AdminClient, of: KeyId) -> Item:
    """Revoke a key at once."""
    return Item(client.ask("DELETE", f"/keys/{segment(of)}"))


@key.command("rotate", epilog="Example: warmlane key rotate key_0123 --overlap 1h")
@asking
def rotate_key(
    client: AdminClient,
    of: KeyId,
    overlap: Annotated[
        int,
        typer.Option("--overlap", parser=_seconds, metavar="TEXT", help="How long the old secret goes on working."),
    ] = "0s",  # type: ignore[assignment]  # parsed as if it had been given
) -> Item:
    """Give a key a new secret, shown this once."""
    return Item(client.ask("POST", f"/keys/{segment(of)}/rotate", body={"overlap_s": overlap}), note=_SHOWN_ONCE)


@replica.command("list", epilog="Example: warmlane replica list")
@asking
def list_replicas(client: AdminClient) -> Report:
    """List replicas and their state. URL, labels and load: with --json."""
    answer = client.ask("GET", "/replicas")
    items = answer.get("data", [])
    rows = [{**one, "running": sum(one.get("in_flight", {}).values())} for one in items]
    return Report(answer, Listing(items, _REPLICA_COLUMNS, empty="there are no replicas", rows=rows), head={})


@replica.command("drain", epilog="Example: warmlane replica drain worker-1")
@asking
def drain_replica(client: AdminClient, name: ReplicaName) -> Item:
    """Send a replica no new work; what it has goes on."""
    return Item(client.ask("POST", f"/replicas/{segment(name)}/drain"))


@replica.command("resume", epilog="Example: warmlane replica resume worker-1")
@asking
def resume_replica(client: AdminClient, name: ReplicaName) -> Item:
    """Send a drained replica work again."""
    return Item(client.ask("POST", f"/replicas/{segment(name)}/resume"))


@replica.command("release", epilog="Example: warmlane replica release llama-1")
@asking
def release_replica(client: AdminClient, name: ReplicaName) -> Item:
    """Say that the cache of a drained replica without a salt was cleared: another tenant may have it."""
    return Item(client.ask("POST", f"/replicas/{segment(name)}/release"))


replica.command("warm", epilog="Example: warmlane replica warm prompt.json --project chat --count 2")(warm)


@asking
def receipt(
    client: AdminClient,
    request_id: Annotated[
        str,
        typer.Argument(
            parser=one_word, metavar="REQUEST_ID", help="The x-request-id of an answer, or the id in its body."
        ),
    ],
) -> Report:
    """Show why a request went where it went."""
    request = request_of(request_id)
    try:
        found = client.ask("GET", f"/requests/{segment(request)}/receipt")
    except NotFound as unknown:
        raise NotFound(_without_receipt(client, request) or f"{unknown}; {_MEMORY_ONLY}") from unknown
    return candidates_report(found)


def _without_receipt(client: AdminClient, request: str) -> str:
    """Why a request has none, as the ledger knows it; empty if it had a replica, or is not known there."""
    try:
        row = client.ask("GET", f"/usage/requests/{segment(request)}")
    except CommandFailed:
        return ""
    if row.get("attempts") != 0:
        return ""
    why = row.get("limit") or row.get("reason") or "no reason was kept"
    ended = f"{row['outcome']} ({row['status']}, {why})"
    return f"{request} has no receipt: it was never sent to a replica; it ended as {ended}"
