"""`python -m engines.gguf.quantize SOURCE TARGET TYPE`: the same model with other weights, by the gguf package.

Tensor by tensor and some rows at a time, so memory stays small whatever the model's size. Metadata is kept byte for
byte, but for the file type. Loads no llama.cpp.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value

Tell = Callable[[int, int], None]  # elements done, elements in all

_TYPES = {"q8_0": Type.Q8_0, "q4_0": Type.Q4_0, "bf16": Type.BF16}
_FILE_TYPES = {
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
}
_CHUNK_ELEMENTS = 1 << 22  # 16 MiB as F32; the package's own copies come to some ten times that
_WIDE = (Type.F32, Type.F16, Type.BF16, Type.F64)
# These are read far more often than their size says, or computed with in F32: they stay as they are.
_KEPT = re.compile(
    r"_norm|ffn_gate_inp|position_embd|token_types|ssm_conv1d|shortconv|time_mix|rope_freqs|altup|laurel|attn_rel_b"
)
# Rounding these to 4 bits costs more than it saves; the gguf package cannot make the Q6_K that is usual for them.
_EIGHT_BIT = re.compile(r"(token_embd|output)\.weight")
_WRITERS_OWN = frozenset({"general.architecture", "general.file_type", "general.quantization_version"})


class CannotQuantize(Exception):
    """The model cannot be written in that type; the message is one sentence."""


def target_type(tensor: Any, wanted: Type) -> Type:
    """The type that a tensor of the source gets. `tensor`: a `gguf.ReaderTensor`."""
    source: Type = tensor.tensor_type
    is_matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight")
    if not is_matrix or _KEPT.search(tensor.name) or source not in gguf.GGML_QUANT_SIZES or _is_integer(source):
        return source
    if wanted is Type.Q4_0 and _EIGHT_BIT.fullmatch(tensor.name):
        wanted = Type.Q8_0
    block = gguf.GGML_QUANT_SIZES[wanted][0]
    if int(tensor.shape[0]) % block:
        return source if source in _WIDE else Type.F16  # such a source has rows of another block size
    return wanted


def quantize(source: Path, target: Path, to: str, tell: Tell) -> None:
    """Write `target`. Raises `CannotQuantize`, `OSError`, and `ValueError` for a file that is not GGUF."""
    wanted = _TYPES[to]
    reader = gguf.GGUFReader(source)
    plan = [(tensor, target_type(tensor, wanted)) for tensor in reader.tensors]
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    _copy_metadata(reader, writer)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(_FILE_TYPES[to])
    for tensor, kind in plan:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        byte_shape = gguf.quant_shape_to_byte_shape(shape, kind)
        num_bytes = int(np.prod(byte_shape, dtype=np.int64))
        writer.add_tensor_info(tensor.name, byte_shape, np.dtype(np.uint8), num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    _write_tensors(plan, target, int(reader.alignment), tell)


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Strings go as the bytes they are, a vocabulary need not be UTF-8. An empty list says nothing and is left out."""
    writer.data_alignment = int(reader.alignment)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in _WRITERS_OWN:
            continue
        kind = field.types[0]
        if kind is not Value.ARRAY:
            value = bytes(field.parts[-1]) if kind is Value.STRING else field.contents()
            writer.add_key_value(key, value, kind)
        elif len(field.data):
            of = field.types[-1]
            values = [bytes(field.parts[at]) for at in field.data] if of is Value.STRING else field.contents()
            writer.add_key_value(key, values, kind, sub_type=of)


def _write_tensors(plan: Sequence[tuple[Any, Type]], target: Path, alignment: int, tell: Tell) -> None:
    total, done = sum(tensor.n_elements for tensor, _ in plan), 0
    with target.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        for tensor, kind in plan:
            file.write(bytes(-file.tell() % alignment))
            for piece, num_elements in _pieces(tensor, kind):
                file.write(piece)
                done += num_elements
                tell(done, total)
        file.write(bytes(-file.tell() % alignment))
        file.flush()
        os.fsync(file.fileno())


def _pieces(tensor: Any, kind: Type) -> Iterator[tuple[bytes, int]]:
    """The tensor's content in its new type, some rows at a time, each with its number of elements."""
    width = int(tensor.shape[0])
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, _CHUNK_ELEMENTS // width)
    for at in range(0, len(rows), step):
        chunk = rows[at : at + step]
        if tensor.tensor_type is not kind:
            chunk = _converted(chunk, tensor, kind)
        yield np.ascontiguousarray(chunk).tobytes(), len(chunk) * width


def _converted(chunk: np.ndarray, tensor: Any, kind: Type) -> np.ndarray:
    try:
        wide = gguf.dequantize(chunk, tensor.tensor_type)
        return np.asarray(gguf.quantize(wide, kind))
    except NotImplementedError as error:
        raise CannotQuantize(
            f"the gguf package cannot convert {tensor.tensor_type.name} (of {tensor.name}) to {kind.name}"
        ) from error


def _is_integer(kind: Type) -> bool:
    return kind in (Type.I8, Type.I16, Type.I32, Type.I64)


def main(arguments: Sequence[str]) -> int:
    """0 when the file is written, with lines `DONE TOTAL` on stdout; 1 with one sentence on stderr otherwise."""
    source, target, to = arguments
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever started this cleans up
    last = -1

    def tell(done: int, total: int) -> None:
        nonlocal last
        if (percent := done * 100 // max(total, 1)) != last:
            last = percent
            sys.stdout.write(f"{done} {total}\n")
            sys.stdout.flush()

    try:
        quantize(Path(source), Path(target), to, tell)
    except OSError as error:
        where = error.filename or target
        sys.stderr.write(f"{where} cannot be read or written: {error.strerror or error}\n")
    except (CannotQuantize, ValueError, KeyError) as error:
        sys.stderr.write(f"{source} cannot be quantised: {error}\n")
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
