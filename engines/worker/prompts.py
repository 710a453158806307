"""From messages or prompts to token ids. Slow by design of tokenizers, so called off the event loop.

A prompt that cannot fit is refused by its length in bytes before anything is tokenised.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engines.core.plan import TextModel
from engines.worker.chat_template import RENDER_LIMIT_S, RESERVED_NAMES, ChatTemplate
from engines.worker.content_guard import ContentGuard, special_pattern
from engines.worker.conversation import content_chars, template_messages
from engines.worker.errors import ApiError, invalid
from engines.worker.schema import CompletionRequest, Message
from engines.worker.tool_prompt import with_tools_told

Tokens = tuple[int, ...]
MAX_PROMPTS = 64  # of one completions request; chosen
_TAIL_CHARS = 64  # longer than any tag that begins reasoning
# What a template gets from us; a client's variables of these names would change what it means.
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class ChatExtras:
    """What a template may get besides messages: tools and documents as the client wrote them, and its own variables."""

    tools: Sequence[object] = ()
    documents: Sequence[object] = ()
    variables: Mapping[str, object] = field(default_factory=dict)
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as tokens, and the end of its text, which says whether the template has begun the reasoning."""

    tokens: Tokens
    tail: str

    def ends_with(self, text: str) -> bool:
        """Whether the prompt's text, white space left out, ends so."""
        return self.tail.rstrip().endswith(text)


class PromptBuilder:
    """One model's way from text to tokens. Thread-safe.

    `max_tokens`: longest sequence the worker can hold; a prompt must leave room for one more token. `adds_bos`: a
    plain prompt begins with the model's BOS (a chat template writes its own). `render_limit_s`: of a chat template.
    """

    def __init__(
        self,
        model: TextModel,
        vocab_size: int,
        max_tokens: int,
        *,
        adds_bos: bool = False,
        render_limit_s: float = RENDER_LIMIT_S,
    ) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self.max_tokens = max_tokens
        self._bos = tuple(model.encode(model.bos_text, special=True)) if adds_bos and model.bos_text else ()
        self._template = ChatTemplate(model.chat_template, limit_s=render_limit_s) if model.chat_template else None
        self._special = special_pattern(model.special_texts)
        self._max_bytes = max_tokens * _longest_piece_bytes(model, vocab_size)

    def conversation(
        self,
        messages: list[Message],
        extras: ChatExtras,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> ChatPrompt:
        """The prompt of a conversation. Raises `ApiError`."""
        template = self._template
        if template is None:
            raise invalid("messages", "this model has no chat template; use /v1/completions")
        if continue_final_message and add_generation_prompt:
            raise invalid("continue_final_message", "`continue_final_message` excludes `add_generation_prompt`")
        if content_chars(messages) > self._max_bytes:
            raise self._too_long("messages")
        guard = ContentGuard(self._special)
        rendered_messages = template_messages(
            messages, guard, knows_developer=template.knows_developer, continues_last=continue_final_message
        )
        tools = [guard.hide_all(tool) for tool in extras.tools]
        if not template.knows_tools and (tools or any(message.role == "tool" for message in messages)):
            rendered_messages, tools = with_tools_told(rendered_messages, tools), []
        variables = {
            **_variables(extras, guard),
            "messages": rendered_messages,
            "tools": tools or None,
            "documents": [guard.hide_all(document) for document in extras.documents] or None,
            "add_generation_prompt": not continue_final_message and add_generation_prompt is not False,
            "bos_token": self._model.bos_text,
            "eos_token": self._model.eos_text,
        }
        rendered = template.render(variables, self._max_bytes)
        if continue_final_message:
            until = guard.until_end_marker(rendered)
            if until is None:
                raise invalid("continue_final_message", "this model's chat template cannot continue a message")
            rendered = until
        tokens: list[int] = []
        for text, special in guard.pieces(rendered):
            tokens.extend(self._encode(text, special=special, param="messages"))
        return ChatPrompt(self._fitting(tuple(tokens), "messages"), rendered[-_TAIL_CHARS:])

    def text(self, text: str, *, adds_special: bool = True) -> Tokens:
        """The tokens of a plain prompt, in which control-token texts count: its writer is the template.

        `adds_special`: BOS comes first where the model has it so.
        """
        tokens = tuple(self._encode(text, special=True, param="prompt"))
        return self._fitting(self._bos + tokens if adds_special else tokens, "prompt")

    def completion(self, request: CompletionRequest) -> list[Tokens]:
        """The prompts of a completions request, at least one."""
        prompts = split_prompts(request.prompt, "prompt")
        if not 1 <= len(prompts) <= MAX_PROMPTS:
            raise invalid("prompt", f"`prompt` must hold 1 to {MAX_PROMPTS} prompts")
        return [self.text(prompt) if isinstance(prompt, str) else self._checked(prompt) for prompt in prompts]

    def _checked(self, tokens: list[int]) -> Tokens:
        if any(not 0 <= token < self._vocab_size for token in tokens):
            raise invalid("prompt", f"each token of `prompt` must be at least 0 and below {self._vocab_size}")
        return self._fitting(tuple(tokens), "prompt")

    def _encode(self, text: str, *, special: bool, param: str) -> Sequence[int]:
        if len(text) > self._max_bytes or len(text.encode()) > self._max_bytes:
            raise self._too_long(param)
        return self._model.encode(text, special=special)

    def _fitting(self, tokens: Tokens, param: str) -> Tokens:
        if not tokens:
            raise invalid(param, f"`{param}` holds no tokens")
        if len(tokens) >= self.max_tokens:
            raise self._too_long(param)
        return tokens

    def _too_long(self, param: str) -> ApiError:
        message = f"the prompt leaves no room in the context of {self.max_tokens} tokens"
        return invalid(param, message, code="context_length_exceeded")


def _variables(extras: ChatExtras, guard: ContentGuard) -> dict[str, Any]:
    """A client's own template variables, such as `enable_thinking`."""
    variables: dict[str, Any] = {}
    for name, value in extras.variables.items():
        if name in _OURS or name in RESERVED_NAMES or not _VARIABLE.fullmatch(name):
            raise invalid("chat_template_kwargs", "`chat_template_kwargs` has a name that is not free for variables")
        variables[name] = guard.hide_all(value)
    if extras.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", guard.hide(extras.reasoning_effort))
    return variables


def split_prompts(prompt: str | list[str | int | list[int]], param: str) -> list[str | list[int]]:
    """One entry a prompt. A list of numbers is one prompt. Raises `ApiError` 400 naming `param` for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    numbers = [item for item in prompt if isinstance(item, int)]
    if not numbers:
        return [item for item in prompt if not isinstance(item, int)]
    if len(numbers) != len(prompt):
        raise invalid(param, f"`{param}` must be text, token ids, or a list of one of them")
    return [numbers]


def _longest_piece_bytes(model: TextModel, vocab_size: int) -> int:
    """The most bytes of text that one token can stand for."""
    pieces = (len(model.piece(token)) for token in range(vocab_size))
    return max(1, max(pieces, default=1), *(len(text.encode()) for text in model.special_texts))
