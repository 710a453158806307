"""Jinja's filters that could make or compute more than they are given, with their bounds. Each spends before it makes.

Filters get the environment, whose `spend` takes from the budget of the rendering.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jinja2
import jinja2.filters
from jinja2.exceptions import SecurityError

from engines.worker.template_sizes import MAX_WIDTH, Exhausted, check_number, replaced_size, size, text_size, whole_size

_MAX_DIGITS = 15  # to round to: a float has no more
_MAX_INDENT = 16  # of JSON; chosen


@jinja2.pass_environment
def join(environment: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Jinja's `join`, its length spent before the text is made."""
    if attribute is not None:
        getter = jinja2.filters.make_attrgetter(environment, attribute)
        value = map(getter, value)
    texts = []
    for item in value:
        environment.spend(1 + whole_size(item) + len(d))
        texts.append(str(item))
    return str(d).join(texts)


@jinja2.pass_environment
def replace(environment: Any, s: str, old: str, new: str, count: int | None = None) -> str:
    """Jinja's `replace`, its length spent before the text is made."""
    text = str(s)
    environment.spend(replaced_size(text, old, new))
    return text.replace(str(old), str(new), -1 if count is None else count)


@jinja2.pass_environment
def indent(environment: Any, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Jinja's `indent`, with a bounded width."""
    step = width if isinstance(width, str) else " " * min(width, MAX_WIDTH)
    environment.spend(len(s) + len(step) * (s.count("\n") + 1))
    return str(jinja2.filters.do_indent(s, step, first, blank))


def rounded(value: Any, precision: int = 0, method: Any = "common") -> Any:
    """Jinja's `round`, to digits that a number can have: ten to the power of any more takes for ever."""
    if abs(precision) > _MAX_DIGITS:
        raise Exhausted("a number is rounded to too many digits")
    check_number(value)
    return jinja2.filters.do_round(value, precision, method)


@jinja2.pass_environment
def total(environment: Any, iterable: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    """Jinja's `sum`, of numbers alone: a sum of lists copies what it has for each."""
    if attribute is not None:
        iterable = map(jinja2.filters.make_attrgetter(environment, attribute), iterable)
    for value in (start, *iterable):
        if not isinstance(value, int | float):
            raise SecurityError("only numbers are summed")
        environment.spend(1)
        start = value if value is start else start + value
        check_number(start)
    return start


@jinja2.pass_environment
def unique(
    environment: Any, value: Iterable[Any], case_sensitive: bool = False, attribute: str | int | None = None
) -> Iterator[Any]:
    """Jinja's `unique`, each item a step: keys can be chosen so that they collide."""

    def spending() -> Iterator[Any]:
        for item in value:
            environment.spend(1)
            yield item

    yield from jinja2.filters.do_unique(environment, spending(), case_sensitive, attribute)


@jinja2.pass_environment
def trim(environment: Any, value: str, chars: str | None = None) -> str:
    """Jinja's `trim`, of not too many characters: each of the text's is looked up among them."""
    if text_size(chars) > MAX_WIDTH:
        raise Exhausted("too many characters are to be stripped")
    environment.spend(whole_size(value))
    return str(jinja2.filters.do_trim(value, chars))


def refused_format(*_args: object, **_fields: object) -> str:
    """Jinja's `format`: refused, as `%` is."""
    raise SecurityError("formatting with % is not allowed")


@jinja2.pass_environment
def to_json(  # noqa: PLR0917  # the parameters of Hugging Face's filter
    environment: Any,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON that is read by a model, not by a browser: nothing is escaped for HTML."""
    width = min(indent, _MAX_INDENT) if isinstance(indent, int) else None
    environment.spend(whole_size(value) * (1 + sum(map(size, separators or ()))))
    if width is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=width, separators=separators, sort_keys=sort_keys
    )  # what is indented is written piece by piece, here as in `dumps`
    pieces = []
    for piece in encoder.iterencode(value):
        environment.spend(len(piece))
        pieces.append(piece)
    return "".join(pieces)


# Left out: they pad or build without bound, draw at random, or make HTML.
LEFT_OUT = (
    *("center", "wordwrap", "urlize", "xmlattr", "striptags", "pprint", "random", "filesizeformat", "batch", "slice"),
    *("wordcount", "urlencode", "groupby"),
)
BOUNDED: dict[str, Callable[..., Any]] = {
    "join": join,
    "replace": replace,
    "indent": indent,
    "round": rounded,
    "sum": total,
    "unique": unique,
    "trim": trim,
    "format": refused_format,
    "tojson": to_json,
}
# Do not look at all members of a list, which templates use in loops over that list.
CHEAP = frozenset({"length", "count", "first", "last", "default", "d", "items", "map", "select", "selectattr"})
