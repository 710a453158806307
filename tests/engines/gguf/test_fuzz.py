"""Model files with absurd contents: each is loaded or refused with a sentence by a process that lives on.

A tiny whole file is changed entry by entry and byte by byte, and loaded by llama.cpp in a child process, so that a
crash would be seen here. What crashed it once is a rule of engines/gguf/metadata_rules.py, and a case below.
"""

import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.gguf.header import ModelFileError, read_header
from engines.gguf.tiny_model import write_tiny_model
from tests.engines.gguf.files import ARRAY, STRING, UINT32, entry, text
from tests.engines.gguf.loading_child import LoadingChild

pytestmark = pytest.mark.timeout(300)

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_EXTRA_KEYS = [
    "llama.attention.key_length", "llama.attention.value_length", "llama.rope.freq_base", "llama.rope.scaling.type",
    "llama.rope.scaling.factor", "llama.expert_count", "llama.expert_used_count", "llama.expert_group_count",
    "llama.expert_group_used_count", "llama.attention.sliding_window", "llama.attention.causal", "llama.pooling_type",
    "llama.nextn_predict_layers", "llama.rope.dimension_sections", "llama.logit_scale", "llama.attention.scale",
    "split.count", "split.no", "tokenizer.ggml.pre", "tokenizer.ggml.merges", "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.add_space_prefix", "tokenizer.chat_template",
    "general.alignment", "general.type", "llama.leading_dense_block_count", "llama.attention.clamp_kqv",
]  # fmt: skip
_TEXTS = ["", "llama", "gpt2", "bert", "t5", "none", "no_vocab", "rwkv", "plamo2", "mamba", "yarn", "x" * 300, "\x00"]


class _Parts:
    """A tiny file cut at its entries, to be put together again with some of them changed."""

    def __init__(self, path: Path) -> None:
        write_tiny_model(path)
        reader = gguf.GGUFReader(str(path))
        content = path.read_bytes()
        fields = [field for key, field in reader.fields.items() if not key.startswith("GGUF.")]
        spans = [(field.offset, field.offset + sum(part.nbytes for part in field.parts)) for field in fields]
        self.keys = [field.name for field in fields]
        self.entries = [content[start:end] for start, end in spans]
        self.num_tensors = len(reader.tensors)
        at = spans[-1][1]
        infos_start = at
        for _ in reader.tensors:
            at += 8 + struct.unpack_from("<Q", content, at)[0]
            at += 4 + 8 * struct.unpack_from("<I", content, at)[0] + 12
        self.infos = content[infos_start:at]
        self.data = content[reader.data_offset :]

    def whole(self, entries, infos) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, self.num_tensors, len(entries)) + b"".join(entries) + infos
        return head + bytes(-len(head) % 32) + self.data


def _number(kind, value):
    if kind in (6, 12):
        return struct.pack(f"<{_SCALARS[kind]}", value)
    size = struct.calcsize(_SCALARS[kind])
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


