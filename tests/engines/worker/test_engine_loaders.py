"""What the loaders make of options, on a tiny model file."""

import contextlib

import pytest

from engines.gguf.tiny_model import write_tiny_model
from engines.worker.engine_loaders import load_parts
from engines.worker.engine_options import EngineOptions


@pytest.mark.parametrize("threads", [1, 2])
def test_an_embedder_beside_a_generating_engine_has_one_thread(tmp_path, threads):
    """A second team of compute threads would slow every step of the first, also while nobody embeds."""
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path)
    options = EngineOptions(
        engine="gguf",
        path=path,
        name="tiny",
        max_seqs=1,
        kv_tokens=64,
        max_step_tokens=32,
        threads=threads,
        threads_batch=threads,
        home=tmp_path,
        host_kv_mb=0,
        serves_embeddings=True,
    )
    with contextlib.closing(load_parts(options)) as parts:
        assert parts.embeddings.threads == 1
        assert parts.embeddings.embed([[1, 2, 3]]).shape == (1, parts.embeddings.dimensions)
