"""The top level of a JSON body as raw values: read once, typed only where somebody asks.

Duplicate and escaped spellings of a key become one; nested values keep the client's own bytes. Every failure is a
`ClientError` that names the field, where one can be named.
"""

import re
import threading
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from gateway.errors import ClientError

_MAX_EXAMINED = 256 * 1024  # bytes of a bad body that are looked through for the field to blame
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)  # 1: half of a pair

LARGE_BYTES = 256 * 1024  # chosen: reading a larger body takes long enough to be felt by others
MAX_KEYS = 1024  # chosen: of the top level; far above every API

_decode = msgspec.json.Decoder(dict[str, Raw]).decode


class _Key(str):
    """A key of the top level, counted."""

    __slots__ = ()


class _Item(msgspec.Struct):
    """An object of a list that is only counted. Python code, so that a list too long is left in the middle."""

    def __post_init__(self) -> None:
        _counter.left -= 1
        if _counter.left < 0:
            raise ValueError("too many")


_counter = threading.local()  # `left`: how many more may come in the list this thread counts
_count_items = msgspec.json.Decoder(list[_Item]).decode


def is_longer(raw: Raw, most: int) -> bool:
    """Whether a list of objects has more than `most` of them; what is no such list is for its reader to refuse."""
    _counter.left = most
    try:
        _count_items(raw)
    except (msgspec.MsgspecError, RecursionError):
        return bool(_counter.left < 0)
    return False


def reader(kind: Any) -> Callable[[Raw], Any]:
    """A strict reader of one type, for `typed`: `true` is no 1, "1" is no number."""
    return msgspec.json.Decoder(kind).decode


def top_level(body: bytes) -> dict[str, Raw]:
    """The members of the object in `body`. Raises `ClientError` for what is not UTF-8 or not JSON, however deep."""
    try:
        body.decode()  # raw values are passed on unread: what is not UTF-8 must stop here
        fields = _decode(body) if len(body) <= LARGE_BYTES else _decode_counted(body)
    except UnicodeDecodeError:
        raise ClientError("the body is not UTF-8") from None
    except RecursionError:
        raise ClientError("the body is nested too deeply") from None
    except msgspec.MsgspecError as error:
        name = _field_of_lone_surrogate(body)
        if name is not None:
            raise ClientError(f"{name} holds half of a surrogate pair: no character", param=name) from None
        raise ClientError(f"the body is not a JSON object: {error}") from None
    if len(fields) > MAX_KEYS:
        raise _too_many_keys(fields)
    return fields


def _decode_counted(body: bytes) -> dict[str, Raw]:
    """As `_decode`, but left as soon as there are too many keys: a million of them take a second."""
    seen: list[str] = []

    def key(_kind: type, name: str) -> _Key:
        seen.append(name)
        if len(seen) > MAX_KEYS:
            raise ValueError("too many keys")
        return _Key(name)

    try:
        counted = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=key).decode(body)
    except msgspec.ValidationError:
        if len(seen) > MAX_KEYS:
            raise _too_many_keys(seen) from None
        raise
    return {str(name): value for name, value in counted.items()}


def _too_many_keys(names: Iterable[str]) -> ClientError:
    last = next(islice(names, MAX_KEYS, None))[:64]
    return ClientError(f"the body may have at most {MAX_KEYS} fields; {last!r} is one too many", param=last)


def typed(fields: dict[str, Raw], name: str, read: Callable[[Raw], Any]) -> Any:
    """The value of one field, None if it is absent. Raises `ClientError` if it is of another type."""
    value = fields.get(name)
    if value is None:
        return None
    try:
        return read(value)
    except RecursionError:
        raise ClientError(f"{name} is nested too deeply", param=name) from None
    except msgspec.MsgspecError as error:
        raise ClientError(f"{name}: {_plainly(error)}", param=name) from None


def _plainly(error: Exception) -> str:
    return str(error).replace("`", "").removesuffix(" - at $")


def _field_of_lone_surrogate(body: bytes) -> str | None:
    """The field that holds half of a pair: the one that differs with what is put in its place. None: no such fault."""
    if len(body) > _MAX_EXAMINED:
        return None
    try:
        one, other = (_decode(_with_halves(body, filling)) for filling in (b"\\u0041", b"\\u0042"))
    except (msgspec.MsgspecError, RecursionError):
        return None
    return next((name for name, value in one.items() if name in other and bytes(value) != bytes(other[name])), None)


def _with_halves(body: bytes, filling: bytes) -> bytes:
    return _ESCAPE.sub(lambda escape: filling if escape.group(1) else escape.group(), body)
