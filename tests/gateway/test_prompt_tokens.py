"""From requests to tokens: who has a vocabulary, what is done beside the loop, and what has no tokens."""

import asyncio
import threading

import msgspec
import pytest

from cache_affinity.kv_events import pack, salt_digest
from engines.fake.model import FakeModel
from gateway import prompt_tokens as module
from gateway.prompt_tokens import FAKE, PromptTokens
from gateway.request import Surface, read


def chat(text="hello people", **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return read(Surface.CHAT, msgspec.json.encode(body))


def completion(prompt):
    return read(Surface.COMPLETIONS, msgspec.json.encode({"model": "m", "prompt": prompt}))


@pytest.fixture
async def tokens():
    """The fake engine's vocabulary, read."""
    made = PromptTokens(lambda model: FAKE if model == "m" else "")
    made.expect("m")
    async with asyncio.timeout(10):
        while not made._ready[FAKE]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    yield made
    made.close()


async def test_a_conversation_becomes_the_tokens_of_its_template(tokens):
    """And starts from the tenant's salt, as a digest."""
    chain = await tokens.chain("m", chat(), "secret")
    text = "<|im_start|>user\nhello people<|im_end|>\n<|im_start|>assistant\n"
    assert chain.packed == pack(FakeModel().encode(text, special=True))
    assert chain.salt == salt_digest("secret")


async def test_special_texts_of_a_client_stay_text(tokens):
    """As in the worker, by the same code."""
    chain = await tokens.chain("m", chat("<|im_end|>"), "s")
    model = FakeModel()
    head, tail = (
        model.encode(one, special=True) for one in ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
    )
    assert chain.packed == pack([*head, *model.encode("<|im_end|>", special=False), *tail])


async def test_plain_prompts_and_token_ids_have_tokens_too(tokens):
    """Token ids need no vocabulary."""
    assert (await tokens.chain("m", completion("the people"), "s")).packed == pack(
        FakeModel().encode("the people", special=True)
    )
    assert (await tokens.chain("m", completion([5, 6, 7]), "s")).packed == pack([5, 6, 7])
    assert (await tokens.chain("unknown", completion([5, 6, 7]), "s")).num_tokens == 3


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]]])
async def test_several_prompts_have_no_tokens(tokens, prompt):
    """They may hit in different places."""
    assert await tokens.chain("m", completion(prompt), "s") is None


async def test_a_model_without_a_vocabulary_has_no_tokens(tokens):
    """Routing goes by the shadow."""
    assert await tokens.chain("other", chat(), "s") is None


@pytest.mark.parametrize("fields", [{"tools": [{"type": "nonsense"}]}, {"chat_template_kwargs": {"messages": 1}}])
async def test_what_the_worker_will_refuse_has_no_tokens(tokens, fields):
    """It says why; nobody here does."""
    assert await tokens.chain("m", chat(**fields), "s") is None


async def test_tools_that_are_nested_too_deeply_have_no_tokens(tokens):
    """A request whose body could be read must not fail because its prompt cannot be guarded here."""
    schema = msgspec.Raw(b'{"a":' + b"[" * 900 + b"]" * 900 + b"}")
    request = chat(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}])
    assert await tokens.chain("m", request, "s") is None
    assert await tokens.count("m", request.fields) is None


async def test_a_long_prompt_is_tokenised_beside_the_loop(tokens, monkeypatch):
    """Others are served meanwhile."""
    threads = []
    found = tokens._ready[FAKE]
    text = found.text
    monkeypatch.setattr(found, "text", lambda prompt: threads.append(threading.current_thread().name) or text(prompt))
    await tokens.chain("m", completion("short"), "s")
    await tokens.chain("m", completion("long " * 2000), "s")
    assert threads[0] == threading.current_thread().name
    assert threads[1].startswith("tokens")


async def test_before_the_vocabulary_is_read_there_are_no_tokens_and_it_is_read_once(monkeypatch):
    """The first requests do not wait for it."""
    gate, reads = threading.Event(), []
    real = module._read

    def slow(source):
        reads.append(source)
        gate.wait(10)
        return real(source)

    monkeypatch.setattr(module, "_read", slow)
    tokens = PromptTokens(lambda _: FAKE)
    assert await tokens.chain("m", chat(), "s") is None
    assert await tokens.chain("m", chat(), "s") is None
    gate.set()
    async with asyncio.timeout(10):
        while await tokens.chain("m", chat(), "s") is None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert reads == [FAKE]
    assert FAKE in repr(tokens)
    tokens.close()


async def test_a_vocabulary_that_cannot_be_read_is_told_and_not_tried_again(tmp_path):
    """A wrong path costs no request anything."""
    told = asyncio.Event()
    tokens = PromptTokens(lambda _: str(tmp_path / "none.gguf"))
    have = tokens._have

    def heard(source, reading):
        have(source, reading)
        told.set()

    tokens._have = heard
    assert await tokens.chain("m", chat(), "s") is None
    async with asyncio.timeout(10):
        await told.wait()
    assert await tokens.chain("m", chat(), "s") is None
    assert repr(tokens) == "<PromptTokens []>"
    tokens.close()
    tokens.close()


async def test_a_bug_while_reading_is_logged_and_costs_nobody_anything(monkeypatch):
    """The gateway serves on."""
    monkeypatch.setattr(module, "_read", lambda _: 1 / 0)
    tokens = PromptTokens(lambda _: FAKE)
    tokens.expect("m")
    for _ in range(100):
        await asyncio.sleep(0.001)
    assert await tokens.chain("m", chat(), "s") is None
    tokens.close()


async def test_a_template_that_holds_up_the_loop_is_not_asked_for_ever(tokens, monkeypatch):
    """Short conversations are rendered on the loop, and the template is somebody's file; a busy machine is not slow."""
    clock, asked = iter([0.0, 0.2, 1.0, 1.05, 2.0, 2.2, 3.0, 3.2]), []
    monkeypatch.setattr(module.time, "thread_time", lambda: next(clock))
    monkeypatch.setattr(tokens._ready[FAKE], "chat", lambda fields: asked.append(fields) or (1,))
    assert [await tokens.chain("m", chat(), "s") is not None for _ in range(6)] == [True] * 4 + [False] * 2
    assert len(asked) == 4
