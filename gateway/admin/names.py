"""What people call an organisation or a project, as the id that the admin API wants."""

from dataclasses import dataclass

from gateway.admin.connection import AdminClient, CommandFailed


@dataclass(frozen=True, slots=True)
class Kind:
    """`word`: for people. `command`: of ours. `path`: of the list in the admin API. `prefix`: of its ids."""

    word: str
    command: str
    path: str
    prefix: str


ORGANIZATION = Kind("organisation", "org", "/organizations", "org_")
PROJECT = Kind("project", "project", "/projects", "proj_")


def find_id(client: AdminClient, kind: Kind, given: str) -> str:
    """The id of what is called `given`, a name or an id. Raises `CommandFailed` for none and for several."""
    items = client.list_all(kind.path)
    if any(item["id"] == given for item in items):
        return given  # before the names: somebody may be called like another's id
    found = [str(item["id"]) for item in items if item["name"] == given]
    if not found and given.startswith(kind.prefix):
        return given  # the admin plane has its own sentence for an id that it does not know
    if not found:
        how = f"`warmlane {kind.command} list` shows them, `warmlane {kind.command} create` makes one"
        raise CommandFailed(f"there is no {kind.word} with the name or id {given!r}; {how}")
    if len(found) > 1:
        raise CommandFailed(f"several {kind.word}s are called {given!r}; give the id of one: {', '.join(found)}")
    return found[0]
