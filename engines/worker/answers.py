"""The bodies of answers, as OpenAI documents them and as vLLM extends them (`stop_reason`). Types only."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

encode_json = msgspec.json.Encoder().encode


class PromptTokensDetails(Struct):
    """`cached_tokens`: prompt tokens that were not computed for this request."""

    cached_tokens: int


class Usage(Struct):
    """Tokens of one request, all choices together; a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(Struct):
    """One of the best tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(Struct):
    """One generated token of a chat answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """Log probabilities of a chat choice or chunk."""

    content: list[TokenLogprobs]
    refusal: None = None


class CompletionLogprobs(Struct):
    """Log probabilities of a completions choice or chunk: parallel lists, one entry a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AssistantMessage(Struct):
    """The model's message."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct):
    """One choice of a whole chat answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None


class Delta(Struct, omit_defaults=True):
    """What a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct):
    """One choice of a chat chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class CompletionChoice(Struct):
    """One choice of a completions answer or chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class ChatCompletion(Struct):
    """A whole chat answer, or with `object` of a chunk one event of a stream."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChoice] | list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET


class TextCompletion(Struct):
    """A whole completions answer or one event of a stream: they have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
