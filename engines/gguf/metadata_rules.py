"""What a file's metadata must not say: values that llama.cpp divides by, asserts on or loops over without end.

Found by reading its assertions and by mutating small files (tests/engines/gguf/test_fuzz.py). Pure; values that merely
make no sense are left to the library, which says so.
"""

import math
from collections.abc import Container, Mapping

Scalar = int | float | bool | str

# The largest that models have, with room; more is damage, and some of it would be allocated.
_DIMENSIONS = {
    "block_count": 512,
    "context_length": 1 << 28,
    "embedding_length": 1 << 20,
    "feed_forward_length": 1 << 24,
    "attention.head_count": 1 << 12,
    "attention.head_count_kv": 1 << 12,
    "vocab_size": 1 << 24,
}
_MAX_EXPERTS = 1024
_ROPE_SCALINGS = frozenset({"none", "linear", "yarn", "longrope"})
# Of no text at all, and one whose search does not end where a character is missing (recurrent models alone have it).
_UNUSABLE_TOKENIZERS = frozenset({"none", "no_vocab", "rwkv"})


def metadata_fault(metadata: Mapping[str, Scalar], lists: Container[str] = ()) -> str:
    """What is wrong with the scalar entries, as a phrase after "the file is damaged:", or an empty text.

    `lists`: the keys of the entries that are lists, which some models have where others have a number.
    """
    architecture = str(metadata.get("general.architecture") or "")
    if not architecture:
        return "it does not say which architecture it holds"
    own = {
        key.removeprefix(f"{architecture}."): value
        for key, value in metadata.items()
        if key.startswith(f"{architecture}.")
    }
    wrong = (
        _wrong_size(own)
        or _wrong_number(own)
        or _wrong_experts(own, has_list=f"{architecture}.expert_used_count" in lists)
        or _wrong_kind(own)
    )
    if wrong:
        return f"its {architecture}.{wrong}"
    for key, value in metadata.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"its {key} is {value!r}"
    tokenizer = metadata.get("tokenizer.ggml.model", "llama")
    if not isinstance(tokenizer, str) or tokenizer in _UNUSABLE_TOKENIZERS:
        return f"its tokenizer.ggml.model is {tokenizer!r}, with which no text becomes tokens"
    return ""


def _wrong_size(own: Mapping[str, Scalar]) -> str:
    for name, most in _DIMENSIONS.items():
        value = own.get(name, 1)
        if not isinstance(value, int) or not 1 <= value <= most:
            return f"{name} is {value!r}"
    return ""


def _wrong_number(own: Mapping[str, Scalar]) -> str:
    for name, value in own.items():
        if name.endswith("epsilon") and isinstance(value, int | float) and not 0 <= value < 1:
            return f"{name} is {value!r}"
        if isinstance(value, int) and not -1 <= value < 1 << 31:
            return f"{name} is {value!r}"
    return ""


def _wrong_experts(own: Mapping[str, Scalar], *, has_list: bool) -> str:
    experts, used = _count(own, "expert_count"), _count(own, "expert_used_count")
    groups, groups_used = _count(own, "expert_group_count"), _count(own, "expert_group_used_count")
    if experts > _MAX_EXPERTS:
        return f"expert_count is {experts}"
    # A model may route differently in each layer; then the entry is a list.
    if used > experts or (experts and not used and not has_list):
        return f"expert_used_count is {used} of {experts}"
    if groups and groups >= max(experts, 1):
        return f"expert_group_count is {groups} for {experts} experts"
    if groups > 1 and (experts % groups or not 0 < groups_used < groups):
        return f"expert_group_used_count is {groups_used} of {groups} groups"
    return ""


def _wrong_kind(own: Mapping[str, Scalar]) -> str:
    scaling = own.get("rope.scaling.type", "none")
    if scaling not in _ROPE_SCALINGS:
        return f"rope.scaling.type is {scaling!r}"
    layers, extra = _count(own, "block_count"), _count(own, "nextn_predict_layers")
    if extra and extra >= layers:
        return f"nextn_predict_layers is {extra} of {layers} layers"
    return ""


def _count(own: Mapping[str, Scalar], name: str) -> int:
    value = own.get(name, 0)
    return value if isinstance(value, int) else 0
