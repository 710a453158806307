"""What all admin commands share: the options that find the admin plane, the way to it, and words to choose from."""

from collections.abc import Callable
from enum import Enum
from typing import Annotated, TypeVar
from urllib.parse import quote

import typer

from gateway.admin.connection import AdminClient, find_connection

Url = Annotated[str | None, typer.Option("--url", help="The admin plane, such as http://127.0.0.1:8081.")]
Token = Annotated[str | None, typer.Option("--token", help="The admin token; better given as WARMLANE_ADMIN_TOKEN.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON for scripts.")]


Choice = TypeVar("Choice", bound=Enum)


def words(kind: type[Enum]) -> str:
    """What may be chosen, for help and errors: "interactive, standard or bulk"."""
    *most, last = (str(one.value) for one in kind)
    return f"{', '.join(most)} or {last}"


def choice(kind: type[Choice]) -> Callable[[str | Choice], Choice]:
    """The parser of an option with these choices. A wrong one is bad usage that names them all."""

    def parse(given: str | Choice) -> Choice:
        try:
            return kind(given)
        except ValueError as error:
            raise typer.BadParameter(f"{given!r} is none of them; give {words(kind)}") from error

    return parse


def connected(url: str | None, token: str | None) -> AdminClient:
    """The admin plane of the options and the environment. Raises `CommandFailed`."""
    return AdminClient(find_connection(url, token))


def key_id(given: str) -> str:
    """The parser of a key's id. A secret given in its place is neither sent nor shown again."""
    if given.startswith("wl-"):
        raise typer.BadParameter("that is a key's secret; give its id (key_…), which `warmlane key list` shows")
    return one_word(given)


def one_word(given: str) -> str:
    """The parser of an id: it is not empty and has no slash, so that it is one part of a path."""
    if not given or "/" in given:
        raise typer.BadParameter(f"{given!r} is no id")
    return given


def a_name(given: str) -> str:
    """The parser of a name that must not be empty, as a script's unset variable is."""
    if not given:
        raise typer.BadParameter("it is empty")
    return given


def segment(value: str) -> str:
    """A path segment from what a person gave: nothing in it, dots included, can leave its segment."""
    return quote(value, safe="").replace(".", "%2E")