_numbers = st.one_of(
    st.sampled_from([0, 1, 2, 3, 7, 31, 33, 64, 255, 256, 1 << 15, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, -1, -(1 << 31)]),
    st.integers(-5, 300),
)  # fmt: skip
_floats = st.sampled_from([0.0, -1.0, 1e-30, 1e30, 0.5, float("nan"), float("inf"), float("-inf")])
_values = st.one_of(
    st.sampled_from(_TEXTS).map(lambda value: (STRING, text(value))),
    st.tuples(st.sampled_from([0, 1, 2, 3, 4, 5, 10, 11]), _numbers).map(lambda pair: (pair[0], _number(*pair))),
    st.tuples(st.sampled_from([6, 12]), _floats).map(lambda pair: (pair[0], _number(*pair))),
    st.sampled_from([0, 1, 2, 255]).map(lambda value: (7, bytes([value]))),
    st.tuples(st.sampled_from([0, 4, 5, 6]), st.sampled_from([0, 1, 2, 300])).map(
        lambda pair: (ARRAY, struct.pack("<IQ", *pair) + bytes(pair[1] * struct.calcsize(_SCALARS[pair[0]])))
    ),
    st.sampled_from([0, 1, 3, 300]).map(
        lambda count: (ARRAY, struct.pack("<IQ", STRING, count) + b"".join(text(f"a{n}") for n in range(count)))
    ),
    st.just((ARRAY, struct.pack("<IQ", ARRAY, 1) + struct.pack("<IQ", ARRAY, 1))),  # a list of lists
)
_changes = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 63), _values),
        st.tuples(st.just("add"), st.sampled_from(_EXTRA_KEYS), _values),
        st.tuples(st.just("drop"), st.integers(0, 63), st.none()),
        st.tuples(st.just("tensor"), st.integers(0, 1 << 16), st.integers(0, 255)),
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The whole file in pieces."""
    return _Parts(tmp_path_factory.mktemp("fuzz") / "whole.gguf")


@pytest.fixture(scope="module")
def child():
    """A process that may die of what it loads."""
    with LoadingChild() as child:
        yield child


def _apply(parts, changes) -> bytes:
    entries, infos = list(parts.entries), bytearray(parts.infos)
    for what, where, value in changes:
        match what:
            case "set":
                at = where % len(entries)
                entries[at] = entry(parts.keys[at] if at < len(parts.keys) else "other", *value)
            case "add":
                entries.append(entry(where, *value))
            case "drop" if len(entries) > 1:
                del entries[where % len(entries)]
            case "tensor":
                infos[where % len(infos)] = value
    return parts.whole(entries, bytes(infos))


def test_the_unchanged_file_is_whole(parts, child, tmp_path):
    """Else the fuzzing would only see refusals."""
    path = tmp_path / "m.gguf"
    path.write_bytes(parts.whole(parts.entries, parts.infos))
    assert child.load(path) == "loaded"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_changes)
def test_absurd_contents_are_refused_by_a_process_that_lives(parts, child, tmp_path, changes):
    """Wrong types, sizes of 2^40, negative ones, NaN, lists of lists, other architectures, tensors past the end."""
    path = tmp_path / "m.gguf"
    path.write_bytes(_apply(parts, changes))
    outcome = child.load(path)
    assert outcome == "loaded" or outcome.startswith(("ModelFileError: ", "EngineFault: ")), outcome
    assert outcome == "loaded" or outcome.endswith("."), outcome


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(4, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_anywhere_in_the_header_are_harmless(parts, child, tmp_path, flips):
    """Damage knows no format."""
    content = bytearray(parts.whole(parts.entries, parts.infos))
    for at, value in flips:
        content[4 + at % (len(content) - len(parts.data) - 4)] = value
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    outcome = child.load(path)
    assert outcome == "loaded" or outcome.startswith(("ModelFileError: ", "EngineFault: ")), outcome


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True))
def test_a_file_cut_anywhere_is_refused(parts, tmp_path, share):
    """A download that stopped."""
    content = parts.whole(parts.entries, parts.infos)
    path = tmp_path / "m.gguf"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelFileError, match=r"\.$"):
        read_header(path)


_NAN = struct.pack("<f", float("nan"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("llama.vocab_size", 10, struct.pack("<Q", 1 << 40)), "vocab_size is 1099511627776"),
        (("llama.embedding_length", 5, struct.pack("<i", -32)), "embedding_length is -32"),
        (("llama.block_count", STRING, text("many")), "block_count is 'many'"),
        (("llama.rope.freq_base", 6, _NAN), "rope.freq_base is nan"),
        (("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", -1)), "epsilon is -1.0"),
        (("llama.rope.scaling.type", STRING, text("spiral")), "rope.scaling.type is 'spiral'"),
        (("llama.expert_count", UINT32, struct.pack("<I", 4096)), "expert_count is 4096"),
        (("llama.expert_count", UINT32, struct.pack("<I", 8)), "expert_used_count is 0 of 8"),
        (("llama.expert_used_count", UINT32, struct.pack("<I", 1)), "expert_used_count is 1 of 0"),
        (("llama.expert_group_count", UINT32, struct.pack("<I", 2)), "expert_group_count is 2 for 0 experts"),
        (("llama.nextn_predict_layers", UINT32, struct.pack("<I", 1)), "nextn_predict_layers is 1 of 1 layers"),
        (("llama.leading_dense_block_count", 10, struct.pack("<Q", 1 << 33)), "leading_dense_block_count is 8589934592"),
        (("tokenizer.ggml.model", STRING, text("no_vocab")), "no text becomes tokens"),
        (("tokenizer.ggml.model", STRING, text("rwkv")), "no text becomes tokens"),
        (("tokenizer.ggml.model", STRING, text("bert")), "tokens for bytes"),
        (("general.alignment", UINT32, struct.pack("<I", 1)), "alignment is 1"),
        (("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2**20 + 1) + bytes(2**23 + 8)), "1048577 tokens"),
    ],
)  # fmt: skip
def test_what_has_killed_or_hung_the_library_is_refused_before_it(parts, tmp_path, changed, said):
    """Each of these was found by an abort, a division by zero or an endless loop in the library."""
    kept = [raw for name, raw in zip(parts.keys, parts.entries, strict=True) if name != changed[0]]
    path = tmp_path / "m.gguf"
    path.write_bytes(parts.whole([*kept, entry(*changed)], parts.infos))
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    assert said in str(caught.value)


def test_experts_that_are_routed_layer_by_layer_are_no_fault(parts, tmp_path):
    """Some models have a list where others have a number."""
    experts = entry("llama.expert_count", UINT32, struct.pack("<I", 8))
    used = entry("llama.expert_used_count", ARRAY, struct.pack("<IQI", UINT32, 1, 2))
    path = tmp_path / "m.gguf"
    path.write_bytes(parts.whole([*parts.entries, experts, used], parts.infos))
    assert read_header(path).metadata["llama.expert_count"] == 8


def test_a_child_that_dies_is_seen(child, tmp_path):
    """The tests above can fail."""
    with LoadingChild() as dying:
        assert dying.load(tmp_path / "none.gguf").startswith("ModelFileError: ")
        dying._process.kill()
        assert dying.load(tmp_path / "none.gguf") == "died: -9"
        assert dying.load(tmp_path / "none.gguf").startswith("ModelFileError: ")
