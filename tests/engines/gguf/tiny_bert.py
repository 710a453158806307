"""A BERT of a few kilobytes with random weights: an embedding model, or with a head a rerank model."""

from pathlib import Path

import gguf
import numpy as np

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2581hello", "\u2581world", "\u2581cat", "\u2581sat"]
_WIDTH, _FFN, _CONTEXT = 16, 32, 64


def write_tiny_bert(path: Path, *, ranks: bool) -> None:
    """Write it; its inputs are `[CLS] words [SEP]`."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if ranks else gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(_WORDS)
    writer.add_token_types([3, 2, 3, 3, 3, *([1] * (len(_WORDS) - 5))])
    writer.add_token_type_count(2)
    for name, token in (("unk", 1), ("cls", 2), ("sep", 3), ("pad", 0), ("mask", 4), ("bos", 2), ("eos", 3)):
        writer.add_uint32(f"tokenizer.ggml.{_SPELLED.get(name, name)}_token_id", token)
    for name, shape in _shapes(ranks=ranks):
        rng = np.random.default_rng([7, sum(name.encode())])
        is_norm = "norm" in name and name.endswith("weight")
        writer.add_tensor(name, (np.ones(shape) if is_norm else rng.standard_normal(shape) / 4).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_SPELLED = {"unk": "unknown", "sep": "seperator", "pad": "padding"}


def _shapes(*, ranks):
    yield "token_embd.weight", (len(_WORDS), _WIDTH)
    yield "token_types.weight", (2, _WIDTH)
    yield "position_embd.weight", (_CONTEXT, _WIDTH)
    for norm in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        yield f"{norm}.weight", (_WIDTH,)
        yield f"{norm}.bias", (_WIDTH,)
    for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
        yield f"blk.0.{part}.weight", (_WIDTH, _WIDTH)
        yield f"blk.0.{part}.bias", (_WIDTH,)
    yield "blk.0.ffn_up.weight", (_FFN, _WIDTH)
    yield "blk.0.ffn_up.bias", (_FFN,)
    yield "blk.0.ffn_down.weight", (_WIDTH, _FFN)
    yield "blk.0.ffn_down.bias", (_WIDTH,)
    if ranks:
        yield "cls.weight", (_WIDTH, _WIDTH)
        yield "cls.bias", (_WIDTH,)
        yield "cls.output.weight", (1, _WIDTH)
        yield "cls.output.bias", (1,)
