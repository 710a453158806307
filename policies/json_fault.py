"""What is wrong with a JSON body, in words for whoever wrote it: the reader's own speak of types and paths. Pure."""

import re
from collections.abc import Callable

_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
_AT = re.compile(r" - at `[^`]*`$")


def _kinds(found: re.Match[str]) -> str:
    wanted = " or ".join(_KINDS.get(one, one) for one in found[1].split(" | "))
    return f"must be {wanted}, not {_KINDS.get(found[2], found[2])}"


def _bound(found: re.Match[str]) -> str:
    return f"must be {_BOUNDS[found[1]]} {float(found[2]):.15g}"


def _length(found: re.Match[str]) -> str:
    if (found[2], found[3]) == (">=", "1"):
        return "must not be empty"
    return f"must have {_BOUNDS[found[2]]} {found[3]} {'characters' if found[1] == 'str' else 'entries'}"


_SENTENCES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"Expected `([^`]+)`, got `([^`]+)`"), _kinds),
    (re.compile(r"Expected `(?:int|float)` ([<>]=?) (-?[\d.e+-]+)"), _bound),
    (re.compile(r"Expected `(\w+)` of length ([<>]=?) (\d+)"), _length),
    (re.compile(r"Expected `str` matching regex .*", re.DOTALL), lambda _: "has characters that may not be in it"),
    (re.compile(r"Object contains unknown field `([^`]*)`"), lambda found: f"there is no field {found[1]!r}"),
    (re.compile(r"Object missing required field `([^`]*)`"), lambda found: f"the field {found[1]!r} is missing"),
    (re.compile(r"Invalid enum value (.*)", re.DOTALL), lambda found: f"must be one of its values, not {found[1]}"),
    (re.compile(r"Number out of range"), lambda _: "is out of range"),
    (re.compile(r"Input data was truncated"), lambda _: "it is no whole JSON"),
)


def plainly(fault: str, field: str | None) -> str:
    """A reader's error as a sentence that begins with the field, where it is about one that is known."""
    bare = _AT.sub("", fault)
    for pattern, say in _SENTENCES:
        found = pattern.fullmatch(bare)
        if found:
            said = say(found)
            is_about_it = said.startswith(("must ", "has ", "is "))
            return f"{field or 'it'} {said}" if is_about_it else said
    return bare.replace("`", "")
