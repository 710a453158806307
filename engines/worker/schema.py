"""The request bodies a worker reads: OpenAI's fields that we act on, and vLLM's extras. Types only, no bounds.

Unknown fields are ignored, and so are those that change nothing here, such as `metadata`, `store` and `service_tier`.
Most fields typed `object` are documented somewhere and cannot be honoured here: they are read so that they can be
refused by name.
"""

from msgspec import Struct


class ContentPart(Struct, kw_only=True):
    """A piece of a message. Only `text` parts can be read by these models."""

    type: str
    text: str | None = None


class FunctionCall(Struct, kw_only=True):
    """A call the model made earlier. `arguments`: JSON as text."""

    name: str
    arguments: str = ""


class ToolCall(Struct, kw_only=True):
    """One earlier tool call of an assistant message."""

    function: FunctionCall
    id: str = ""
    type: str = "function"


class Message(Struct, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    function_call: object = None
    audio: object = None


class StreamOptions(Struct, kw_only=True):
    """`include_usage`: a last chunk with the usage. `continuous_usage_stats`: usage on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(Struct, kw_only=True):
    """What chat and completions share."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    # vLLM's extras
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None
    # What the answer must look like: OpenAI's field, vLLM's, its older ones, and llama-server's
    response_format: dict[str, object] | None = None
    structured_outputs: dict[str, object] | None = None
    guided_json: object = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: object = None
    grammar: str | None = None
    # Refused by name: each would change the answer.
    allowed_token_ids: object = None
    bad_words: object = None
    prompt_logprobs: object = None
    truncate_prompt_tokens: object = None
    use_beam_search: object = None
    kv_transfer_params: object = None


class ChatRequest(GenerationFields, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[object] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    documents: list[dict[str, object]] | None = None
    # Refused by name.
    functions: object = None
    function_call: object = None
    modalities: list[str] | None = None
    audio: object = None
    web_search_options: object = None
    chat_template: object = None


class CompletionRequest(GenerationFields, kw_only=True):
    """`POST /v1/completions`. A prompt is text or token ids, one or several."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    # Refused by name.
    suffix: object = None
    best_of: int | None = None
    prompt_embeds: object = None


class TokenizeRequest(Struct, kw_only=True):
    """`POST /tokenize`: a prompt, or messages as a chat would see them."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[object] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    documents: list[dict[str, object]] | None = None
    chat_template: object = None


class DetokenizeRequest(Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[int]
    model: str | None = None
