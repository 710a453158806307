"""The gateway's surfaces that generate no text, as engines have them: where each lies, which fields it takes.

Named by the gateway's own paths. Fields are an allow-list for every engine: what an engine reads besides may make it
fetch what a client names, or answer in another shape.
"""

from collections.abc import Mapping
from types import MappingProxyType

EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
SCORE = "/v1/score"
TOKENIZE = "/v1/tokenize"
TOKENIZE_CHAT = "/v1/tokenize of messages"  # one path, but an engine may know no chat template there
DETOKENIZE = "/v1/detokenize"

TEXT_SURFACES = frozenset({TOKENIZE, TOKENIZE_CHAT, DETOKENIZE})  # the model itself is not run

Paths = Mapping[str, str]  # the gateway's surface: the engine's path


OPENAI_PATHS: Paths = MappingProxyType({EMBEDDINGS: "/v1/embeddings"})
RANKING_PATHS: Paths = MappingProxyType({**OPENAI_PATHS, RERANK: "/v1/rerank"})
VLLM_PATHS: Paths = MappingProxyType(
    {
        **RANKING_PATHS,
        SCORE: "/v1/score",
        TOKENIZE: "/tokenize",
        TOKENIZE_CHAT: "/tokenize",
        DETOKENIZE: "/detokenize",
    }
)
LLAMA_SERVER_PATHS: Paths = MappingProxyType({**RANKING_PATHS, TOKENIZE: "/tokenize", DETOKENIZE: "/detokenize"})

# What every engine of the surface knows.
STANDARD_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        EMBEDDINGS: frozenset({"model", "input", "encoding_format", "dimensions"}),
        RERANK: frozenset({"model", "query", "documents", "top_n", "return_documents"}),
        SCORE: frozenset({"model", "text_1", "text_2"}),
        TOKENIZE: frozenset({"model", "prompt", "add_special_tokens", "return_token_strs"}),
        TOKENIZE_CHAT: frozenset(
            {
                "model", "messages", "tools", "documents", "chat_template_kwargs", "add_generation_prompt",
                "continue_final_message", "add_special_tokens", "return_token_strs",
            }
        ),
        DETOKENIZE: frozenset({"model", "tokens"}),
    }
)  # fmt: skip
# And vLLM's extras, which change how a text is read and never the shape of the answer.
_READING = frozenset({"truncate_prompt_tokens", "truncation_side", "use_activation"})
_EMBEDDING = frozenset({"user", "add_special_tokens"})
OWN_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **STANDARD_FIELDS,
        EMBEDDINGS: STANDARD_FIELDS[EMBEDDINGS] | _READING | _EMBEDDING,
        RERANK: STANDARD_FIELDS[RERANK] | _READING,
        SCORE: STANDARD_FIELDS[SCORE] | _READING,
    }
)
