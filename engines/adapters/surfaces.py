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

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"  # of speech, into English

FORM_SURFACES = frozenset({TRANSCRIPTIONS, TRANSLATIONS})  # asked by a multipart form with a file in it
TEXT_SURFACES = frozenset({TOKENIZE, TOKENIZE_CHAT, DETOKENIZE})  # the model itself is not run

Paths = Mapping[str, str]  # the gateway's surface: the engine's path


OPENAI_PATHS: Paths = MappingProxyType({EMBEDDINGS: "/v1/embeddings"})
RANKING_PATHS: Paths = MappingProxyType({**OPENAI_PATHS, RERANK: "/v1/rerank"})
_AUDIO_PATHS = {TRANSCRIPTIONS: TRANSCRIPTIONS, TRANSLATIONS: TRANSLATIONS}
HOSTED_PATHS: Paths = MappingProxyType({**RANKING_PATHS, **_AUDIO_PATHS})
WORKER_PATHS: Paths = MappingProxyType(  # of our own: no model of theirs hears
    {
        **RANKING_PATHS,
        SCORE: "/v1/score",
        TOKENIZE: "/tokenize",
        TOKENIZE_CHAT: "/tokenize",
        DETOKENIZE: "/detokenize",
    }
)
VLLM_PATHS: Paths = MappingProxyType({**WORKER_PATHS, **_AUDIO_PATHS})
LLAMA_SERVER_PATHS: Paths = MappingProxyType(
    {**RANKING_PATHS, TOKENIZE: "/tokenize", DETOKENIZE: "/detokenize", TRANSCRIPTIONS: TRANSCRIPTIONS}
)

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

# Of a form. Brackets behind a name make it a list or a member: `timestamp_granularities[]`, `chunking_strategy[type]`.
STANDARD_FORM_FIELDS = frozenset(
    {
        "file", "model", "language", "languages", "prompt", "keywords", "response_format", "temperature", "stream",
        "timestamp_granularities", "include", "chunking_strategy", "known_speaker_names", "known_speaker_references",
    }
)  # fmt: skip
# And vLLM's, of how a text is drawn. Not `vllm_xargs`.
OWN_FORM_FIELDS = STANDARD_FORM_FIELDS | {
    "to_language", "seed", "top_p", "top_k", "min_p", "max_completion_tokens",
    "frequency_penalty", "presence_penalty", "repetition_penalty",
}  # fmt: skip


def form_field(name: str) -> str:
    """The field that a part of a form is about: its name less what stands in brackets behind it."""
    return name.partition("[")[0]
