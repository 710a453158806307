"""Which earlier responses and items a body names, so that they can be looked up before it is read. Pure."""

from collections.abc import Set as AbstractSet

import msgspec
from msgspec import Raw, Struct

from gateway.errors import ClientError
from gateway.fields import is_longer
from gateway.prompt import MAX_MESSAGES
from gateway.responses_api.ids import response_of

MAX_REFERENCES = 64  # responses that one request may refer into


class _Peek(Struct):
    previous_response_id: Raw = Raw()
    input: Raw = Raw()


class _Reference(Struct):
    type: str | None = None
    role: str | None = None
    id: str | None = None


_peek = msgspec.json.Decoder(_Peek).decode
_word = msgspec.json.Decoder(str).decode
_references = msgspec.json.Decoder(list[_Reference]).decode


def named(body: bytes) -> tuple[str | None, AbstractSet[str]]:
    """(the response before, the items that are referred to). Nothing for a body that its reader will refuse."""
    try:
        found = _peek(body)
        said = bytes(found.previous_response_id)
        previous = None if said in (b"", b"null") else _word(said)
        if b'"id"' not in body or bytes(memoryview(found.input)[:1]) != b"[" or is_longer(found.input, MAX_MESSAGES):
            return previous, frozenset()
        ids = dict.fromkeys(one.id for one in _references(found.input) if one.id and _is_reference(one))
    except (msgspec.MsgspecError, RecursionError):
        return None, frozenset()
    return previous, ids.keys()


def responses_of(ids: AbstractSet[str]) -> list[str]:
    """The responses that these items are of, in the order of their first. Raises `ClientError` for too many."""
    responses = list(dict.fromkeys(filter(None, map(response_of, ids))))
    if len(responses) > MAX_REFERENCES:
        raise ClientError(f"input may refer to items of at most {MAX_REFERENCES} responses", param="input")
    return responses


def _is_reference(item: _Reference) -> bool:
    return item.type == "item_reference" or (item.type is None and item.role is None)
