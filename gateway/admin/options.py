"""What all admin commands share: the options that find the admin plane, and the way to it."""

from typing import Annotated
from urllib.parse import quote

import typer

from gateway.admin.connection import AdminClient, find_connection

Url = Annotated[str | None, typer.Option("--url", help="The admin plane, such as http://127.0.0.1:8081.")]
Token = Annotated[str | None, typer.Option("--token", help="The admin token; better given as WARMLANE_ADMIN_TOKEN.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON for scripts.")]


def connected(url: str | None, token: str | None) -> AdminClient:
    """The admin plane of the options and the environment. Raises `CommandFailed`."""
    return AdminClient(find_connection(url, token))


def segment(value: str) -> str:
    """A path segment from what a person gave: nothing in it, dots included, can leave its segment."""
    return quote(value, safe="").replace(".", "%2E")
