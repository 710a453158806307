"""Names that clients must not send on to an engine: they choose placement, priority, cache or identity.

Where each comes from: docs/engines.md, trap 13. Compared without regard to case, and with `-` for `_`, because engines
and the proxies before them differ in what they take for the same name.
"""

# Body fields that break tenancy, steer scheduling, or make an engine open a connection to a host the client names.
STEERING_FIELDS = frozenset(
    {
        "agent_hierarchy",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "cache_salt",
        "chat_template",
        "conversation_id",
        "conversation_params",
        "custom_logit_processor",
        "data_parallel_rank",
        "debug_config",
        "disagg_prefill_dp_rank",
        "disaggregated_params",
        "dp_rank",
        "ec_transfer_params",
        "extra_body",
        "extra_headers",
        "extra_key",
        "extra_query",
        "id_slot",
        "kv_cache_hints",
        "kv_transfer_params",
        "logits_processors",
        "lora_path",
        "lora_request",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "nvext",
        "prefill_dp_rank",
        "priority",
        "prompt_cache_isolation_key",
        "prompt_cache_key",
        "prompt_embeds",
        "request_id",
        "rid",
        "routed_dp_rank",
        "session_control",
        "session_id",
        "session_params",
        "vllm_xargs",
    }
)

# What the gateway sets itself. In any other spelling they are dropped: some engines read names without regard to case.
GATEWAY_FIELDS = frozenset({"model", "stream", "stream_options"})

# Extension fields in a header's style: some engines and proxies read them as headers.
STEERING_PREFIX = "x_"

# Objects of the client's own whose members some engines and proxies lift to the top: looked through, one level deep.
CARRIERS = frozenset({"metadata"})


# Template variables that would replace the template itself, or switch off its tokenisation.
STEERING_TEMPLATE_VARIABLES = frozenset({"chat_template", "tokenize"})

# What a hosted provider is sent, and nothing else: it is outside the house. The client's `user`, cache keys and tiers
# stay inside: they would name people, share a cache across tenants, or spend at another rate.
HOSTED_FIELDS = frozenset(
    {
        "audio",
        "best_of",
        "dimensions",
        "echo",
        "encoding_format",
        "frequency_penalty",
        "function_call",
        "functions",
        "input",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "modalities",
        "model",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt",
        "reasoning_effort",
        "response_format",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "suffix",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "verbosity",
    }
)


def folded(name: str) -> str:
    """A field's name as the strangest reader may take it."""
    return name.casefold().replace("-", "_")
