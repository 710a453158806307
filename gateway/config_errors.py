"""What is wrong with a configuration, one sentence each: where, which key, what it must be, what was meant. Pure.

Values are never repeated: one of them may hold a password. Knows pydantic's kinds of errors, and nothing of files.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

_MUST = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a table",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of sensible size",
    "int_type": "must be a whole number",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_attributes_type": "must be a section",
    "model_type": "must be a section",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "value_error": ": {error}",
}


def sentences(model: type[BaseModel], values: Mapping[str, Any], errors: Sequence[ErrorDetails]) -> Iterator[str]:
    """One sentence for each error of validating `values` as a `model`, in the order found."""
    for error in errors:
        yield _Mistake(model, values, error).sentence()


class _Mistake:
    def __init__(self, model: type[BaseModel], values: Mapping[str, Any], error: ErrorDetails) -> None:
        self._model = model
        self._values = values
        self._path = error["loc"]
        self._kind = error["type"]
        self._given = error.get("input")
        words = _MUST.get(self._kind)
        must = error["msg"] if words is None else words.format(**error.get("ctx", {}))
        self._must = must if must.startswith(": ") else f" {must}"

    def sentence(self) -> str:
        """Where it stands and what it must be."""
        if not self._path:
            return self._must.removeprefix(": ").strip()
        *above, key = self._path
        if self._kind == "extra_forbidden":
            return self._unknown(above, str(key))
        if self._kind == "missing":
            return f"{self._place(above)}{_quoted(key)} is missing"
        if not above:
            return f"{_title([str(key)], self._value_at([key]))}{self._must}"
        if len(self._path) == 2 and isinstance(key, int):
            return f"{self._place(self._path).removesuffix(': ')}{self._must}"
        keys = _keys_below(self._path)
        return f"{self._place(self._path[: len(self._path) - len(keys)])}{_dotted(keys)}{self._must}"

    def _unknown(self, above: Sequence[str | int], key: str) -> str:
        if isinstance(self._given, dict | list):
            title = _title([*map(str, above), key], self._given)
            return f"unknown section {title}{self._meant(above, key, is_section=True)}"
        return f"{self._place(above)}unknown key {_quoted(key)}{self._meant(above, key)}"

    def _place(self, path: Sequence[str | int]) -> str:
        """The section, and which of several by number and name."""
        if not path:
            return ""
        names = [str(part) for part in path if isinstance(part, str)]
        number = next((part for part in path if isinstance(part, int)), None)
        if number is None:
            return f"[{'.'.join(names)}] "
        item = self._value_at(path[: path.index(number) + 1])
        name = item.get("name") if isinstance(item, dict) else None
        called = f" {_quoted(name)}" if isinstance(name, str) and len(name) <= 128 and name.isprintable() else ""
        return f"[[{'.'.join(names)}]] number {number + 1}{called}: "

    def _value_at(self, path: Sequence[str | int]) -> Any:
        value: Any = self._values
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def _meant(self, above: Sequence[str | int], key: str, *, is_section: bool = False) -> str:
        """What was probably meant: a key of this section that is spelled alike, else another section's of this name."""
        known = _fields(self._model, above)
        near = difflib.get_close_matches(key.lower(), known, 1)
        if near:
            found = _title([*map(str, above), near[0]], self._given) if is_section else _quoted(near[0])
            return f"; did you mean {found}?"
        elsewhere = [section for section in self._model.model_fields if key in _fields(self._model, [section])]
        return f"; it is a key of [{elsewhere[0]}]" if elsewhere and not is_section else ""


def _fields(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys that may stand at a path of sections."""
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        found = field and _section_of(field.annotation, field.default)
        if not found:
            return []
        model = found
    return list(model.model_fields)


def _section_of(annotation: Any, default: Any) -> type[BaseModel] | None:
    if isinstance(default, BaseModel):
        return type(default)
    for one in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _keys_below(path: Sequence[str | int]) -> list[str | int]:
    """The part of a path below its section: `aliases`, 1 of `models`, 0, `aliases`, 1."""
    if isinstance(path[1], int):
        return list(path[2:])
    return list(path[2:]) if path[0] == "lanes" and len(path) > 2 else list(path[1:])


def _dotted(keys: Sequence[str | int]) -> str:
    """A key, and which of its items."""
    names = ".".join(str(part) for part in keys if isinstance(part, str))
    numbers = [part + 1 for part in keys if isinstance(part, int)]
    return f'"{names}"' + "".join(f" number {number}" for number in numbers)


def _title(path: Sequence[str], value: Any) -> str:
    name = ".".join(path)
    return f"[[{name}]]" if isinstance(value, list) else f"[{name}]"


def _quoted(key: Any) -> str:
    return f'"{key}"'
