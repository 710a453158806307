"""The admin API from a shell: `warmlane org`, `project`, `key`, `limits`, `replica` and `receipt`.

Mount them with `mount(app)`. Exit code 0 on success, 1 on failure with one sentence on stderr, 2 on bad usage.
"""

import re
import time
from typing import Annotated, Any

import typer

from gateway.admin.limit_commands import limits
from gateway.admin.names import ORGANIZATION, PROJECT, find_id
from gateway.admin.options import AsJson, Token, Url, connected, segment
from gateway.admin.output import one_sentence, write_item, write_json, write_table
from policies.lane import Lane

org = typer.Typer(help="Organisations: who pays for projects.", no_args_is_help=True)
project = typer.Typer(help="Projects: what a limit, a key and a cache belong to.", no_args_is_help=True)
key = typer.Typer(help="Keys: what a client sends.", no_args_is_help=True)
replica = typer.Typer(help="Replicas: the engines behind the gateway.", no_args_is_help=True)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_KEY_COLUMNS = ("id", "name", "prefix", "project_id", "max_lane", "created_at", "expires_at", "revoked_at")


def mount(app: typer.Typer) -> None:
    """Add all of these commands to the `warmlane` command."""
    app.add_typer(org, name="org")
    app.add_typer(project, name="project")
    app.add_typer(key, name="key")
    app.add_typer(limits, name="limits")
    app.add_typer(replica, name="replica")
    app.command("receipt", epilog="Example: warmlane receipt req_0123456789abcdef")(receipt)


def _write(item: Any, *, as_json: bool) -> None:
    write_json(item) if as_json else write_item(item)


