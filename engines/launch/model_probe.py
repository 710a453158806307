"""Whether a file is a whole GGUF model, and what it says of itself: asked of the engine's reader in its own process."""

import subprocess
import sys
from pathlib import Path

import msgspec

from engines.launch.model_manifest import ModelError, ModelFacts

_TIMEOUT_S = 120  # chosen: the header of the largest vocabulary, on a slow disk


def probe(file: Path, *, shown: str) -> ModelFacts:
    """The facts of a whole model. Raises `ModelError` for everything else; `shown`: what people call the file."""
    command = [sys.executable, "-m", "engines.gguf.describe", str(file.absolute())]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"reading {shown} takes longer than {_TIMEOUT_S} s: it is no model that can be used"
        ) from error
    if done.returncode != 0:
        raise ModelError(_sentence(done.stderr, done.returncode).replace(str(file.absolute()), shown))
    facts = msgspec.json.decode(done.stdout, type=ModelFacts)
    if facts.num_parts > 1:
        raise ModelError(
            f"{shown} is one of {facts.num_parts} parts of a model; join them into one file first "
            "(llama.cpp's llama-gguf-split --merge does it)"
        )
    return facts


def _sentence(stderr: bytes, status: int) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].rstrip(".") if lines else f"the model's reader ended with status {status}"
