"""Requests of a period into a file, page after page, as CSV or Parquet: whole or not at all.

Parquet is written by pyarrow, which is large and not installed unless asked for: `pip install 'warmlane[export]'`.
"""

import csv
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from gateway.admin.connection import AdminClient, CommandFailed
from gateway.usage_wire import RequestRowBody

PAGE_ROWS = 1000
COLUMNS = RequestRowBody.__struct_fields__
NO_PYARROW = "Parquet needs pyarrow, which is not installed: pip install 'warmlane[export]', or export as csv"
_FLOATS = frozenset({"started_at", "ended_at", "queue_s", "ttft_s", "cost_usd"})
_BOOLEANS = frozenset({"is_estimated", "recovered"})
_TEXTS = frozenset(
    {
        "request_id",
        "organization",
        "project",
        "key",
        "model",
        "lane",
        "surface",
        "outcome",
        "reason",
        "limit",
        "replica",
    }
)

Rows = list[dict[str, Any]]


class Format(Enum):
    """What a file can be."""

    CSV = "csv"
    PARQUET = "parquet"


def format_of(out: Path) -> Format:
    """What the file's name says."""
    return Format.PARQUET if out.suffix.lower() == ".parquet" else Format.CSV


def pages(client: AdminClient, query: dict[str, Any]) -> Iterator[Rows]:
    """The requests, a page at a time."""
    after: str | None = None
    while True:
        asked = {**query, "limit": PAGE_ROWS, **({"after": after} if after else {})}
        page = client.ask("GET", "/usage/requests", query=asked)
        yield page.get("data") or []
        after = page.get("next_cursor")
        if not after:
            return


def export(found: Iterable[Rows], out: Path, kind: Format, on_rows: Callable[[int], None]) -> int:
    """Write all pages to `out`; how many rows. `on_rows`: told of each page's number. Raises `CommandFailed`."""
    if out.name == "-" or (out.exists() and not out.is_file()):
        raise CommandFailed(f"{out} is no regular file: give the name of a file to write")
    out = out.resolve()  # of a link, what it leads to is written anew
    partial = out.with_name(f".{out.name}.partial")
    writing = _csv if kind is Format.CSV else _parquet
    num_rows = 0
    try:
        with writing(partial) as write:
            for rows in found:
                write(rows)
                num_rows += len(rows)
                on_rows(len(rows))
        partial.replace(out)
    except OSError as error:
        raise CommandFailed(f"{out} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return num_rows


@contextmanager
def _csv(path: Path) -> Iterator[Callable[[Rows], None]]:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()

        def write(rows: Rows) -> None:
            writer.writerows({name: _shielded(value) for name, value in row.items()} for row in rows)

        yield write


def _shielded(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula, made plain: a name in a request is chosen by its sender."""
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value


@contextmanager
def _parquet(path: Path) -> Iterator[Callable[[Rows], None]]:
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise CommandFailed(NO_PYARROW) from error
    schema = arrow.schema([(name, _type(arrow, name)) for name in COLUMNS])
    with parquet.ParquetWriter(path, schema) as writer:

        def write(rows: Rows) -> None:
            if rows:
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))

        yield write


def _type(arrow: Any, name: str) -> Any:
    if name in _TEXTS:
        return arrow.string()
    if name in _BOOLEANS:
        return arrow.bool_()
    return arrow.float64() if name in _FLOATS else arrow.int64()
