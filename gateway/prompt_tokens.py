"""From a request to the tokens that its engines will see, where the model's vocabulary is known: for the exact index.

Tokens come about as in our workers, by the same code: chat template, guard of special texts, tools. A long prompt is
tokenised beside the event loop. Whatever cannot be tokenised here is left to its engine to judge: then there are no
tokens, and routing goes by the shadow. The only module of the gateway that knows how a worker makes a prompt.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec

from cache_affinity.kv_events import TokenChain, pack, salt_digest
from cache_affinity.vocabulary import UnknownVocabulary
from gateway.request import InferenceRequest, Surface
from observability import logs

FAKE = "fake"  # the vocabulary of the fake engine, instead of a path
LONG_BYTES = 4096  # chosen: half a millisecond of tokenising at most is done on the loop
_THREADS = 2
_MAX_TOKENS = 4 << 20  # of a prompt; the engine has its own bound
_RENDER_LIMIT_S = 0.5  # of a chat template; chosen: real ones take a millisecond
# A template comes with a file from elsewhere. One that has taken so long for so many short prompts, which are rendered
# on the loop, is not asked any more; CPU time, since a busy machine is not its fault. Chosen.
_SLOW_S, _MAX_SLOW = 0.1, 3
_CHAT_FIELDS = (
    "messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs", "documents",
    "add_generation_prompt", "continue_final_message",
)  # fmt: skip

_read_prompt = msgspec.json.Decoder(str | list[int]).decode
_encode = msgspec.json.Encoder().encode


class Conversations(Protocol):
    """How one model's prompts become tokens. Thread-safe."""

    def chat(self, fields: Mapping[str, msgspec.Raw]) -> tuple[int, ...] | None:
        """Of a chat request's fields; None where its engine will refuse it."""
        ...

    def text(self, prompt: str) -> tuple[int, ...] | None:
        """Of a plain prompt."""
        ...


