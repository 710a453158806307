"""The bodies of the surfaces that generate no text, read into what they ask for (`wanted.py`).

Texts, pairs and tokens are counted as an engine reads them, so that a limit is asked for what will be charged.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from engines.adapters.surfaces import DETOKENIZE, EMBEDDINGS, RERANK, SCORE, TOKENIZE, TOKENIZE_CHAT
from gateway.anthropic_api.paths import COUNT_TOKENS
from gateway.anthropic_api.request import prompt_fields
from gateway.errors import ClientError
from gateway.fields import LARGE_BYTES, reader, typed
from gateway.prompt import TokenId, chat_prompt
from gateway.responses_api.paths import INPUT_TOKENS
from gateway.responses_api.request import counted_fields
from gateway.responses_api.state import Earlier
from gateway.wanted import Inputs, Ranking, Scores, Text, TokenCount, TokenList, Vectors

MAX_INPUTS = 2048  # OpenAI's; of texts, documents and pairs
MAX_DIMENSIONS = 65_536  # chosen: far above every model's


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    text: str


_FIRST = re.compile(rb"\s*(\[\s*)?(.)?", re.DOTALL)  # of a list its first item's first byte, else the value's own
_INPUT_READERS = {  # by that byte: whatever comes behind must be alike, so that a mixture is left at its first
    b'"': reader(list[str]),
    b"[": reader(list[Annotated[list[TokenId], Meta(min_length=1)]]),
    **dict.fromkeys((b"%d" % digit for digit in range(10)), reader(list[TokenId])),
}
_format = reader(str | None)
_whole = reader(int | None)
_flag = reader(bool | None)
_string = reader(str)
_documents = reader(list[str | _Document])
_texts = reader(str | list[str])
_tokens = reader(list[TokenId])
_MAX_IDS = 1 << 18  # chosen: above the context of most models; the engine has its own bound
_ID_BYTES = 12  # of a token id with what stands between two


def read_inputs(surface: str, fields: dict[str, Raw], earlier: Earlier) -> Inputs:
    """What a body of one of these surfaces asks for. Raises `ClientError` (400) naming the field that is wrong.

    Documents given as objects become texts in `fields`: the only form that all engines take. `earlier`: see `read`.
    """
    if typed(fields, "stream", _flag):
        raise ClientError(f"{surface} answers at once: stream must not be true", param="stream")
    if surface == INPUT_TOKENS:
        return _count_of(counted_fields(fields, earlier), fields, "response.input_tokens")
    return _READERS[surface](fields)


def _read_embeddings(fields: dict[str, Raw]) -> Inputs:
    texts = _some_inputs(fields)
    _check_number("input", texts)
    if isinstance(texts[0], str):
        _check_texts("input", texts)
        num_bytes, num_tokens = sum(map(_size, texts)), None
    else:
        num_bytes, num_tokens = 0, sum(map(len, texts))
    wanted = Vectors(len(texts), _wants_base64(fields), _dimensions(fields))
    return Inputs(EMBEDDINGS, wanted, bytes(fields["input"]), num_bytes, num_tokens)


def _read_rerank(fields: dict[str, Raw]) -> Inputs:
    query = _text(fields, "query")
    _check_large("documents", fields, quotes=4)  # of an object; of a text they are two
    documents = typed(fields, "documents", _documents)
    if not documents:
        raise ClientError("documents must be a list of at least one text", param="documents")
    _check_number("documents", documents)
    texts = [one if isinstance(one, str) else one.text for one in documents]
    _check_texts("documents", texts)
    if any(not isinstance(one, str) for one in documents):
        fields["documents"] = Raw(msgspec.json.encode(texts))
    top_n = typed(fields, "top_n", _whole)
    if top_n is not None and top_n < 1:
        raise ClientError(f"top_n must be at least 1, got {top_n}", param="top_n")
    shows = typed(fields, "return_documents", _flag) is not False
    wanted = Ranking(tuple(texts), min(len(texts), top_n or len(texts)), shows)
    num_bytes = len(texts) * _size(query) + sum(map(_size, texts))  # the query is read with each of them
    return Inputs(RERANK, wanted, bytes(fields["query"]) + bytes(fields["documents"]), num_bytes)


def _read_score(fields: dict[str, Raw]) -> Inputs:
    firsts, seconds = _some_texts(fields, "text_1"), _some_texts(fields, "text_2")
    if len(firsts) not in (1, len(seconds)):
        message = f"text_1 must be one text or as many as text_2: {len(firsts)} and {len(seconds)}"
        raise ClientError(message, param="text_1")
    num_bytes = sum(map(_size, seconds))
    num_bytes += _size(firsts[0]) * len(seconds) if len(firsts) == 1 else sum(map(_size, firsts))
    return Inputs(SCORE, Scores(len(seconds)), bytes(fields["text_1"]) + bytes(fields["text_2"]), num_bytes)


def _read_tokenize(fields: dict[str, Raw]) -> Inputs:
    for name in ("add_special_tokens", "return_token_strs"):
        typed(fields, name, _flag)
    prompt = typed(fields, "prompt", _string)
    if (prompt is None) == ("messages" not in fields):
        raise ClientError("exactly one of prompt and messages is needed", param="prompt")
    if prompt is not None:
        return Inputs(TOKENIZE, TokenList(), bytes(fields["prompt"]), is_free=True)
    chat_prompt(fields)  # media must be inline here, too
    return Inputs(TOKENIZE_CHAT, TokenList(), bytes(fields["messages"]), is_free=True)


def _read_count(fields: dict[str, Raw]) -> Inputs:
    return _count_of(prompt_fields(fields), fields, "")


def _count_of(found: dict[str, Raw], fields: dict[str, Raw], kind: str) -> Inputs:
    """A conversation is counted as the chat that it is here, of these fields."""
    for name in fields.keys() - {"model", "service_tier"}:
        del fields[name]
    fields.update(found)
    return Inputs(TOKENIZE_CHAT, TokenCount(kind), bytes(found["messages"]), is_free=True)


def _read_detokenize(fields: dict[str, Raw]) -> Inputs:
    if len(fields.get("tokens", b"")) > _MAX_IDS * _ID_BYTES:
        raise ClientError(f"tokens may hold at most {_MAX_IDS} token ids", param="tokens")
    if typed(fields, "tokens", _tokens) is None:
        raise ClientError("tokens must be a list of token ids", param="tokens")
    return Inputs(DETOKENIZE, Text(), bytes(fields["tokens"]), is_free=True)


_READERS: dict[str, Callable[[dict[str, Raw]], Inputs]] = {
    EMBEDDINGS: _read_embeddings,
    RERANK: _read_rerank,
    SCORE: _read_score,
    TOKENIZE: _read_tokenize,
    DETOKENIZE: _read_detokenize,
    COUNT_TOKENS: _read_count,
}


def _wants_base64(fields: dict[str, Raw]) -> bool:
    asked = typed(fields, "encoding_format", _format)
    if asked not in (None, "float", "base64"):
        raise ClientError("encoding_format must be float or base64", param="encoding_format")
    return bool(asked == "base64")


def _dimensions(fields: dict[str, Raw]) -> int | None:
    dimensions: int | None = typed(fields, "dimensions", _whole)
    if dimensions is not None and not 1 <= dimensions <= MAX_DIMENSIONS:
        message = f"dimensions must be between 1 and {MAX_DIMENSIONS}, got {dimensions}"
        raise ClientError(message, param="dimensions")
    return dimensions


def _text(fields: dict[str, Raw], name: str) -> str:
    found: str | None = typed(fields, name, _string)
    if not found:
        raise ClientError(f"{name} must be a text that is not empty", param=name)
    return found


def _some_texts(fields: dict[str, Raw], name: str) -> list[str]:
    _check_large(name, fields)
    found = typed(fields, name, _texts)
    if not found:
        raise ClientError(f"{name} must be a text or a list of texts", param=name)
    texts = [found] if isinstance(found, str) else found
    _check_number(name, texts)
    _check_texts(name, texts)
    return texts


def _some_inputs(fields: dict[str, Raw]) -> list[Any]:
    """Texts, or the tokens of some. A list of token ids is one text."""
    begins = _FIRST.match(fields.get("input", Raw()))
    assert begins is not None, "it matches anything"
    is_list, first = begins.groups()
    if first == b'"' and is_list is None:
        return [_text(fields, "input")]
    read = _INPUT_READERS.get(first) if is_list is not None else None
    if read is None:
        raise ClientError("input must be a text, a list of texts, token ids or lists of token ids", param="input")
    _check_large("input", fields)
    found: list[Any] = typed(fields, "input", read)
    return [found] if isinstance(found[0], int) else found


def _check_large(name: str, fields: dict[str, Raw], quotes: int = 2) -> None:
    """Raises `ClientError` for far too many items before they are made: a few million take a second.

    Told by the marks around them, and never too high: a mark inside a text is escaped.
    """
    value = bytes(fields.get(name, b""))
    if len(value) <= LARGE_BYTES:
        return
    marks = value.count(b'"')
    num = (marks - value.count(b'\\"')) // quotes if marks else value.count(b"]") - 1
    if num > MAX_INPUTS:
        raise _too_many(name, f"at least {num}")


def _too_many(name: str, num: int | str) -> ClientError:
    return ClientError(f"{name} may hold at most {MAX_INPUTS} of them, got {num}", param=name)


def _check_number(name: str, items: list[object]) -> None:
    if len(items) > MAX_INPUTS:
        raise _too_many(name, len(items))


def _check_texts(name: str, texts: list[str]) -> None:
    if not all(texts):
        raise ClientError(f"{name}[{texts.index('')}] is empty", param=name)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
