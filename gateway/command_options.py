"""Options that several commands of `warmlane` share."""

from pathlib import Path
from typing import Annotated

import typer


def _home_text(given: str) -> Path:
    if not given:  # a script's empty variable; `Path("")` would be the current folder
        raise typer.BadParameter("it is empty; give a folder")
    return Path(given)


HomeFolder = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="WARMLANE_HOME",
        parser=_home_text,
        metavar="PATH",
        help="Models, keys and the store; default ./.warmlane.",
    ),
]
