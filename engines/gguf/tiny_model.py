"""A model of a few kilobytes, whole and of random weights: what a library is tried out with before it serves."""

from pathlib import Path

import numpy as np

VOCAB_SIZE = 3 + 256
_WIDTH, _HEADS, _FFN = 32, 2, 64


def write_tiny_model(path: Path, *, layers: int = 1, pooling: int | None = None, seed: int = 1) -> None:
    """Write a Llama with one token a byte. `pooling`: the kind of an embedding model (1 mean, 2 cls, 3 last)."""
    import gguf  # heavy, and needed by nothing that serves

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(VOCAB_SIZE)
    if pooling is not None:
        writer.add_pooling_type(gguf.PoolingType(pooling))
    _add_vocabulary(writer)
    for name, shape in _shapes(layers):
        rng = np.random.default_rng([seed, len(name), sum(name.encode())])
        weights = np.ones(shape) if "norm" in name else rng.standard_normal(shape) / np.sqrt(shape[-1])
        writer.add_tensor(name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: "gguf.GGUFWriter") -> None:  # type: ignore[name-defined]  # noqa: F821
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * VOCAB_SIZE)
    writer.add_token_types([2, 3, 3, *([6] * 256)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)  # the library's own signature


def _shapes(layers: int) -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[str, tuple[int, ...]]] = [("token_embd.weight", (VOCAB_SIZE, _WIDTH))]
    for layer in range(layers):
        square = [(f"blk.{layer}.attn_{part}.weight", (_WIDTH, _WIDTH)) for part in ("q", "k", "v", "output")]
        up = [(f"blk.{layer}.ffn_{part}.weight", (_FFN, _WIDTH)) for part in ("gate", "up")]
        norms = [(f"blk.{layer}.{part}_norm.weight", (_WIDTH,)) for part in ("attn", "ffn")]
        shapes += [*square, *up, (f"blk.{layer}.ffn_down.weight", (_WIDTH, _FFN)), *norms]
    return [*shapes, ("output_norm.weight", (_WIDTH,)), ("output.weight", (VOCAB_SIZE, _WIDTH))]
