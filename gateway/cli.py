"""The command `warmlane`: reads flags and environment, and hands each command to the module that does it.

Exit code 0 on success, 2 on bad usage, 1 on failure with one clear sentence on stderr. A traceback means a bug.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engines.launch.model_manifest import ModelError
from engines.launch.wheel_download import ModelFetchError
from gateway import model_commands
from gateway.admin import commands
from gateway.backup import backup, copying
from gateway.command_options import HomeFolder
from gateway.doctor import examine
from gateway.finding import Finding, Health
from gateway.home import Home, HomeError, home_path
from gateway.ports import PortUnusable
from gateway.replay import calibrate_command as calibrating
from gateway.replay import command as replaying
from gateway.settings import ConfigError, load
from gateway.simulation import command as simulation
from gateway.simulation import plan_command as planning
from gateway.startup import Request, start
from gateway.supervisor import SupervisorError
from observability import logs
from policies.store import StoreError

_FAILURES = (ConfigError, HomeError, ModelError, ModelFetchError, PortUnusable, StoreError, SupervisorError)
_STYLES = {Health.OK: "green", Health.NOTE: "yellow", Health.BROKEN: "bold red"}


Config = Annotated[Path | None, typer.Option("--config", help="The configuration, a TOML file.")]
PortOption = Annotated[
    int | None,
    typer.Option("--port", envvar="WARMLANE_PORT", min=0, max=65535, help="The gateway's port; 0 is any free one."),
]
AdminPort = Annotated[
    int | None,
    typer.Option("--admin-port", envvar="WARMLANE_ADMIN_PORT", min=0, max=65535, help="The admin plane's port."),
]

app = typer.Typer(
    name="warmlane",
    help="One API endpoint for LLM requests: it knows who is asking and where the KV cache is warm.",
    epilog="Example: warmlane up",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command(epilog="Example: warmlane up --model ~/models/qwen3-0.6b.gguf --port 9000")
def up(
    config: Config = None,
    home: HomeFolder = None,
    port: PortOption = None,
    admin_port: AdminPort = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="A GGUF file or a stored model to serve with two workers, not the demo model."),
    ] = None,
) -> None:
    """Start the gateway and the workers of the configuration (default: two with the demo model)."""
    start(Request(config, home_path(home, os.environ), port, admin_port, model, has_workers=True))


@app.command(epilog="Example: warmlane gateway --config warmlane.toml")
def gateway(
    config: Annotated[Path, typer.Option("--config", help="The configuration, a TOML file.")],
    home: HomeFolder = None,
    port: PortOption = None,
    admin_port: AdminPort = None,
) -> None:
    """Start the gateway and its admin plane alone, without workers."""
    start(Request(config, home_path(home, os.environ), port, admin_port, None, has_workers=False))


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    epilog="Example: warmlane worker --engine gguf --model demo --path model.gguf --port 9100",
)
def worker(context: typer.Context) -> NoReturn:
    """Start one worker alone, an OpenAI-compatible server. `warmlane worker --help` lists its options."""
    words = model_commands.with_stored_model(context.args, os.environ)
    os.execv(sys.executable, [sys.executable, "-m", "engines.worker", *words])  # noqa: S606  # no shell wanted


@app.command(epilog="Example: warmlane doctor --config warmlane.toml")
def doctor(
    *,
    config: Config = None,
    home: HomeFolder = None,
    port: PortOption = None,
    admin_port: AdminPort = None,
    model: Annotated[Path | None, typer.Option("--model", help="A GGUF file, as for `warmlane up --model`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for scripts.")] = False,
) -> None:
    """Say what this machine has, which engine fits it, what is missing, and whether the configuration is sound."""
    ports = {"port": port, "admin_port": admin_port}
    findings = asyncio.run(examine(Home(home_path(home, os.environ)), config, ports, model))
    if as_json:
        rows = [{"check": one.check, "health": one.health.value, "detail": one.detail} for one in findings]
        typer.echo(json.dumps({"is_sound": _is_sound(findings), "findings": rows}, indent=2))
    else:
        _write_table(findings)
    if not _is_sound(findings):
        raise typer.Exit(1)


@app.command("backup", epilog="Example: warmlane backup /var/backups/warmlane")
def make_backup(
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the copies go; made if need be.")],
    config: Config = None,
    home: HomeFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for scripts.")] = False,
) -> None:
    """Copy the SQLite store and ledger, also while Warmlane runs. Copies of the same names are replaced."""
    with copying() as on_progress:
        copies = backup(load(config), home_path(home, os.environ), folder, on_progress)
    if as_json:
        typer.echo(json.dumps({"files": [{"file": str(one.target), "bytes": one.num_bytes} for one in copies]}))
    else:
        for one in copies:
            typer.echo(f"{one.source} is copied to {one.target} ({one.num_bytes} bytes)")


commands.mount(app)
simulation.mount(app)
planning.mount(app)
replaying.mount(app)
calibrating.mount(app)
app.add_typer(model_commands.model, name="model")


def main() -> None:
    """The entry point: every expected failure is one sentence on stderr and exit code 1."""
    try:
        app()
    except _FAILURES as failure:
        logs.write_sentence(f"warmlane: {failure}")
        sys.exit(1)


def _is_sound(findings: list[Finding]) -> bool:
    return all(one.health is not Health.BROKEN for one in findings)


def _write_table(findings: list[Finding]) -> None:
    table = Table("check", "", "finding", box=None, pad_edge=False)
    for one in findings:
        table.add_row(one.check, Text(one.health.value, style=_STYLES[one.health]), Text(one.detail, overflow="fold"))
    console = Console()
    # A terminal folds long cells; a file or a pipe gets whole lines.
    (console if console.is_terminal else Console(width=10_000)).print(table)


if __name__ == "__main__":
    main()
