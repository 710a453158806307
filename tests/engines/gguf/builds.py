"""Folders that look like a native build."""

import platform
from pathlib import Path

from engines.gguf.library import PINNED_VERSION, our_declarations
from engines.gguf.native import DECLARATIONS_NAME, Manifest, file_sha256, write_manifest


def fake_build(
    folder: Path,
    *,
    library: bytes = b"no library",
    cpu_flags: list[str] | None = None,
    version: str = PINNED_VERSION,
    source: str = f"xllamacpp {PINNED_VERSION}",
    system: str = "",
    declarations: str | None = None,
) -> Manifest:
    """Write a build whose manifest names what is there."""
    (folder / "libllama.so").write_bytes(library)
    (folder / DECLARATIONS_NAME).write_text(our_declarations() if declarations is None else declarations)
    manifest = Manifest(
        source=source,
        source_sha256="",
        version=version,
        library="libllama.so",
        files={name: file_sha256(folder, name) for name in ("libllama.so", DECLARATIONS_NAME)},
        system=system or platform.system().lower(),
        machine=platform.machine(),
        cpu_flags=cpu_flags or [],
        cmake_options=[],
        compiler="none",
        build_s=0,
    )
    write_manifest(folder, manifest)
    return manifest
