"""Whether a file is a whole GGUF file, decided by reading its header with every bound checked.

llama.cpp asserts its way out of the process on some broken files, so none is handed to it unread.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows nothing of llama.cpp.
"""

import math
import mmap
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.gguf.metadata_rules import Scalar, metadata_fault

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# Chosen: the largest models have a few thousand tensors, a few hundred keys, half a million tokens.
_MAX_TENSORS = 1 << 16
_MAX_KEYS = 1 << 16
_MAX_NAME_BYTES = 1 << 10
_MAX_TOKENS = 1 << 20
_MAX_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FORMATS = {kind: struct.Struct("<" + letter) for kind, letter in _SCALARS.items()}
_TOKENS = "tokenizer.ggml.tokens"
_TOKEN_TYPES, _BYTE_TOKEN, _INT32 = "tokenizer.ggml.token_type", 6, (4, 5)
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

# Tensor type: (elements a block, bytes a block). A type not listed is left to the library.
TENSOR_TYPES = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98),
    19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
    27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36),
}  # fmt: skip


class ModelFileError(Exception):
    """The model file cannot be used; the message is one sentence for the person who named it."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata`: the scalar entries. `array_lengths`: the length of each array entry. Sizes in bytes."""

    version: int
    metadata: dict[str, Scalar]
    array_lengths: dict[str, int]
    num_tensors: int
    file_bytes: int

    @property
    def architecture(self) -> str:
        """The model family the file says it holds, such as `llama`."""
        return str(self.metadata["general.architecture"])

    @property
    def kv_token_bytes(self) -> int | None:
        """Bytes of KV that one token takes over all layers, in half precision; None if the layers differ."""
        sizes = (self._size("block_count"), self._size("embedding_length"), self._size("attention.head_count"))
        layers, width, heads = sizes
        if layers is None or width is None or heads is None:
            return None
        kv_heads = self._size("attention.head_count_kv", heads)
        key, value = (self._size(f"attention.{kind}_length", width // heads) for kind in ("key", "value"))
        if kv_heads is None or key is None or value is None:
            return None
        return 2 * layers * kv_heads * (key + value)

    @property
    def num_layers(self) -> int | None:
        """How many layers the file says it has."""
        return self._size("block_count")

    @property
    def pooling(self) -> int | None:
        """How an embedding model joins its tokens' vectors (llama_pooling_type), None for a model that has no way."""
        value = self.metadata.get(f"{self.architecture}.pooling_type")
        return value if isinstance(value, int) and value > 0 else None

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only what stands before it, as a model that generates must."""
        return self.metadata.get(f"{self.architecture}.attention.causal", True) is not False

    def _size(self, name: str, default: int | None = None) -> int | None:
        key = f"{self.architecture}.{name}"
        value = self.metadata.get(key, default)
        return value if isinstance(value, int) and key not in self.array_lengths else None


def read_header(path: Path) -> GgufHeader:
    """The header of a whole GGUF file. Raises `ModelFileError` for everything that is not one."""
    try:
        if not path.exists():
            raise ModelFileError(f"The model file {path} does not exist.")
        if not path.is_file():
            raise ModelFileError(f"The model {path} is not a file.")
        with path.open("rb") as file:
            start = file.read(24)
            if start[:4] != _MAGIC:
                raise ModelFileError(f"The file {path} is not a GGUF model: it does not begin with GGUF.")
            if len(start) < 24:
                raise ModelFileError(f"The model file {path} is cut off: it has {len(start)} bytes.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Cursor(path, content).header()
    except OSError as error:
        raise ModelFileError(f"The model file {path} cannot be read: {error.strerror or error}.") from error


class _Cursor:
    """Reads forward through the header; every step is checked against the end of the file."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path = path
        self._content = content
        self._end = len(content)
        self._at = len(_MAGIC)
        self._has_bytes = False

    def header(self) -> GgufHeader:
        version = self._u32()
        if version not in _VERSIONS:
            raise self._broken(f"its format version is {version}, and 2 and 3 are known")
        num_tensors = self._count("tensors", _MAX_TENSORS, min_bytes=32)
        num_keys = self._count("metadata entries", _MAX_KEYS, min_bytes=13)
        metadata: dict[str, Scalar] = {}
        array_lengths: dict[str, int] = {}
        for _ in range(num_keys):
            key = self._string("a metadata key", _MAX_NAME_BYTES)
            kind = self._u32()
            if kind == _ARRAY:
                array_lengths[key] = self._skip_array(key)
            else:
                metadata[key] = self._scalar(key, kind)
        wrong = metadata_fault(metadata, array_lengths)
        if wrong:
            raise self._broken(wrong)
        if self._has_bytes and metadata.get("tokenizer.ggml.model") == "bert":
            raise self._broken("its vocabulary has tokens for bytes, which one of whole words cannot have")
        self._check_tensors(num_tensors, metadata.get("general.alignment", 32))
        return GgufHeader(version, metadata, array_lengths, num_tensors, self._end)

    def _check_tensors(self, num_tensors: int, alignment: Scalar) -> None:
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._broken(f"its alignment is {alignment!r}, which is no power of two from 8 on")
        last = 0
        for _ in range(num_tensors):
            name = self._string("a tensor name", _MAX_NAME_BYTES)
            last = max(last, self._tensor_end(name, alignment))
        needed = -(-self._at // alignment) * alignment + last
        if needed > self._end:
            raise ModelFileError(
                f"The model file {self._path} is cut off: its tensors need {needed} bytes and it has {self._end}."
            )

    def _tensor_end(self, name: str, alignment: int) -> int:
        """Where the tensor ends, in bytes from the start of the data part."""
        num_dimensions = self._u32()
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._broken(f"tensor {name!r} has {num_dimensions} dimensions")
        shape = [self._u64() for _ in range(num_dimensions)]
        kind, offset = self._u32(), self._u64()
        if min(shape) < 1 or math.prod(shape) >= 1 << 48:
            raise self._broken(f"tensor {name!r} has the shape {shape}")
        if offset % alignment:
            raise self._broken(f"tensor {name!r} starts off its alignment")
        block, block_bytes = TENSOR_TYPES.get(kind, (1, 0))
        if shape[0] % block:
            raise self._broken(f"tensor {name!r} has rows of {shape[0]}, which is not a multiple of {block}")
        return offset + math.prod(shape) // block * block_bytes

    def _scalar(self, key: str, kind: int) -> Scalar:
        if kind == _STRING:
            return self._string(f"the entry {key!r}", self._end)
        form = _FORMATS.get(kind)
        if form is None:
            raise self._broken(f"the entry {key!r} has the unknown type {kind}")
        value: Scalar = form.unpack_from(self._content, self._step(form.size))[0]
        return value

    def _skip_array(self, key: str) -> int:
        kind, length = self._u32(), self._u64()
        if kind == _STRING:
            if length > self._end // 8:
                raise self._broken(f"the list {key!r} is longer than the file")
            start = self._at
            self._skip_strings(length)
            if key == _TOKENS:
                self._check_tokens(start, length)
        elif kind in _FORMATS:
            size = length * _FORMATS[kind].size
            at = self._step(size)
            if key == _TOKEN_TYPES and kind in _INT32 and self._has_byte_tokens(at, size):
                self._has_bytes = True
        else:
            raise self._broken(f"the list {key!r} has the unknown type {kind}")
        return length

    def _check_tokens(self, at: int, count: int) -> None:
        """Raise `ModelFileError` if two tokens are spelled alike, which llama.cpp ends the process for."""
        if count > _MAX_TOKENS:
            raise self._broken(f"its vocabulary has {count} tokens")
        content, read, seen = self._content, _U64.unpack_from, set[bytes]()
        num_empty = 0
        for _ in range(count):
            size = read(content, at)[0]
            at += 8
            token = content[at : at + size].partition(b"\0")[0]  # a C text ends there
            num_empty += not token  # these it gives names
            seen.add(token)
            at += size
        if len(seen) - bool(num_empty) != count - num_empty:
            raise self._broken("its vocabulary has the same token twice")

    def _has_byte_tokens(self, at: int, size: int) -> bool:
        return _BYTE_TOKEN in struct.unpack_from(f"<{size // 4}i", self._content, at)

    def _skip_strings(self, count: int) -> None:
        # A vocabulary and its merges are half a million strings: no call per string here.
        content, end, at, read = self._content, self._end, self._at, _U64.unpack_from
        for _ in range(count):
            if at + 8 > end:
                break
            at += 8 + read(content, at)[0]
        else:
            if at <= end:
                self._at = at
                return
        raise self._cut_off()

    def _string(self, what: str, max_bytes: int) -> str:
        size = self._u64()
        if size > max_bytes:
            raise self._broken(f"{what} is {size} bytes long")
        at = self._step(size)
        return self._content[at : at + size].decode(errors="replace")

    def _count(self, what: str, most: int, min_bytes: int) -> int:
        count = self._u64()
        if count < 1 or count > most or count * min_bytes > self._end:
            raise self._broken(f"it claims {count} {what}")
        return count

    def _u32(self) -> int:
        return int(_U32.unpack_from(self._content, self._step(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack_from(self._content, self._step(8))[0])

    def _step(self, size: int) -> int:
        """Where the next `size` bytes begin; the cursor stands behind them."""
        at = self._at
        if at + size > self._end:
            raise self._cut_off()
        self._at = at + size
        return at

    def _cut_off(self) -> ModelFileError:
        return ModelFileError(f"The model file {self._path} is cut off or damaged: its header does not end in it.")

    def _broken(self, why: str) -> ModelFileError:
        return ModelFileError(f"The model file {self._path} is damaged: {why}.")


def report(arguments: Sequence[str], line_of: Callable[[GgufHeader], str]) -> int:
    """0 and a line on stdout for the whole GGUF file that a program was given, else 1 and one sentence on stderr."""
    try:
        header = read_header(Path(*arguments))
    except ModelFileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{line_of(header)}\n")
    return 0


def main(arguments: Sequence[str]) -> int:
    """`python -m engines.gguf.header FILE`: what architecture a whole GGUF file holds, or what is wrong with it."""
    return report(arguments, lambda header: header.architecture)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
