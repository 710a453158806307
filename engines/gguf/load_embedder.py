"""Files that only embed or rank: which they are, and an embedder out of one."""

from functools import partial
from pathlib import Path

from engines.gguf.embedder import EmbedderSettings, GgufEmbedder
from engines.gguf.header import read_header
from engines.gguf.library import LogSink, open_library
from engines.gguf.model import GgufModel
from engines.gguf.passing_thread import in_passing_thread


def embeds_only(path: Path) -> bool:
    """Whether the file says how its vectors are pooled, or lets tokens see what comes after them.

    Raises `ModelFileError` for what is no whole GGUF file.
    """
    header = read_header(path)
    return header.pooling is not None or not header.is_causal


def load_embedder(
    path: Path, settings: EmbedderSettings, *, home: Path | None = None, on_log: LogSink | None = None
) -> tuple[GgufModel, GgufEmbedder]:
    """The model of `path` and an embedder that has already embedded a text.

    Raises `LibraryMismatch`, `ModelFileError`, and `EngineFault` when the memory does not suffice or the weights give
    no numbers; each message is one sentence.
    """
    return in_passing_thread(partial(_load, path, settings, home, on_log))


def _load(
    path: Path, settings: EmbedderSettings, home: Path | None, on_log: LogSink | None
) -> tuple[GgufModel, GgufEmbedder]:
    library = open_library(folder=None if home is None else home / "native")
    library.log.sink = on_log
    model = GgufModel(path, library, embeds=True)
    embedder = GgufEmbedder(model, settings)
    try:
        (embedder.rank if embedder.can_rank else embedder.embed)([embedder.text_tokens("a")])
    except BaseException:
        embedder.close()
        raise
    return model, embedder
