"""What values of a template count, and which methods of text it may call. Pure.

A container counts all that it holds, parts that it shares each time: `[[1] * 1000] * 1000` is small in memory and a
million numbers once it is printed, compared or joined.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError

MAX_WIDTH = 1000  # of padding, and of the characters to strip; chosen
MAX_INT_BITS = 60  # of numbers that templates compute: Python's hashes of larger ones can be made to collide
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
# Whoever strips looks each character up among those that are given.
_STRIPPING = frozenset({"strip", "lstrip", "rstrip"})
_LINEAR = frozenset({
    *("split", "rsplit", "splitlines", "partition", "rpartition", "startswith", "endswith", "find", "rfind", "index"),
    *("rindex", "count", "lower", "upper", "title", "capitalize", "swapcase", "casefold", "removeprefix"),
    *("removesuffix", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace"),
    *("istitle", "isupper", "isidentifier", "isprintable"),
})  # fmt: skip


_NOTHING: dict[str, str] = {}
_VIEWS = (type(_NOTHING.keys()), type(_NOTHING.values()), type(_NOTHING.items()))
# Not the abstract classes, which are asked for each member and take ten times as long.
_CONTAINERS = (list, tuple, dict, set, frozenset, *_VIEWS)


class Exhausted(TemplateError):
    """A template used more than its budget."""


def whole_size(value: object) -> int:
    """Characters and members of a value and of all that it holds. Looks at each container once."""
    if not isinstance(value, _CONTAINERS):
        return size(value)
    sizes: dict[int, int] = {}
    pending: list[Any] = [value]
    while pending:
        found = pending[-1]
        if id(found) in sizes:
            pending.pop()
            continue
        members = _members(found)
        inner = [member for member in members if isinstance(member, _CONTAINERS)]
        missing = [member for member in inner if id(member) not in sizes]
        if missing:
            pending += missing
            continue
        texts = sum(len(member) for member in members if isinstance(member, str))
        sizes[id(found)] = 1 + len(members) + texts + sum(sizes[id(member)] for member in inner)
        pending.pop()
    return sizes[id(value)]


def size(value: object) -> int:
    """What a value counts by itself: characters, or members."""
    if isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range):
        return len(value)
    return bits(value) // 64 if isinstance(value, int) else 0


def text_size(value: object) -> int:
    """What a value counts where only text is looked at."""
    return len(value) if isinstance(value, str) else 0


def bits(value: object) -> int:
    """How long a number is; others have none."""
    return value.bit_length() if isinstance(value, int) else 0


def check_number(value: object) -> None:
    """Raise `Exhausted` for a number that is too long."""
    if bits(value) > MAX_INT_BITS:
        raise Exhausted("a number is too large")


def check_text_call(
    name: str, text: str, args: Sequence[Any], kwargs: Mapping[str, Any], spend: Callable[[int], object]
) -> None:
    """Spend for a method of `str` what it makes or looks at. Raises `SecurityError` for one that nobody can bound."""
    if name in _PADDING and any(isinstance(arg, int) and arg > MAX_WIDTH for arg in (*args, *kwargs.values())):
        raise Exhausted("a padding is too wide")
    if name in _STRIPPING and any(text_size(arg) > MAX_WIDTH for arg in args):
        raise Exhausted("too many characters are to be stripped")
    if name == "expandtabs":
        spend(MAX_WIDTH * text.count("\t"))
    elif name == "replace" and len(args) >= 2:
        spend(replaced_size(text, args[0], args[1]))
    elif name == "join" and args:
        spend(len(text) * len(args[0]) + whole_size(args[0]))
    elif name in _PADDING or name in _STRIPPING or name in _LINEAR or name in ("replace", "join"):
        spend(len(text))
    else:
        raise SecurityError(f"str.{name} is not allowed")


def replaced_size(text: str, old: object, new: object) -> int:
    """The length of a text with all of `old` replaced."""
    return len(text) + text.count(str(old)) * len(str(new))


def _members(container: Any) -> list[Any]:
    """What a container holds. NOTE: a view's own pairs are made anew by each look, so their parts are taken."""
    if isinstance(container, _VIEWS):
        container = container.mapping
    if isinstance(container, Mapping):
        return [*container.keys(), *container.values()]
    return list(container)
