"""From body bytes to a typed request, or a 400 that names the field. Knows JSON and its ways to be wrong, no bounds."""

import json
import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from engines.worker.errors import ApiError, invalid

RequestT = TypeVar("RequestT")

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ERROR_PATH = re.compile(r"^(?P<problem>.*?)(?: - at `\$?\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING_FIELD = re.compile(r"missing required field `(?P<field>[^`]+)`")


def decode_request(body: bytes, kind: type[RequestT]) -> RequestT:
    """The body as `kind`. Raises `ApiError` 400 with `param` where a field can be named.

    NaN, infinities, numbers beyond float64, invalid UTF-8 and unpaired surrogates, also in fields nobody reads, are
    all not JSON and refused.
    """
    try:
        body.decode()
        return msgspec.json.decode(body, type=kind)
    except UnicodeDecodeError:
        raise invalid(None, "the body is not valid UTF-8") from None
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from None
    except msgspec.DecodeError:
        raise _syntax_error(body) from None
    except RecursionError:
        raise invalid(None, "the body is nested too deeply") from None


def _type_error(text: str) -> ApiError:
    match = _ERROR_PATH.match(text)
    assert match is not None, "the pattern matches every text"
    path, problem = match["path"] or None, match["problem"]
    missing = _MISSING_FIELD.search(problem)
    if missing:
        path = f"{path}.{missing['field']}" if path else missing["field"]
        return invalid(path, f"`{path}` is required")
    problem = problem[:1].lower() + problem[1:]
    return invalid(path, f"`{path}`: {problem}" if path else problem)


def _syntax_error(body: bytes) -> ApiError:
    if _SURROGATE_ESCAPE.search(body):
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        for path, text in _strings(document, ""):
            if _LONE_SURROGATE.search(text):
                return invalid(path or None, f"`{path}` holds half of a surrogate pair, which is not text")
    return invalid(None, "the body is not valid JSON")


def _strings(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Every string of a document with the path of its field; an object's keys count as the object's."""
    pending = [(value, path)]
    while pending:
        value, path = pending.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            for key, child in value.items():
                yield path, key
                pending.append((child, f"{path}.{key}" if path else key))
        elif isinstance(value, list):
            pending.extend((child, f"{path}[{index}]") for index, child in enumerate(value))
