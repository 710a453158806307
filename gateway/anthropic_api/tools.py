"""Anthropic's tools and the choice among them, as a chat has them. Pure."""

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.anthropic_api.blocks import Chat, encode
from gateway.fields import is_longer, reader
from gateway.reading import check_object, read, wrong

MAX_TOOLS = 4096  # chosen: far above what a prompt can hold


class _Tool(Struct):
    """Tools that Anthropic runs itself have another `type`, and nobody to run them here."""

    name: str
    input_schema: Raw
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | UnsetType = UNSET


class _Choice(Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_tools = reader(list[_Tool])
_choice = reader(_Choice)
_WORDS = {"auto": "auto", "any": "required", "none": "none"}


def tool_fields(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """`tools`, `tool_choice` and `parallel_tool_calls` of the chat, those that there are. Raises `ClientError`."""
    if len(fields.get("tools", b"")) > MAX_TOOLS and is_longer(fields["tools"], MAX_TOOLS):
        raise wrong("tools", f"it may hold at most {MAX_TOOLS} tools")
    tools: list[_Tool] = read(fields, "tools", _tools) or []
    choice: _Choice | None = read(fields, "tool_choice", _choice)
    if not tools:
        if choice is not None and choice.type in ("any", "tool"):
            raise wrong("tool_choice", "there are no tools to choose from")
        return {}
    found = {"tools": Raw(encode([_function(tool, index) for index, tool in enumerate(tools)]))}
    if choice is not None:
        found["tool_choice"] = Raw(encode(_chosen(choice)))
        if choice.disable_parallel_tool_use is not None:
            found["parallel_tool_calls"] = Raw(encode(not choice.disable_parallel_tool_use))
    return found


def _function(tool: _Tool, index: int) -> Chat:
    check_object(tool.input_schema, f"tools[{index}].input_schema")
    function: Chat = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not UNSET:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _chosen(choice: _Choice) -> str | Chat:
    if choice.type != "tool":
        return _WORDS[choice.type]
    if not choice.name:
        raise wrong("tool_choice.name", "it must name the tool")
    return {"type": "function", "function": {"name": choice.name}}
