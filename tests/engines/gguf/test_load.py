"""Loading: a good file warm at once, every bad one refused by a process that lives on."""

import json
import logging
import random
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engines.core.plan import EngineFault
from engines.gguf.header import ModelFileError
from engines.gguf.load import load
from tests.engines.gguf.files import header_only_copy, rewrite

pytestmark = pytest.mark.model

_SIZES = {"num_slots": 2, "kv_tokens": 256, "max_step_tokens": 64, "threads": 1, "threads_batch": 1}

# Run in a process of its own: a file that llama.cpp asserts on would take the tests with it.
_PROBE = """
import json, sys
from pathlib import Path
from engines.core.plan import EngineFault
from engines.gguf.header import ModelFileError
from engines.gguf.load import load
for path in sys.argv[2:]:
    try:
        load(Path(path), **json.loads(sys.argv[1])).runner.close()
        print(json.dumps([path, "loaded"]), flush=True)
    except (ModelFileError, EngineFault) as error:
        print(json.dumps([path, type(error).__name__ + ": " + str(error)]), flush=True)
"""


def _probe(paths, **sizes):
    command = [sys.executable, "-c", _PROBE, json.dumps({**_SIZES, **sizes}), *map(str, paths)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    outcomes = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, f"the process died after {outcomes}: {done.stderr[-500:]}"
    return [outcomes[str(path)] for path in paths]


def test_a_good_file_loads_warm_and_logs_to_the_sink(demo_model, capfd):
    """The library writes nothing itself; what it says goes where the worker wants it."""
    lines = []
    loaded = load(demo_model, **_SIZES, on_log=lambda level, text: lines.append((level, text)))
    model, runner = loaded.model, loaded.runner
    assert (loaded.threads.single, loaded.threads.batch, loaded.threads.origin) == (1, 1, "given")
    assert model.vocab_size == runner.vocab_size
    assert "0 of 2 slots" in repr(runner)
    runner.close()
    assert any(level == logging.INFO for level, _ in lines)
    assert capfd.readouterr() == ("", "")


def test_a_missing_file_is_refused():
    """The sentence names the path."""
    with pytest.raises(ModelFileError, match=r"The model file /none\.gguf does not exist\."):
        load(Path("/none.gguf"), **_SIZES)


@pytest.mark.timeout(150)
def test_cut_off_files_are_refused(demo_model, tmp_path):
    """A download that stopped at any point is noticed, in the header or in the weights."""
    size = demo_model.stat().st_size
    paths = []
    with demo_model.open("rb") as file:
        head = file.read(2_000_000)
    for cut in (0, 1, 4, 23, 24, 100, 5000, 800_000, 1_769_400, 1_780_000, 2_000_000):
        paths.append(tmp_path / f"{cut}.gguf")
        paths[-1].write_bytes(head[:cut])
    for missing in (1, 50_000_000):
        paths.append(tmp_path / f"minus{missing}.gguf")
        rewrite(demo_model, paths[-1], head)
        with paths[-1].open("r+b") as file:
            file.truncate(size - missing)
    for outcome in _probe(paths):
        assert outcome.startswith("ModelFileError: "), outcome
        assert outcome.endswith(".")


@pytest.mark.timeout(150)
def test_flipped_bytes_never_kill_the_process(demo_model, tmp_path):
    """Damage in the header is refused, or harmless; the worker lives to say so."""
    rng = random.Random(20261130)
    head = header_only_copy(demo_model, tmp_path / "whole.gguf")
    paths = [tmp_path / "whole.gguf"]
    for number in range(40):
        damaged = bytearray(head)
        at = rng.choice([rng.randrange(4, 1100), rng.randrange(1_768_872, 1_786_000), 487 + rng.randrange(4)])
        damaged[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        paths.append(tmp_path / f"{number}at{at}.gguf")
        rewrite(demo_model, paths[-1], damaged)
    outcomes = _probe(paths)
    assert outcomes[0] == "loaded"
    assert sum(outcome.startswith("ModelFileError: ") for outcome in outcomes) > 10
    assert all(outcome == "loaded" or outcome.endswith(".") for outcome in outcomes)


def test_the_librarys_reason_is_passed_on(demo_model, tmp_path):
    """A whole file of a kind llama.cpp does not know says so, not just that it failed."""
    head = header_only_copy(demo_model, tmp_path / "m.gguf")
    at = head.index(b"llama")
    head[at : at + 5] = b"lemma"
    rewrite(demo_model, tmp_path / "m.gguf", head)
    (outcome,) = _probe([tmp_path / "m.gguf"])
    assert outcome.startswith("ModelFileError: llama.cpp cannot load the model file")
    assert "unknown model architecture: 'lemma'" in outcome


def test_more_kv_than_memory_is_refused(demo_model, monkeypatch):
    """Memory that the system grants and cannot give would end the process when it fills."""
    available = psutil.virtual_memory()._replace(available=5_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    with pytest.raises(EngineFault, match=r"^256 KV tokens need 0\.0 GB of memory and 0\.0 GB are available\.$"):
        load(demo_model, **_SIZES)


def test_the_librarys_own_want_of_memory_is_refused(demo_model, monkeypatch):
    """386 GB that no allocator grants: the library's reason is passed on."""
    available = psutil.virtual_memory()._replace(available=1 << 60)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    with pytest.raises(EngineFault, match=r"cannot set up 16777216 KV tokens: .*insufficient memory"):
        load(demo_model, **{**_SIZES, "kv_tokens": 1 << 24})


def test_weights_that_give_no_numbers_are_refused(demo_model, tmp_path):
    """Damage in the weights passes every check of the header and shows in the first step."""
    head = header_only_copy(demo_model, tmp_path / "m.gguf")
    rewrite(demo_model, tmp_path / "m.gguf", head)
    with (tmp_path / "m.gguf").open("r+b") as file:
        file.seek(len(head))
        file.write(b"\xff" * 40_000_000)
    (outcome,) = _probe([tmp_path / "m.gguf"])
    assert outcome.endswith("its weights give no numbers.")


def test_a_long_run_of_letters_does_not_overflow_a_recursive_pre_tokenizer(demo_model, tmp_path):
    """With this pre-tokenizer llama.cpp itself dies of 30,000 letters on an 8 MB stack; smaller stacks sooner."""
    head = header_only_copy(demo_model, tmp_path / "m.gguf")
    at = head.index(b"smollm", head.index(b"tokenizer.ggml.pre"))
    head[at : at + 6] = b"gpt-4o"
    rewrite(demo_model, tmp_path / "m.gguf", head)
    code = """
import sys, threading
from pathlib import Path
from engines.gguf.library import open_library
from engines.gguf.model import GgufModel
model = GgufModel(Path(sys.argv[1]), open_library())
threading.stack_size(2 << 20)
for letter in "a1 !":
    thread = threading.Thread(target=lambda: print(len(model.encode(letter * 200_000, special=False))))
    thread.start()
    thread.join()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "m.gguf")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr[-500:]
    assert len(done.stdout.split()) == 4
