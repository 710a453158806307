"""The same model with other weights: what changes, what stays, and that it still answers alike."""

import subprocess
import sys
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from engines.core.plan import Row, StepPlan
from engines.gguf import quantize as quantizer
from engines.gguf.header import read_header
from engines.gguf.library import open_library
from engines.gguf.model import GgufModel
from engines.gguf.quantize import main, quantize, target_type
from engines.gguf.runner import GgufRunner, RunnerSettings
from engines.gguf.tiny_model import write_tiny_model
from tests.engines.near_tie import MAX_GAP

_TEXT = (
    "A cat is a small animal that lives with people. It sleeps most of the day, hunts mice at night, and comes when it "
    "is hungry. The first cats lived near farms, where grain drew mice and mice drew cats. Today there are hundreds of "
    "millions of them all over the world, and many people say that a house without a cat is only a house."
)


@pytest.fixture
def tiny(tmp_path):
    """A model of F32 weights."""
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path)
    return path


def _quantized(source, to):
    target = source.with_name(f"{source.stem}-{to}.gguf")
    quantize(source, target, to, lambda *_: None)
    return target


def _types(path):
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def _logits(path, tokens):
    """Of every position, (num_tokens, vocabulary)."""
    runner = GgufRunner(GgufModel(path, open_library()), RunnerSettings(1, 512, 256, 1, 1))
    try:
        steps = (Row(0, at, (token,), num_samples=1) for at, token in enumerate(tokens))
        return np.stack([runner.execute(StepPlan(0, (), (row,)))[0].copy() for row in steps])
    finally:
        runner.close()


def _agreement(one, other):
    return float((one.argmax(axis=1) == other.argmax(axis=1)).mean())


@pytest.mark.parametrize(("to", "kind"), [("q8_0", "Q8_0"), ("q4_0", "Q4_0"), ("bf16", "BF16")])
def test_matrices_are_rounded_and_norms_are_not(tiny, to, kind):
    """Norms are few and their errors are everywhere; the output matrix is never rounded to 4 bits."""
    types = _types(_quantized(tiny, to))
    assert types["blk.0.attn_q.weight"] == kind
    assert {types[name] for name in types if "norm" in name} == {"F32"}
    wide = "Q8_0" if to == "q4_0" else kind
    assert types["output.weight"] == types["token_embd.weight"] == wide


@pytest.mark.parametrize("to", ["q8_0", "q4_0", "bf16"])
def test_metadata_stays_but_for_the_file_type(tiny, to):
    """Vocabulary, sizes and everything unknown to us are kept to the byte."""
    before, after = gguf.GGUFReader(tiny).fields, gguf.GGUFReader(_quantized(tiny, to)).fields
    kept = [key for key in before if not key.startswith("GGUF.")]
    assert [after[key].contents() for key in kept] == [before[key].contents() for key in kept]
    assert [after[key].types for key in kept] == [before[key].types for key in kept]
    assert set(after) - set(before) == {"general.file_type", "general.quantization_version"}
    assert gguf.LlamaFileType(after["general.file_type"].contents()).name == f"MOSTLY_{to.upper()}"


