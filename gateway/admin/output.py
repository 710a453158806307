"""How the admin commands write: JSON for scripts, tables and lists for people, one sentence on stderr on failure."""

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.admin.connection import CommandFailed

P = ParamSpec("P")

# Text for people; all else is copied, so whole.
_FOLDED = frozenset({"name", "model", "roles", "filtered", "assumed", "finding"})
_GAP = 2  # between columns, as rich has it
_FOLDED_WIDTH = 12  # chosen: a narrower column of text is a column of letters


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


def write_table(
    items: Iterable[dict[str, Any]], columns: Sequence[str], *, empty: str, folded: frozenset[str] = _FOLDED
) -> None:
    """One row for each item; `empty` in place of a table without rows. `folded`: the columns that a terminal folds."""
    rows = list(items)
    if not rows:
        typer.echo(empty)
        return
    cells = [[readable(name, item.get(name)) for name in columns] for item in rows]
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name not in folded)
    for row in cells:
        table.add_row(*map(Text, row))  # Text, not markup: a name with brackets in it is shown as it is
    console = Console()
    # A terminal folds names; where ids alone are wider it wraps the line. A file or pipe gets whole lines.
    width = max(console.width, _least_width(columns, cells, folded)) if console.is_terminal else 10_000
    Console(width=width).print(table)


def _least_width(columns: Sequence[str], cells: Sequence[Sequence[str]], folded: frozenset[str]) -> int:
    """What a table needs, in terminal cells, for every id to be in one piece."""
    total = _GAP * (len(columns) - 1)
    for name, column in zip(columns, zip(*cells, strict=True), strict=True):
        widest = max(map(cell_len, (name, *column)))
        total += min(widest, _FOLDED_WIDTH) if name in folded else widest
    return total


def write_item(item: dict[str, Any]) -> None:
    """Every field of one item on its own line."""
    width = max((len(name) for name in item), default=0)
    for name, value in item.items():
        typer.echo(f"{name:<{width}}  {readable(name, value)}")


def readable(name: str, value: Any) -> str:
    """A field for people: times in UTC, lists joined, nothing as a dash."""
    if value is None:
        return "-"
    if name.endswith(("_at", "time")) and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value) or "-"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)
