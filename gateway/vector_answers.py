"""Embeddings, rankings and scores as engines give them, read and written anew in the one shape that clients know.

Engines differ: some ignore `encoding_format`, `top_n` or `return_documents`, some name a score otherwise or give them
in another order. Numbers that need no other form keep the engine's own text. Pure.
"""

import base64
import binascii
import math
import sys
from array import array
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw

from engines.contract import Fault, ReplicaError
from gateway.chunks import Usage
from gateway.wanted import Ranking, Scores, Vectors


class AnswerHead(NamedTuple):
    """What an answer says beside its data. `model`: as the client called it. `created`: Unix seconds.

    `estimated_tokens`: what is told as its usage where no engine reports any.
    """

    request_id: str
    model: str
    created: int
    estimated_tokens: int


Answer = tuple[bytes, Usage | None]  # the body, and what the engine itself reports


class _Told(Usage):
    total_tokens: Annotated[int, Meta(ge=0, le=2**53)] = 0


class _Reporting(msgspec.Struct, kw_only=True):
    usage: Raw = Raw()


class _Vector(msgspec.Struct):
    embedding: Raw
    index: int | None = None


class _Vectors(_Reporting, kw_only=True):
    data: list[_Vector]


class _Ranked(msgspec.Struct):
    index: int
    relevance_score: float | None = None
    score: float | None = None


class _Ranking(_Reporting, kw_only=True):
    results: list[_Ranked]


class _Scored(msgspec.Struct):
    score: float
    index: int | None = None


class _Scores(_Reporting, kw_only=True):
    data: list[_Scored]


_decode_vectors = msgspec.json.Decoder(_Vectors).decode
_decode_ranking = msgspec.json.Decoder(_Ranking | list[_Ranked]).decode
_decode_scores = msgspec.json.Decoder(_Scores).decode
_decode_numbers = msgspec.json.Decoder(list[float]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_told = msgspec.json.Decoder(_Told).decode
_encode = msgspec.json.Encoder().encode


def embeddings(body: bytes, wanted: Vectors, head: AnswerHead) -> Answer:
    """OpenAI's list of embeddings. Raises `ValueError` for what is none, `ReplicaError` for other dimensions."""
    answer = _decode_vectors(body)
    found = _in_order(answer.data, wanted.num, "embeddings")
    rows: list[dict[str, Any]] = []
    size = 0
    for index, one in enumerate(found):
        shown, here = _vector(one.embedding, as_base64=wanted.as_base64)
        if rows and here != size:
            raise ValueError(f"embeddings of {size} and {here} numbers")
        size = here
        rows.append({"object": "embedding", "index": index, "embedding": shown})
    if wanted.dimensions not in (None, size):
        raise _other_dimensions(size)
    usage = _usage(answer.usage)
    return _encode({"object": "list", "data": rows, "model": head.model, "usage": _shown(usage, head)}), usage


def ranking(body: bytes, wanted: Ranking, head: AnswerHead) -> Answer:
    """The best documents first, as Jina, Cohere and vLLM have it. Raises `ValueError` for what is no ranking."""
    answer = _decode_ranking(body)
    found = answer if isinstance(answer, list) else answer.results
    scores: dict[int, float] = {}
    for one in found:
        score = one.score if one.relevance_score is None else one.relevance_score
        if score is None or not 0 <= one.index < len(wanted.documents) or one.index in scores:
            raise ValueError(f"a ranking with the document {one.index} twice, of no score or of nobody")
        scores[one.index] = score
    if len(scores) < wanted.num:
        raise ValueError(f"{len(scores)} of {wanted.num} documents")
    best = sorted(scores, key=lambda index: (-scores[index], index))[: wanted.num]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
    if wanted.shows:
        for one_of in results:
            one_of["document"] = {"text": wanted.documents[one_of["index"]]}
    usage = None if isinstance(answer, list) else _usage(answer.usage)
    named = {"id": f"rerank-{head.request_id}", "model": head.model}
    return _encode({**named, "results": results, "usage": _shown(usage, head)}), usage


def scores(body: bytes, wanted: Scores, head: AnswerHead) -> Answer:
    """A score for each pair, in their order, as vLLM has it. Raises `ValueError` for what is none."""
    answer = _decode_scores(body)
    found = _in_order(answer.data, wanted.num, "scores")
    data = [{"index": index, "object": "score", "score": one.score} for index, one in enumerate(found)]
    usage = _usage(answer.usage)
    named = {"id": f"score-{head.request_id}", "object": "list", "created": head.created, "model": head.model}
    return _encode({**named, "data": data, "usage": _shown(usage, head)}), usage


def _in_order(found: list[Any], num: int, what: str) -> list[Any]:
    """One for each index from 0; what has no index stands where it came."""
    placed = {place if one.index is None else one.index: one for place, one in enumerate(found)}
    if len(found) != num or placed.keys() != set(range(num)):
        raise ValueError(f"{len(found)} {what} where {num} were asked for")
    return [placed[index] for index in range(num)]


def _vector(raw: Raw, *, as_base64: bool) -> tuple[Raw | str | list[float], int]:
    """(the vector in the form that was asked for, its dimensions). Base64 is of little-endian float32, as OpenAI's."""
    if bytes(memoryview(raw)[:1]) == b'"':
        text = _decode_text(raw)
        packed = _unpacked(text)
        return (text, len(packed)) if as_base64 else (packed.tolist(), len(packed))
    numbers = _decode_numbers(raw)
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError("an embedding without numbers")
    return (_packed(numbers), len(numbers)) if as_base64 else (raw, len(numbers))


def _packed(numbers: list[float]) -> str:
    floats = array("f", numbers)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()


def _unpacked(text: str) -> "array[float]":
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"an embedding that is no base64: {error}") from None
    if not data or len(data) % 4:
        raise ValueError(f"an embedding of {len(data)} bytes")
    floats = array("f", data)
    if sys.byteorder == "big":
        floats.byteswap()
    if not all(map(math.isfinite, floats)):
        raise ValueError("an embedding with something that is no number")
    return floats


def _other_dimensions(size: int) -> ReplicaError:
    """An engine that ignores what it cannot do: the client's to change, and said in the words of our own worker."""
    message = f"this model's vectors have {size} dimensions and no other"
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": "dimensions",
        "code": "unsupported_parameter",
    }
    return ReplicaError(Fault.CLIENT, message, status=400, body=_encode({"error": error}))


def _usage(raw: Raw) -> Usage | None:
    """Some engines tell only the total. None for what is no usage: every input has a token at least."""
    try:
        told = _decode_told(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    tokens = told.prompt_tokens or told.total_tokens
    return Usage(tokens, 0, told.prompt_tokens_details) if tokens else None


def _shown(usage: Usage | None, head: AnswerHead) -> dict[str, int]:
    tokens = usage.prompt_tokens if usage is not None else head.estimated_tokens
    return {"prompt_tokens": tokens, "total_tokens": tokens}
