"""The top level of a JSON body as raw values: read once, typed only where somebody asks.

Duplicate and escaped spellings of a key become one; nested values keep the client's own bytes. Every failure is a
`ClientError` that names the field, where one can be named.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from gateway.errors import ClientError

_MAX_EXAMINED = 256 * 1024  # bytes of a bad body that are looked through for the field to blame
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)  # 1: half of a pair

_decode = msgspec.json.Decoder(dict[str, Raw]).decode


def reader(kind: Any) -> Callable[[Raw], Any]:
    """A strict reader of one type, for `typed`: `true` is no 1, "1" is no number."""
    return msgspec.json.Decoder(kind).decode


def top_level(body: bytes) -> dict[str, Raw]:
    """The members of the object in `body`. Raises `ClientError` for what is not UTF-8 or not JSON, however deep."""
    try:
        body.decode()  # raw values are passed on unread: what is not UTF-8 must stop here
        return _decode(body)
    except UnicodeDecodeError:
        raise ClientError("the body is not UTF-8") from None
    except RecursionError:
        raise ClientError("the body is nested too deeply") from None
    except msgspec.MsgspecError as error:
        name = _field_of_lone_surrogate(body)
        if name is not None:
            raise ClientError(f"{name} holds half of a surrogate pair: no character", param=name) from None
        raise ClientError(f"the body is not a JSON object: {error}") from None


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
