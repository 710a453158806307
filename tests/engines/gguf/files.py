"""Small GGUF files for tests, written field by field."""

import struct
from pathlib import Path

STRING, ARRAY, UINT32, BOOL = 8, 9, 4, 7


def text(value: str) -> bytes:
    """A length and the bytes."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    """One metadata entry."""
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """One tensor's description."""
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


ARCHITECTURE = entry("general.architecture", STRING, text("llama"))
TENSOR = tensor("a", (8, 4))


def gguf(
    entries: tuple[bytes, ...] = (ARCHITECTURE,),
    tensors: tuple[bytes, ...] = (TENSOR,),
    *,
    version: int = 3,
    num_tensors: int | None = None,
    num_entries: int | None = None,
    data_bytes: int = 128,
) -> bytes:
    """A whole file; the counts can be made to lie."""
    counts = (
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data_bytes)


def header_only_copy(source: Path, target: Path, header_bytes: int = 1_800_000) -> bytearray:
    """Write a sparse file with the header of `source` and zeros for weights; the header's bytes."""
    with source.open("rb") as file:
        head = bytearray(file.read(header_bytes))
    rewrite(source, target, head)
    return head


def rewrite(source: Path, target: Path, head: bytes) -> None:
    """Write `head` and then nothing up to the size of `source`."""
    with target.open("wb") as file:
        file.write(head)
        file.truncate(source.stat().st_size)
