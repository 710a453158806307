"""Whether an opened llama.cpp library is the one that our declarations describe.

A wrong layout does not fail: it answers nonsense. So what can be known is compared before the first real call: sizes,
every function's existence, the default parameters (a shifted field shows at once), and, when a context is opened,
that it has what was asked for.
"""

from collections.abc import Iterable, Mapping
from typing import Any

STRUCT_BYTES = {"struct llama_model_params": 80, "struct llama_context_params": 168, "struct llama_batch": 56}
MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
}
# What we set. A build without one of them is of another time.
_SET_FIELDS = {
    "struct llama_model_params": {"n_gpu_layers"},
    "struct llama_context_params": {
        "n_ctx", "n_seq_max", "n_batch", "n_ubatch", "n_outputs_max", "n_threads", "n_threads_batch", "kv_unified",
        "embeddings", "pooling_type",
    },
    "struct llama_batch": {"n_tokens", "token", "pos", "n_seq_id", "seq_id", "logits"},
}  # fmt: skip


class LibraryMismatch(Exception):
    """A llama.cpp library is not the one that our declarations describe; the message is one sentence."""


def check_library(ffi: Any, c: Any, functions: Iterable[str], what: str, *, is_pinned: bool) -> None:
    """Raise `LibraryMismatch` unless the library fits. `what`: its name for people.

    `is_pinned`: of the version that llama.cdef is written for, so that sizes and all defaults are known.
    """
    for name in functions:
        if not hasattr(c, name):
            raise LibraryMismatch(f"{what} has no function {name}, which Warmlane calls.")
    for struct, wanted in _SET_FIELDS.items():
        absent = wanted - {name for name, _ in ffi.typeof(struct).fields or ()}
        if absent:
            raise LibraryMismatch(f"{what} is of another time: its {struct} has no {min(absent)}.")
    if is_pinned:
        check_sizes(ffi, what)
    check_defaults(f"{what}: model parameters", c.llama_model_default_params(), MODEL_DEFAULTS, is_pinned=is_pinned)
    check_defaults(
        f"{what}: context parameters", c.llama_context_default_params(), CONTEXT_DEFAULTS, is_pinned=is_pinned
    )


def check_sizes(ffi: Any, what: str) -> None:
    """Raise `LibraryMismatch` if a struct has another size on this machine."""
    for name, size in STRUCT_BYTES.items():
        if ffi.sizeof(name) != size:
            raise LibraryMismatch(f"{what}: {name} has {ffi.sizeof(name)} bytes on this machine, not {size}.")


def check_defaults(what: str, params: Any, expected: Mapping[str, float], *, is_pinned: bool = True) -> None:
    """Raise `LibraryMismatch` naming the first default of `params` that differs from `expected`.

    Of another version only those are compared that have not changed for years: sizes, counts, and what is unset.
    """
    for name, value in expected.items():
        if not is_pinned and name not in _STEADY_DEFAULTS:
            continue
        found = getattr(params, name, None)
        if found is None and not is_pinned:
            continue
        if found != value:
            raise LibraryMismatch(f"{what} are laid out differently: {name} is {found!r}, not {value!r}.")


_STEADY_DEFAULTS = frozenset({
    "main_gpu", "vocab_only", "check_tensors", "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads",
    "n_threads_batch", "rope_scaling_type", "pooling_type", "attention_type", "rope_freq_base", "yarn_ext_factor",
    "type_k", "type_v", "embeddings", "offload_kqv", "no_perf",
})  # fmt: skip


def check_context(c: Any, context: Any, asked: Any) -> None:
    """Raise `LibraryMismatch` unless an opened context has what was asked for: the struct arrived as it was filled."""
    found = {
        "n_seq_max": c.llama_n_seq_max(context),
        "n_batch": c.llama_n_batch(context),
        "n_ubatch": c.llama_n_ubatch(context),
        "n_threads": c.llama_n_threads(context),
        "n_threads_batch": c.llama_n_threads_batch(context),
    }
    for name, value in found.items():
        if value != getattr(asked, name):
            raise LibraryMismatch(
                f"llama.cpp took {name} {getattr(asked, name)} for {value}: its parameters are laid out differently."
            )