def test_a_vocabulary_that_is_no_text_is_kept(tmp_path):
    """Some tokens are half of a character."""
    source = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_key_value(
        "tokenizer.ggml.tokens", [b"\xff\xfe", b"a"], gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.STRING
    )
    writer.add_key_value("general.name", b"\xff", gguf.GGUFValueType.STRING)
    writer.add_key_value("llama.some.list", [1, 2], gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT16)
    writer.add_tensor("a.weight", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fields = gguf.GGUFReader(_quantized(source, "q8_0")).fields
    tokens = fields["tokenizer.ggml.tokens"]
    assert [bytes(tokens.parts[at]) for at in tokens.data] == [b"\xff\xfe", b"a"]
    assert bytes(fields["general.name"].parts[-1]) == b"\xff"
    assert fields["llama.some.list"].types[-1] is gguf.GGUFValueType.UINT16


def test_the_result_is_a_whole_file_with_its_own_alignment(tmp_path):
    """The reader that guards llama.cpp takes it, and every tensor begins where it says."""
    source = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_custom_alignment(64)
    rng = np.random.default_rng(1)
    weights = {f"{name}.weight": rng.standard_normal((3, 32)).astype(np.float32) for name in "abc"}
    for name, values in weights.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    target = _quantized(source, "q8_0")
    assert read_header(target).num_tensors == 3
    for tensor in gguf.GGUFReader(target).tensors:
        assert tensor.data_offset % 64 == 0
        close = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_allclose(close, weights[tensor.name], atol=0.02)


def test_pieces_are_as_the_whole(tiny, monkeypatch):
    """How many rows are converted at once changes nothing."""
    whole = _quantized(tiny, "q8_0").read_bytes()
    monkeypatch.setattr(quantizer, "_CHUNK_ELEMENTS", 100)
    assert _quantized(tiny, "q8_0").read_bytes() == whole


def test_memory_is_bounded_by_a_piece(tmp_path):
    """A tensor of 128 MiB costs no more than one of 64: larger models need not fit."""

    def peak(rows):
        source = tmp_path / f"{rows}.gguf"
        writer = gguf.GGUFWriter(source, "llama")
        writer.add_tensor("a.weight", np.ones((rows, 4096), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        del writer
        tracemalloc.start()
        try:
            _quantized(source, "bf16")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(8192) < 1.1 * peak(4096)


def test_progress_ends_at_the_number_of_weights(tiny):
    """The bar goes one way and to its end."""
    told = []
    quantize(tiny, tiny.with_name("out.gguf"), "q8_0", lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] == sum(tensor.n_elements for tensor in gguf.GGUFReader(tiny).tensors)


def test_a_type_of_its_own_stays_as_it_is(tiny):
    """Quantising to what it is already copies every byte."""
    once = _quantized(tiny, "q8_0")
    assert _quantized(once, "q8_0").read_bytes() == once.read_bytes()


@pytest.mark.parametrize(
    ("name", "shape", "kind", "becomes"),
    [
        ("blk.0.ffn_up.weight", (256, 8), "F16", "Q4_0"),
        ("blk.0.ffn_up_exps.weight", (256, 8, 4), "Q6_K", "Q4_0"),
        ("blk.0.attn_q.bias", (256,), "F32", "F32"),
        ("blk.0.ffn_gate_inp.weight", (256, 8), "F32", "F32"),
        ("blk.0.ssm_conv1d.weight", (4, 64), "F32", "F32"),
        ("blk.0.attn_norm.weight", (256,), "F32", "F32"),
        ("blk.0.odd.weight", (48, 8), "F16", "F16"),
        ("token_embd.weight", (256, 8), "BF16", "Q8_0"),
        ("some.index.weight", (32, 8), "I32", "I32"),
    ],
)
def test_each_tensor_gets_its_type(name, shape, kind, becomes):
    """Routers, convolutions, biases and rows that are no whole blocks are left alone."""
    data = np.empty(0)
    tensor = gguf.ReaderTensor(name, gguf.GGMLQuantizationType[kind], np.array(shape), 0, 0, 0, data, None)
    assert target_type(tensor, gguf.GGMLQuantizationType.Q4_0).name == becomes


def test_a_type_that_cannot_be_read_is_told(tmp_path, tiny, capsys, monkeypatch):
    """The gguf package reads most types, not all."""

    def cannot(*_):
        raise NotImplementedError

    monkeypatch.setattr(quantizer.gguf, "dequantize", cannot)
    assert main([str(tiny), str(tmp_path / "out.gguf"), "q8_0"]) == 1
    assert "cannot convert F32" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not a model", b"GGUF" + bytes(40)])
def test_what_is_no_model_is_told_in_a_sentence(tmp_path, content):
    """The store checks before, but the file may change meanwhile."""
    source = tmp_path / "m.gguf"
    source.write_bytes(content)
    assert "cannot be quantised" in _sentence(source, tmp_path / "o.gguf")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_in_a_sentence(tiny):
    """`/dev/full` says what a full disk says."""
    assert "/dev/full cannot be read or written: No space left on device" in _sentence(tiny, "/dev/full")


def _sentence(source, target):
    """What the process says that must fail."""
    command = [sys.executable, "-m", "engines.gguf.quantize", str(source), str(target), "q8_0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("to", "least"), [("bf16", 0.95), ("q8_0", 0.9), ("q4_0", 0.5)])
def test_a_small_model_answers_much_as_before(tiny, to, least):
    """Random weights are the hardest case: nothing is redundant in them."""
    tokens = [3 + byte for byte in _TEXT.encode()[:200]]
    assert _agreement(_logits(tiny, tokens), _logits(_quantized(tiny, to), tokens)) >= least


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_demo_model_in_q8_0_agrees_with_its_source(demo_model, model, tmp_path):
    """The best token differs at near-ties alone, and the text costs no more surprise."""
    target = tmp_path / "q8.gguf"
    quantize(demo_model, target, "q8_0", lambda *_: None)
    tokens = model.encode(_TEXT, special=False)
    before, after = _logits(demo_model, tokens), _logits(target, tokens)
    gaps = np.diff(np.sort(before, axis=1)[:, -2:], axis=1)[:, 0]
    assert _agreement(before, after) > 0.9
    assert (gaps[before.argmax(axis=1) != after.argmax(axis=1)] < MAX_GAP).all()
    assert _perplexity(after, tokens) == pytest.approx(_perplexity(before, tokens), rel=0.03)


def _perplexity(logits, tokens):
    rows = logits[:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return float(np.exp(-logs[np.arange(len(rows)), tokens[1:]].mean()))
