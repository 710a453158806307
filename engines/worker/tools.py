"""The tools a request offers and how they may be used, checked. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from engines.worker.errors import ApiError, invalid, unsupported
from engines.worker.schema import ChatRequest

MAX_TOOLS = 128  # OpenAI's
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # OpenAI's, and the dots that MCP servers use


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that may be called. `offered`: as the client wrote them, for the template.

    `schemas`: of each tool's parameters, by name, those that `tool_choice` leaves. `strict`: names whose arguments must
    follow their schema. `is_required`: the answer must be calls. `max_calls`: None is any number.
    """

    offered: tuple[object, ...]
    schemas: Mapping[str, Mapping[str, Any]]
    strict: frozenset[str]
    is_required: bool
    max_calls: int | None


class _Function(Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(Struct, kw_only=True):
    type: str
    function: _Function


def check_tools(request: ChatRequest) -> ToolUse | None:
    """The tools of a request, or None if none may be called. Raises `ApiError` 400."""
    functions = _functions(request.tools or [])
    choice = request.tool_choice
    if not functions:
        if choice not in (None, "auto", "none"):
            raise invalid("tool_choice", "`tool_choice` needs `tools`")
        return None
    if choice == "none":
        return None
    named = _named(choice, functions)
    schemas = {name: function.parameters or {} for name, function in functions.items() if named in (None, name)}
    is_single = named is not None or request.parallel_tool_calls is False
    return ToolUse(
        offered=tuple(request.tools or []),
        schemas=schemas,
        strict=frozenset(name for name in schemas if functions[name].strict),
        is_required=choice not in (None, "auto"),
        max_calls=1 if is_single else None,
    )


def _functions(tools: list[object]) -> dict[str, _Function]:
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"`tools` may hold at most {MAX_TOOLS} tools")
    functions: dict[str, _Function] = {}
    for index, raw in enumerate(tools):
        place = f"tools[{index}]"
        if isinstance(raw, dict) and raw.get("type", "function") != "function":
            raise invalid(
                f"{place}.type", f"`{place}.type`: only functions are supported", code="unsupported_parameter"
            )
        try:
            function = msgspec.convert(raw, _Tool).function
        except (msgspec.ValidationError, RecursionError) as error:
            raise _malformed(place, str(error)) from None
        if not _NAME.fullmatch(function.name):
            field = f"{place}.function.name"
            raise invalid(field, f"`{field}` must be 1 to 64 letters, digits or any of _ . -")
        if function.name in functions:
            raise invalid(f"{place}.function.name", f"`{place}.function.name`: another tool has this name")
        if not _is_of_object((function.parameters or {}).get("type", "object")):
            field = f"{place}.function.parameters"
            raise invalid(field, f"`{field}` must describe an object: its `type` is not object")
        functions[function.name] = function
    return functions


def _is_of_object(kind: object) -> bool:
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _malformed(place: str, problem: str) -> ApiError:
    text, _, path = problem.partition(" - at `$")
    where = place + path.rstrip("`")
    return invalid(where, f"`{where}`: {text[:1].lower()}{text[1:]}")


def _named(choice: str | dict[str, object] | None, functions: Mapping[str, _Function]) -> str | None:
    """The one tool that `tool_choice` asks for; None if any will do."""
    if choice is None or choice in ("auto", "required"):
        return None
    if isinstance(choice, str):
        raise invalid("tool_choice", "`tool_choice` must be none, auto, required or name a function")
    if choice.get("type") != "function":
        raise unsupported("tool_choice")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in functions:
        raise invalid("tool_choice", "`tool_choice` names none of the `tools`")
    return name
