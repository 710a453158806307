"""The bodies of answers, as OpenAI documents them and as vLLM extends them (`stop_reason`). Types only."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

encode_json = msgspec.json.Encoder().encode


class PromptTokensDetails(Struct):
    """`cached_tokens`: prompt tokens that were not computed for this request."""

    cached_tokens: int


class CompletionTokensDetails(Struct):
    """`reasoning_tokens`: output tokens that are not part of the answer proper."""

    reasoning_tokens: int


class Usage(Struct):
    """Tokens of one request, all choices together; a prompt counts once however many choices it has.

    `completion_tokens_details`: only where reasoning is told from content.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


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


class CalledFunction(Struct):
    """A function with its arguments, the text of a JSON object."""

    name: str
    arguments: str


class MessageToolCall(Struct):
    """One tool call of a whole message."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AssistantMessage(Struct):
    """The model's message. `content` is null beside tool calls only. Reasoning has both names in use."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class ChatChoice(Struct):
    """One choice of a whole chat answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None


class FunctionDelta(Struct, omit_defaults=True):
    """What a chunk adds to a call's function: its name once, then pieces of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Struct, omit_defaults=True):
    """What a chunk adds to one tool call; `id` and `type` come with the name."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class Delta(Struct, omit_defaults=True):
    """What a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


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
    system_fingerprint: str
    usage: Usage | UnsetType = UNSET


class TextCompletion(Struct):
    """A whole completions answer or one event of a stream: they have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | UnsetType = UNSET