@org.command("create", epilog='Example: warmlane org create --name "Research"')
@one_sentence
def create_organization(
    name: Annotated[str, typer.Option("--name", help="What people call it.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Create an organisation."""
    with connected(url, token) as client:
        _write(client.ask("POST", "/organizations", body={"name": name}), as_json=as_json)


@org.command("list", epilog="Example: warmlane org list --json")
@one_sentence
def list_organizations(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List organisations."""
    with connected(url, token) as client:
        items = client.list_all("/organizations")
    if as_json:
        return write_json({"data": items})
    return write_table(items, ("id", "name", "created_at"), empty="there are no organisations")


@project.command("create", epilog="Example: warmlane project create --org Research --name chat")
@one_sentence
def create_project(
    organization: Annotated[str, typer.Option("--org", help="The name or id of its organisation.")],
    name: Annotated[str, typer.Option("--name", help="What people call it.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Create a project."""
    with connected(url, token) as client:
        body = {"name": name, "organization_id": find_id(client, ORGANIZATION, organization)}
        made = client.ask("POST", "/projects", body=body)
        _write(made, as_json=as_json)


@project.command("list", epilog="Example: warmlane project list --org Research")
@one_sentence
def list_projects(
    organization: Annotated[
        str | None, typer.Option("--org", help="Only those of this organisation, a name or id.")
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List projects."""
    with connected(url, token) as client:
        within = {"organization_id": find_id(client, ORGANIZATION, organization)} if organization is not None else None
        items = client.list_all("/projects", within)
    if as_json:
        return write_json({"data": items})
    return write_table(items, ("id", "name", "organization_id", "created_at"), empty="there are no projects")


@key.command("create", epilog="Example: warmlane key create --project demo --name laptop --expires-in 30d")
@one_sentence
def create_key(
    *,
    project_given: Annotated[str, typer.Option("--project", help="The name or id of its project.")],
    name: Annotated[str, typer.Option("--name", help="What people call it.")],
    max_lane: Annotated[Lane | None, typer.Option("--max-lane", help="The highest lane it may use.")] = None,
    default_lane: Annotated[Lane | None, typer.Option("--default-lane", help="Its lane if a call names none.")] = None,
    expires_in: Annotated[str | None, typer.Option("--expires-in", help="Such as 12h, 30d or 4w.")] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Create a key. Its secret is shown this once."""
    body: dict[str, Any] = {"name": name}
    if max_lane is not None:
        body["max_lane"] = max_lane.value
    if default_lane is not None:
        body["default_lane"] = default_lane.value
    if expires_in is not None:
        body["expires_at"] = int(time.time()) + _seconds(expires_in, "--expires-in")
    with connected(url, token) as client:
        body["project_id"] = find_id(client, PROJECT, project_given)
        _write(client.ask("POST", "/keys", body=body), as_json=as_json)


@key.command("list", epilog="Example: warmlane key list --project demo")
@one_sentence
def list_keys(
    project_given: Annotated[
        str | None, typer.Option("--project", help="Only those of this project, a name or id.")
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List keys, revoked ones too."""
    with connected(url, token) as client:
        within = {"project_id": find_id(client, PROJECT, project_given)} if project_given is not None else None
        items = client.list_all("/keys", within)
    if as_json:
        return write_json({"data": items})
    return write_table(items, _KEY_COLUMNS, empty="there are no keys")


@key.command("revoke", epilog="Example: warmlane key revoke key_0123")
@one_sentence
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, not its secret.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key at once."""
    with connected(url, token) as client:
        _write(client.ask("DELETE", f"/keys/{segment(key_id)}"), as_json=as_json)


@key.command("rotate", epilog="Example: warmlane key rotate key_0123 --overlap 1h")
@one_sentence
def rotate_key(
    *,
    key_id: Annotated[str, typer.Argument(help="The key's id, not its secret.")],
    overlap: Annotated[str, typer.Option("--overlap", help="How long the old secret goes on working.")] = "0s",
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret, shown this once."""
    body = {"overlap_s": _seconds(overlap, "--overlap")}
    with connected(url, token) as client:
        _write(client.ask("POST", f"/keys/{segment(key_id)}/rotate", body=body), as_json=as_json)


@replica.command("list", epilog="Example: warmlane replica list")
@one_sentence
def list_replicas(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List replicas and their state."""
    with connected(url, token) as client:
        answer = client.ask("GET", "/replicas")
    if as_json:
        return write_json(answer)
    items = answer.get("data", [])
    columns = tuple(dict.fromkeys(name for item in items for name in item))
    return write_table(items, columns, empty="there are no replicas")


@replica.command("drain", epilog="Example: warmlane replica drain worker-1")
@one_sentence
def drain_replica(
    name: Annotated[str, typer.Argument(help="The replica's name.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Send a replica no new work; what it has goes on."""
    with connected(url, token) as client:
        _write(client.ask("POST", f"/replicas/{segment(name)}/drain"), as_json=as_json)


@replica.command("resume", epilog="Example: warmlane replica resume worker-1")
@one_sentence
def resume_replica(
    name: Annotated[str, typer.Argument(help="The replica's name.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Send a drained replica work again."""
    with connected(url, token) as client:
        _write(client.ask("POST", f"/replicas/{segment(name)}/resume"), as_json=as_json)


@one_sentence
def receipt(
    request_id: Annotated[str, typer.Argument(help="The x-request-id of an answer.")],
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show why a request went where it went."""
    with connected(url, token) as client:
        found = client.ask("GET", f"/requests/{segment(request_id)}/receipt")
    if as_json:
        return write_json(found)
    candidates = found.pop("candidates", [])
    write_item(found)
    typer.echo()
    columns = ("replica", "score_ms", "hit_tokens", "terms_ms", "filtered")
    return write_table(candidates, columns, empty="there were no candidates")


def _seconds(duration: str, option: str) -> int:
    """Seconds of a duration such as 90s, 15m, 12h, 30d or 4w; bad usage otherwise."""
    found = re.fullmatch(r"(\d{1,9})([smhdw])", duration)
    if not found:
        raise typer.BadParameter("give a duration such as 90s, 15m, 12h, 30d or 4w", param_hint=option)
    return int(found[1]) * _SECONDS[found[2]]
