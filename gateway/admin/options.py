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


def segment(value: str) -> str:
    """A path segment from what a person gave: nothing in it, dots included, can leave its segment."""
    return quote(value, safe="").replace(".", "%2E")
