"""The bodies of `/v1/embeddings`, `/v1/rerank` and `/v1/score`: OpenAI's, Jina's and vLLM's. Types only."""

from msgspec import Struct


class EmbeddingsRequest(Struct, kw_only=True):
    """OpenAI's. A list of numbers is one text."""

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: str | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: object = None


class Document(Struct, kw_only=True):
    """A document as an object."""

    text: str


class RerankRequest(Struct, kw_only=True):
    """Jina's and Cohere's. `top_n`: how many of the best are wanted."""

    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None


class ScoreRequest(Struct, kw_only=True):
    """vLLM's: one text against several, or pairs of two lists."""

    model: str
    text_1: str | list[str]
    text_2: str | list[str]


class EmbeddingUsage(Struct):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Struct):
    """One vector: numbers, or the base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingsAnswer(Struct):
    """All vectors, in order."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class RankedDocument(Struct, omit_defaults=True):
    """One document and how well it answers."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankAnswer(Struct):
    """The best first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage


class Score(Struct):
    """One pair's."""

    index: int
    score: float
    object: str = "score"


class ScoreAnswer(Struct):
    """All scores, in order."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: EmbeddingUsage
    object: str = "list"
