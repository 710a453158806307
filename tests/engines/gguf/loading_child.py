"""A process that loads model files one after another, so that one which dies of a file is seen and replaced."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Self

_CODE = """
import json, sys
from pathlib import Path
from engines.core.plan import EngineFault
from engines.gguf.abi import LibraryMismatch
from engines.gguf.header import ModelFileError
from engines.gguf.load import load
for line in sys.stdin:
    try:
        loaded = load(Path(line.strip()), num_slots=2, kv_tokens=256, max_step_tokens=32, threads=1, threads_batch=1)
        text = loaded.model.encode("Hello, world! \\u00e9 <s>", special=False)
        loaded.model.encode("<s>Hello</s>", special=True)
        b"".join(loaded.model.piece(token) for token in text)
        loaded.runner.close()
        outcome = "loaded"
    except (ModelFileError, EngineFault, ValueError) as error:
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps(outcome), flush=True)
"""


class LoadingChild:
    """`load(path)` says `loaded`, an error's name and sentence, or `died: status`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def load(self, path: Path) -> str:
        """What becomes of one file; a child that died is replaced at the next call."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{path}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        return json.loads(line) if line else f"died: {self._end()}"

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        return process.wait(timeout=20)