class PromptTokens:
    """The vocabularies of all models that have one. `source_of`: a GGUF file, `tokenizer.json`, `fake` or empty.

    A vocabulary is read when it is first asked for or expected, beside the loop; until then there are no tokens.
    """

    def __init__(self, source_of: Callable[[str], str]) -> None:
        self._source_of = source_of
        self._ready: dict[str, Conversations | None] = {}  # None: being read, or it cannot be used
        self._num_slow: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokens")

    def __repr__(self) -> str:
        return f"<PromptTokens {sorted(source for source, found in self._ready.items() if found is not None)}>"

    def expect(self, model: str) -> None:
        """Read the model's vocabulary soon, if it has one and that is not done. On the event loop."""
        source = self._source_of(model)
        if source and source not in self._ready:
            self._ready[source] = None
            reading = asyncio.get_running_loop().run_in_executor(self._pool, _read, source)
            reading.add_done_callback(lambda done: self._have(source, done))

    async def chain(self, model: str, request: InferenceRequest, cache_salt: str) -> TokenChain | None:
        """The tokens of one prompt of a tenant; None where they cannot be known here, or are of no use."""
        if request.inputs is not None:
            return None
        text: str | None = None
        if request.surface is Surface.COMPLETIONS:
            prompt = _one_prompt(request)
            if prompt is None:
                return None
            if not isinstance(prompt, str):
                return TokenChain(pack(prompt), salt=salt_digest(cache_salt))
            text = prompt
        source = self._source_of(model)
        found = self._ready.get(source)
        if found is None:
            self.expect(model)
            return None

        def work() -> bytes | None:
            tokens = found.chat(request.fields) if text is None else found.text(text)
            return pack(tokens) if tokens is not None else None

        if request.prompt_bytes > LONG_BYTES:
            packed = await asyncio.get_running_loop().run_in_executor(self._pool, work)
        else:
            started = time.thread_time()
            packed = work()
            if time.thread_time() - started > _SLOW_S:
                self._count_slow(source)
        return TokenChain(packed, salt=salt_digest(cache_salt)) if packed is not None else None

    def knows(self, model: str) -> bool:
        """Whether prompts of this model can be tokenised here, now."""
        return self._ready.get(self._source_of(model)) is not None

    async def count(self, model: str, fields: Mapping[str, msgspec.Raw]) -> int | None:
        """How many tokens a chat's prompt has, counted beside the loop; None where that cannot be known here."""
        found = self._ready.get(self._source_of(model))
        if found is None:
            return None
        tokens = await asyncio.get_running_loop().run_in_executor(self._pool, found.chat, fields)
        return None if tokens is None else len(tokens)

    def _count_slow(self, source: str) -> None:
        """A short prompt has held up the loop."""
        self._num_slow[source] += 1
        if self._num_slow[source] == _MAX_SLOW:
            self._ready[source] = None
            logs.get().warning("tokens.too_slow", source=source)

    def close(self) -> None:
        """End the threads; what is being tokenised is of no use any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _have(self, source: str, reading: "asyncio.Future[Conversations]") -> None:
        if reading.cancelled():
            return
        error = reading.exception()
        if isinstance(error, UnknownVocabulary):
            logs.get().info("tokens.unknown_vocabulary", source=source, reason=str(error))
        elif error is not None:
            logs.get().error("tokens.failed", source=source, exc_info=error)
        else:
            self._ready[source] = reading.result()


def _one_prompt(request: InferenceRequest) -> str | list[int] | None:
    """The prompt of a completions request that has one."""
    try:
        return _read_prompt(request.fields["prompt"])
    except msgspec.MsgspecError:
        return None  # several prompts, which may hit in different places


def unreadable(source: str) -> str:
    """Why prompts cannot be tokenised by this source; empty where they can."""
    try:
        _read(source)
    except UnknownVocabulary as error:
        return str(error)
    return ""


def _read(source: str) -> Conversations:
    """Raises `UnknownVocabulary`. Takes a part of a second."""
    if source == FAKE:
        from engines.fake.model import FakeModel

        return _Worker(FakeModel(), FakeModel.vocab_size, adds_bos=False)
    from engines.gguf_vocabulary import GgufText
    from engines.json_vocabulary import JsonText, is_json_vocabulary

    path = Path(source)
    text = JsonText(path) if is_json_vocabulary(path) else GgufText(path)
    return _Worker(text, text.vocab_size, adds_bos=text.adds_bos)


class _Worker:
    """One model's prompts, made as our worker makes them."""

    def __init__(self, model: Any, vocab_size: int, *, adds_bos: bool) -> None:
        from engines.worker.chat_template import BrokenTemplate
        from engines.worker.prompts import PromptBuilder

        try:
            self._builder = PromptBuilder(
                model, vocab_size, _MAX_TOKENS, adds_bos=adds_bos, render_limit_s=_RENDER_LIMIT_S
            )
        except BrokenTemplate as error:
            raise UnknownVocabulary(str(error)) from error

    def chat(self, fields: Mapping[str, msgspec.Raw]) -> tuple[int, ...] | None:
        """As the worker's chat surface does it."""
        from engines.worker.decoding import decode_request
        from engines.worker.errors import ApiError
        from engines.worker.prompts import ChatExtras
        from engines.worker.schema import ChatRequest
        from engines.worker.tools import check_tools

        body = _encode({"model": "", **{name: fields[name] for name in _CHAT_FIELDS if name in fields}})
        try:
            request = decode_request(body, ChatRequest)
            tools = check_tools(request)
            extras = ChatExtras(
                tools=tools.offered if tools is not None else (),
                documents=tuple(request.documents or ()),
                variables=request.chat_template_kwargs or {},
                reasoning_effort=request.reasoning_effort,
            )
            prompt = self._builder.conversation(
                request.messages,
                extras,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=bool(request.continue_final_message),
            )
        except (ApiError, RecursionError):  # of tools that are nested too deeply
            return None
        return prompt.tokens

    def text(self, prompt: str) -> tuple[int, ...] | None:
        """As its completions surface does it."""
        from engines.worker.errors import ApiError

        try:
            return self._builder.text(prompt)
        except ApiError:
            return None
