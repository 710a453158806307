"""Shell commands that ask the admin plane once: what they share is added to them, so that each says only its own.

Such a command is a function of a client and its own options that returns an `Answer`. It gets `--url`, `--token` and
`--json`, and its failures are one sentence.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Protocol

import typer

from gateway.admin.options import AsJson, Token, Url, connected
from gateway.admin.output import one_sentence, write_item, write_json, write_table

P = ParamSpec("P")
_SHARED = (("url", Url, None), ("token", Token, None), ("as_json", AsJson, False))


class Answer(Protocol):
    """What a command writes."""

    def plain(self) -> Any:
        """For scripts: what becomes JSON."""
        ...

    def show(self) -> None:
        """For people."""
        ...


@dataclass(frozen=True, slots=True)
class Item:
    """One object of the admin plane. `note`: a sentence for people, on stderr, so that stdout has the fields alone."""

    fields: dict[str, Any]
    note: str = ""

    def plain(self) -> Any:
        """As it came."""
        return self.fields

    def show(self) -> None:
        """A line for each field, and the note."""
        write_item(self.fields)
        if self.note:
            typer.echo(self.note, err=True)


@dataclass(frozen=True, slots=True)
class Listing:
    """Several of a kind, one row each. `empty`: in place of a table without rows.

    `rows`: the items for people where they are not shown as they are, without what only JSON can show.
    """

    items: Sequence[dict[str, Any]]
    columns: Sequence[str]
    empty: str
    rows: Sequence[dict[str, Any]] | None = None

    def plain(self) -> Any:
        """The rows under `data`."""
        return {"data": self.items}

    def show(self) -> None:
        """A table."""
        write_table(self.items if self.rows is None else self.rows, self.columns, empty=self.empty)


@dataclass(frozen=True, slots=True)
class Report:
    """An object with rows of its own under the name `rows.items` came from."""

    whole: dict[str, Any]
    rows: Listing
    head: dict[str, Any]

    def plain(self) -> Any:
        """As it came."""
        return self.whole

    def show(self) -> None:
        """The fields, then the table."""
        if self.head:
            write_item(self.head)
            typer.echo()
        self.rows.show()


def asking(ask: "Callable[Concatenate[Any, P], Answer]") -> Callable[..., None]:
    """The shell command of a function that asks the admin plane with its first argument, an `AdminClient`."""

    def run(*, url: Url, token: Token, as_json: AsJson, **given: Any) -> None:
        with connected(url, token) as client:
            answer = ask(client, **given)  # type: ignore[call-arg]  # the options that typer read from `ask` itself
        write_json(answer.plain()) if as_json else answer.show()

    own = list(inspect.signature(ask).parameters.values())[1:]
    options = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    options += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, kind, default in _SHARED
    ]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]  # typer reads the options from it
    run.__annotations__ = {one.name: one.annotation for one in options}
    run.__name__, run.__doc__ = ask.__name__, ask.__doc__
    return one_sentence(run)
