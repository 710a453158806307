"""Arguments written as elements, one for each parameter, turned into JSON by the types of the tool's schema. Pure."""

import json
from collections.abc import Generator, Mapping
from typing import Any

from engines.worker.output.calls import CallSink, NoCall, Step, solid, until

MAX_VALUE_CHARS = 1 << 20  # chosen; above any context's output


def read_parameters(sink: CallSink, name: str, first: str) -> Step:
    """`<parameter=KEY>VALUE</parameter>` elements up to `</function>` (Qwen3-Coder)."""
    arguments = _Arguments(sink, name)
    char = first
    while True:
        if char != "<":
            raise NoCall
        char = yield
        if char == "/":
            if (yield from until(">")) != "function":
                raise NoCall
            arguments.end()
            return
        if (yield from until("=", char)) != "parameter":
            raise NoCall
        key = (yield from until(">")).strip()
        arguments.add(key, (yield from until("</parameter>", limit=MAX_VALUE_CHARS)))
        char = yield from solid()


def read_arg_pairs(sink: CallSink, name: str) -> Step:
    """`<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` pairs up to `</tool_call>` (GLM)."""
    arguments = _Arguments(sink, name)
    while True:
        tag = yield from _tag()
        if tag == "/tool_call":
            arguments.end()
            return
        if tag != "arg_key":
            raise NoCall
        key = (yield from until("</arg_key>")).strip()
        if (yield from _tag()) != "arg_value":
            raise NoCall
        arguments.add(key, (yield from until("</arg_value>", limit=MAX_VALUE_CHARS)))


def _tag() -> Generator[None, str, str]:
    if (yield from solid()) != "<":
        raise NoCall
    return (yield from until(">"))


class _Arguments:
    """The JSON object that grows with each element."""

    def __init__(self, sink: CallSink, name: str) -> None:
        self._sink = sink
        properties = sink.tools[name].get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        self._keys: set[str] = set()

    def add(self, key: str, text: str) -> None:
        """One element, without the line breaks that lay it out."""
        if key in self._keys:
            raise NoCall
        opening = ", " if self._keys else "{"
        self._keys.add(key)
        value = _value(text.removeprefix("\n").removesuffix("\n"), self._properties.get(key))
        self._sink.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: {value}")

    def end(self) -> None:
        """The call is complete."""
        if self._keys:
            self._sink.arguments("}")
        self._sink.end()


def _value(text: str, schema: object) -> str:
    """The JSON of an element's text: a string where the schema wants one or says nothing, else what it reads as."""
    if _is_string(schema):
        return json.dumps(text, ensure_ascii=False)
    spelled = {"True": "true", "False": "false", "None": "null"}.get(text.strip(), text.strip())
    try:
        json.loads(spelled, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return spelled


def _is_string(schema: object) -> bool:
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if kind is None:
        return not any(key in schema for key in ("anyOf", "oneOf", "allOf", "$ref", "enum", "const"))
    return bool(kind == "string")


def _refuse_constant(constant: str) -> object:
    raise ValueError(constant)
