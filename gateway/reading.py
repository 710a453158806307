"""Reads one field of a request in another language by its type; what is wrong is named by its whole path. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from gateway.errors import ClientError

_AT = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)


def read(fields: Mapping[str, Raw], name: str, decode: Callable[[Raw], Any]) -> Any:
    """The value of a field, None if it is absent or null.

    Raises `ClientError` that names what is wrong, as `messages[2].content[0].type`.
    """
    value = fields.get(name)
    return None if value is None or bytes(value) == b"null" else read_at(name, value, decode)


def read_at(path: str, value: Raw, decode: Callable[[Raw], Any]) -> Any:
    """The value at a path. Raises as `read`."""
    try:
        return decode(value)
    except RecursionError:
        raise wrong(path, "it is nested too deeply") from None
    except msgspec.MsgspecError as error:
        found = _AT.fullmatch(str(error))
        assert found is not None, "it matches anything"
        raise wrong(path + (found.group(2) or ""), found.group(1).replace("`", "")) from None


def wrong(path: str, why: str) -> ClientError:
    """400 for the value at a path."""
    return ClientError(f"{path}: {why}", param=path)


def check_object(raw: Raw, path: str) -> None:
    """Raises `ClientError` for JSON that is no object."""
    if bytes(memoryview(raw)[:1]) != b"{":
        raise wrong(path, "it must be an object")
