"""What is known of one stored model, as a small JSON file beside it.

Read from a folder that people also touch by hand: whatever is not a whole manifest of ours counts as none.
"""

import contextlib
import os
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec

_MAX_MANIFEST_BYTES = 1 << 16  # chosen: ours have under 1 kB

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
Name = Annotated[str, msgspec.Meta(pattern=rf"^{NAME_PATTERN}$(?!\n)")]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class ModelError(Exception):
    """A model cannot be added, found, changed or removed; the message is one sentence for a person."""


class SourceKind(Enum):
    """Where a model came from. A linked file still lies where it was."""

    COPY = "copy"
    LINK = "link"
    URL = "url"
    PACKAGE = "package"
    QUANTIZED = "quantized"
    FOUND = "found"  # put into the folder by hand: nothing was checked


class ModelFacts(msgspec.Struct, frozen=True):
    """What the file says of itself. `quantisation` such as `Q4_1`, `context_tokens` 0 where it says nothing.

    `licence`: what the file names, often nothing. `num_parts`: of how many files the model is made.
    """

    architecture: _Text
    quantisation: _Text = ""
    context_tokens: _Count = 0
    has_chat_template: bool = False
    licence: _Text = ""
    num_parts: _Count = 1


class Manifest(msgspec.Struct, frozen=True):
    """One stored model. `source`: a path, a URL without its secrets, a package or a model's name.

    `num_bytes` and `mtime_ns` are of the file that was hashed: one that differs now has been changed.
    """

    name: Name
    kind: SourceKind
    source: _Text
    sha256: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?$(?!\n)")]
    num_bytes: _Count
    mtime_ns: int
    licence: _Text
    facts: ModelFacts
    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1

    def fits(self, file: Path) -> bool:
        """Whether the file still looks as it did when it was hashed."""
        try:
            status = file.stat()
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (self.num_bytes, self.mtime_ns)


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of the file, None if there is none or it is not one of ours."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_MANIFEST_BYTES + 1)
    except OSError:
        return None
    return parse_manifest(content)


def parse_manifest(content: bytes) -> Manifest | None:
    """The manifest that these bytes are, None if they are none."""
    if len(content) > _MAX_MANIFEST_BYTES:
        return None
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write it whole or not at all. Raises `OSError`."""
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    descriptor, partial = tempfile.mkstemp(prefix=".manifest~", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(partial).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(partial).unlink()
        raise
