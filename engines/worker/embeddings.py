"""`POST /v1/embeddings`, `/v1/rerank` and `/v1/score`: texts in, vectors or scores out, as OpenAI and vLLM have it."""

import base64
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from starlette.types import Receive, Scope, Send

from engines.core.embedding import Floats
from engines.worker.answers import PromptTokensDetails, Usage, encode_json
from engines.worker.decoding import decode_request
from engines.worker.errors import ApiError, invalid, unsupported
from engines.worker.exchange import Exchange
from engines.worker.request_frame import answer_request
from engines.worker.request_log import RequestEntry
from engines.worker.service import Service
from engines.worker.surface import check_model
from engines.worker.vector_schema import (
    Document,
    Embedding,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    EmbeddingUsage,
    RankedDocument,
    RerankAnswer,
    RerankRequest,
    Score,
    ScoreAnswer,
    ScoreRequest,
)
from engines.worker.vectors import MAX_INPUTS, Inputs, VectorSource

_JSON = [(b"content-type", b"application/json")]
Answer = Callable[[Service, VectorSource, bytes], Awaitable["Reply"]]


@dataclass(frozen=True, slots=True)
class Reply:
    """A body, and how many texts or pairs, with how many tokens, it is about."""

    body: bytes
    num_inputs: int
    num_tokens: int


class VectorEndpoint:
    """One of the routes as an ASGI application. `surface`: its name in logs."""

    def __init__(self, service: Service, surface: str, answer: Answer) -> None:
        self._service = service
        self._surface = surface
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        service, exchange = self._service, Exchange(scope, receive, send)
        await answer_request(service, exchange, self._surface, check=service.check_ready, respond=self._respond)

    async def _respond(self, exchange: Exchange, body: bytes, entry: RequestEntry) -> None:
        source = self._service.vectors
        if source is None:
            sentence = "this worker's model generates text: it serves no embeddings and ranks no documents"
            raise ApiError(400, sentence, param="model", code="unsupported_model")
        reply = await self._answer(self._service, source, body)
        entry.num_inputs = reply.num_inputs
        entry.usage = Usage(reply.num_tokens, 0, reply.num_tokens, PromptTokensDetails(0))
        self._service.metrics.embedded(reply.num_inputs, reply.num_tokens)
        await exchange.send_json(200, reply.body, _JSON)


async def embed(service: Service, source: VectorSource, body: bytes) -> Reply:
    """The answer of `/v1/embeddings`. Raises `ApiError`."""
    if source.model.can_rank:
        raise ApiError(400, "this worker's model ranks documents: it serves no embeddings", code="unsupported_model")

    def read() -> tuple[EmbeddingsRequest, Inputs]:
        request = decode_request(body, EmbeddingsRequest)
        check_model(request.model, service.settings.name)
        _check_embeddings(request, source.model.dimensions)
        return request, source.read_inputs(request.input)

    request, inputs = await service.prepare(read)
    rows = await source.vectors(inputs)
    as_base64 = request.encoding_format == "base64"
    data = [Embedding(index, _base64(row) if as_base64 else row.tolist()) for index, row in enumerate(rows)]
    return _reply(EmbeddingsAnswer(data, service.settings.name, _usage(inputs)), len(data))


async def rerank(service: Service, source: VectorSource, body: bytes) -> Reply:
    """The answer of `/v1/rerank`. Raises `ApiError`."""

    def read() -> tuple[RerankRequest, Inputs, list[str]]:
        request = decode_request(body, RerankRequest)
        check_model(request.model, service.settings.name)
        if not 1 <= len(request.documents) <= MAX_INPUTS:
            raise invalid("documents", f"`documents` must hold 1 to {MAX_INPUTS} documents")
        if request.top_n is not None and request.top_n < 0:
            raise invalid("top_n", "`top_n` must not be negative")
        texts = [document if isinstance(document, str) else document.text for document in request.documents]
        return request, source.read_pairs([(request.query, text) for text in texts], ("query", "documents")), texts

    request, inputs, texts = await service.prepare(read)
    scores = await source.scores(inputs)
    best = sorted(range(len(texts)), key=lambda index: (-scores[index], index))
    wanted = best[: request.top_n] if request.top_n else best
    shows = request.return_documents is not False
    results = [
        RankedDocument(index, float(scores[index]), Document(text=texts[index]) if shows else None) for index in wanted
    ]
    return _reply(RerankAnswer(_id("rerank-"), service.settings.name, results, _usage(inputs)), len(texts))


async def score(service: Service, source: VectorSource, body: bytes) -> Reply:
    """The answer of `/v1/score`. Raises `ApiError`."""

    def read() -> Inputs:
        request = decode_request(body, ScoreRequest)
        check_model(request.model, service.settings.name)
        return source.read_pairs(_pairs(request), ("text_1", "text_2"))

    inputs = await service.prepare(read)
    data = [Score(index, float(found)) for index, found in enumerate(await source.scores(inputs))]
    return _reply(ScoreAnswer(_id("score-"), int(time.time()), service.settings.name, data, _usage(inputs)), len(data))


def _check_embeddings(request: EmbeddingsRequest, dimensions: int) -> None:
    if request.encoding_format not in (None, "float", "base64"):
        raise invalid("encoding_format", "`encoding_format` must be float or base64")
    if request.dimensions not in (None, dimensions):
        raise invalid(
            "dimensions",
            f"this model's vectors have {dimensions} dimensions and no other",
            code="unsupported_parameter",
        )
    if request.truncate_prompt_tokens is not None:
        raise unsupported("truncate_prompt_tokens")


def _pairs(request: ScoreRequest) -> list[tuple[str, str]]:
    """One text against each of several, or two lists side by side."""
    firsts = [request.text_1] if isinstance(request.text_1, str) else request.text_1
    seconds = [request.text_2] if isinstance(request.text_2, str) else request.text_2
    if not 1 <= len(seconds) <= MAX_INPUTS:
        raise invalid("text_2", f"`text_2` must hold 1 to {MAX_INPUTS} texts")
    if len(firsts) not in (1, len(seconds)):
        raise invalid("text_1", "`text_1` must be one text or as many as `text_2`")
    return list(zip(firsts * len(seconds) if len(firsts) == 1 else firsts, seconds, strict=True))


def _base64(row: Floats) -> str:
    return base64.b64encode(np.ascontiguousarray(row, dtype="<f4").tobytes()).decode()


def _usage(inputs: Sequence[Sequence[int]]) -> EmbeddingUsage:
    total = sum(map(len, inputs))
    return EmbeddingUsage(total, total)


def _reply(answer: EmbeddingsAnswer | RerankAnswer | ScoreAnswer, num_inputs: int) -> Reply:
    return Reply(encode_json(answer), num_inputs, answer.usage.total_tokens)


def _id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex
