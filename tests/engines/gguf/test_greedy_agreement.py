"""Texts of many kinds at once: each greedy answer is the bare library's, near-ties apart."""

import numpy as np
import pytest

from engines.core.sequence import GenerateRequest, SamplingParams
from tests.engines.gguf.bare import Answer, device_of
from tests.engines.gguf.driven_model import DrivenModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
TEXTS = [
    "The capital of France is",
    "Monday, Tuesday, Wednesday,",
    "1, 1, 2, 3, 5, 8, 13,",
    "Once upon a time there was a clock that",
    "<|im_start|>user\nWhat is a cat?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n",
    "def area(width, height):\n    return width * height\n\ndef volume(",
    "for (int i = 0; i < n; i++) {\n    sum +=",
    "SELECT name, age FROM people WHERE",
    '{"name": "Ada", "age": 36, "skills": ["',
    "<html>\n  <body>\n    <h1>Library</h1>\n    <p>",
    "| city | country |\n|---|---|\n| Paris | France |\n| Rome |",
    "$ git status\nOn branch main\n",
    "日本の首都は",
    "中国的首都是北京，法国的首都是",
    "한국의 수도는",
    "Столица Франции —",
    "عاصمة فرنسا هي",
    "Η πρωτεύουσα της Γαλλίας είναι",
    "🍎 apple, 🍌 banana, 🍒",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🫖 means",
    "naïve café, Zürich, smørrebrød, \u0065\u0301 and",
    "   \n\n\t  \n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


def test_texts_of_every_kind_are_continued_as_by_the_bare_library(model):
    """With drafts, prompts and answers by turns, many prompts in a step, more requests than seats."""
    requests = {text: GenerateRequest(text, tuple(model.encode(text, special=True)), GREEDY) for text in TEXTS}
    with device_of(model, requests, kv_tokens=1536, max_step_tokens=128) as device:
        driven = DrivenModel(device, max_seqs=8, max_drafts=8, mixes_prompts=False)
        for name, request in requests.items():
            driven.ask(request, name)
        driven.run()
        for name in requests:
            device.check_same(name, driven.given(name))
        assert max(plan.num_tokens for plan in driven.plans) >= 64, "no step was long"
        driven.check_nothing_is_held()


def _from_the_library(model, tokens):
    """What `llama_decode` alone makes of tokens, given one by one in arrays of our own: the logits of each."""
    c, ffi = model.library.c, model.library.ffi
    params = c.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
    context = ffi.gc(c.llama_init_from_model(model.pointer, params), c.llama_free)
    token, position, one = ffi.new("int32_t *"), ffi.new("int32_t *"), ffi.new("int32_t *", 1)
    slot, slots, wanted = ffi.new("int32_t *", 0), ffi.new("int32_t **"), ffi.new("int8_t *", 1)
    slots[0] = slot
    batch = ffi.new("struct llama_batch *")
    batch.n_tokens, batch.token, batch.pos, batch.n_seq_id = 1, token, position, one
    batch.seq_id, batch.logits = slots, wanted
    rows = []
    for position[0], token[0] in enumerate(tokens):
        assert c.llama_decode(context, batch[0]) == 0
        row = ffi.buffer(c.llama_get_logits(context), model.vocab_size * 4)
        rows.append(np.frombuffer(row, np.float32).copy())
    ffi.release(context)
    return rows


def test_our_steps_add_nothing_to_what_the_library_computes(model):
    """The yardstick of all these tests, which uses our batches, is itself compared with a bare loop."""
    request = GenerateRequest("r", tuple(model.encode(TEXTS[3], special=False)), GREEDY)
    with device_of(model, {"r": request}) as device:
        alone = device.alone["r"]
        rows = _from_the_library(model, [*request.prompt, *alone.tokens[:-1]])[len(request.prompt) - 1 :]
        device.check_equal("r", Answer([int(row.argmax()) for row in rows], rows))
