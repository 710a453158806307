"""A stored model in another precision, as a model of its own: the gguf package does it in a process of its own."""

import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path

from rich.console import Console

from engines.launch.model_add import made, sha256_of
from engines.launch.model_manifest import Manifest, ModelError
from engines.launch.model_progress import Tell, progress
from engines.launch.model_store import ModelStore
from engines.launch.tether import tethered


class Precision(Enum):
    """What weights can be written as."""

    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    BF16 = "bf16"


# Bits a weight takes, scales included: at most in what is written, at least in what is read.
_BITS = {Precision.Q8_0: 8.6, Precision.Q4_0: 6.5, Precision.BF16: 16.1}
_SOURCE_BITS = (("F32", 32.0), ("F16", 16.0), ("BF16", 16.0), ("Q8", 8.5), ("Q6", 6.5), ("Q5", 5.5), ("Q4", 4.5))
_NARROW = ("Q4", "IQ4", "Q3", "IQ3", "Q2", "IQ2", "Q1", "IQ1", "TQ", "MXFP4", "NVFP4", "Q5")


def warning(source: Manifest, to: Precision) -> str:
    """What the person should know before, empty if nothing speaks against it."""
    has = source.facts.quantisation
    if not has.startswith(_NARROW):
        return ""
    if to is Precision.Q4_0:
        return (
            f"{source.name} is {has} already: rounding it again costs quality; a {to.name} made from the original "
            "weights (F16, BF16 or Q8_0) is better"
        )
    return f"{source.name} is {has}: {to.name} makes it larger and no better, though steps may be faster"


def quantize_model(store: ModelStore, source_name: str, name: str, to: Precision, console: Console) -> Manifest:
    """The new model `name`, made of a stored one. Raises `ModelError`."""
    source = store.find(source_name)
    if source.manifest is None:
        raise ModelError(f"the model {source_name} is {source.problem}")
    if source.problem:
        raise ModelError(f"the file of {source_name} is not the one that was added ({source.problem}); add it again")
    with store.exclusive(name):
        store.refuse_taken(name)
        store.check_room(_needed_bytes(source.num_bytes, source.manifest, to))
        with store.work(name) as work, progress(console, f"writing {name} ({to.name})") as tell:
            whole = work / "model.gguf"
            _run(source.file, whole, to, tell)
            return made(store, name, source.manifest, sha256_of(whole, console), whole)


def _needed_bytes(num_bytes: int, source: Manifest, to: Precision) -> int:
    """About what the new file will take, rather more."""
    has = source.facts.quantisation
    bits = next((bits for start, bits in _SOURCE_BITS if has.startswith(start)), 2.0)
    return int(num_bytes * _BITS[to] / bits)


def _run(source: Path, target: Path, to: Precision, tell: Tell) -> None:
    command = [sys.executable, "-m", "engines.gguf.quantize", str(source.absolute()), str(target), to.value]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        subprocess.Popen(
            tethered(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        assert process.stdout is not None, "a pipe was asked for"
        try:
            for line in process.stdout:
                done, total = map(int, line.split())
                tell(done, total)
            status = process.wait()
        except BaseException:
            process.kill()
            raise
        said.seek(0)
        lines = said.read().strip().splitlines()
    if status != 0:
        raise ModelError((lines[-1] if lines else f"quantising ended with status {status}").rstrip("."))
