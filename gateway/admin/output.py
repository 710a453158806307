"""How the admin commands write: JSON for scripts, tables and lists for people, one sentence on stderr on failure."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.admin.connection import CommandFailed

P = ParamSpec("P")


def one_sentence(command: Callable[P, None]) -> Callable[P, None]:
    """The command, with a failure as one sentence on stderr and exit code 1."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except CommandFailed as failed:
            typer.echo(f"warmlane: {failed}", err=True)
            raise typer.Exit(1) from failed
        except UnicodeEncodeError as error:  # an argument in another encoding came as half characters
            typer.echo(f"warmlane: {error.object[:100]!r} is not text in UTF-8", err=True)
            raise typer.Exit(1) from error

    return run


def write_json(value: Any) -> None:
    """The value as indented JSON on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def write_table(items: Iterable[dict[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """One row for each item; `empty` in place of a table without rows."""
    rows = list(items)
    if not rows:
        typer.echo(empty)
        return
    table = Table(*columns, box=None, pad_edge=False)
    for item in rows:
        # Text, not markup: a name with brackets in it is shown as it is.
        table.add_row(*(Text(readable(name, item.get(name))) for name in columns))
    console = Console()
    # A terminal folds long cells; a file or pipe gets whole lines.
    console.print(table, soft_wrap=False) if console.is_terminal else Console(width=10_000).print(table)


def write_item(item: dict[str, Any]) -> None:
    """Every field of one item on its own line."""
    width = max((len(name) for name in item), default=0)
    for name, value in item.items():
        typer.echo(f"{name:<{width}}  {readable(name, value)}")


def readable(name: str, value: Any) -> str:
    """A field for people: times in UTC, lists joined, nothing as a dash."""
    if value is None:
        return "-"
    if name.endswith("_at") and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value) or "-"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)
