"""A response's tools, the choice among them and the form of its text, as a chat has them. Pure."""

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.fields import is_longer, reader
from gateway.reading import check_object, read, read_at, wrong
from gateway.responses_api.items import Chat, encode

MAX_TOOLS = 4096  # chosen: far above what a prompt can hold


class _Kind(Struct):
    type: str


class _Function(Struct):
    name: str
    parameters: Raw = Raw(b"null")
    description: str | None = None
    strict: bool | UnsetType | None = UNSET


class _SaidTool(Struct):
    type: str
    name: str
    parameters: Raw = Raw(b"null")
    strict: bool | None = None
    description: str | UnsetType | None = UNSET


class _Chosen(Struct):
    type: str
    name: str | None = None


class _Format(Struct):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Raw = Raw()
    description: str | None = None
    strict: bool | None = None


class _Text(Struct):
    format: _Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class _SaidText(Struct):
    format: Raw = Raw()
    verbosity: str | None = None


_tools = reader(list[Raw])
_kinds = reader(list[_Kind])
_tool_kind = reader(_Kind)
_function = reader(_Function)
_choice = reader(str | _Chosen)
_text = reader(_Text)
_said_text = reader(_SaidText)
_flag = reader(bool)
_said_tool = reader(_SaidTool)


def tool_fields(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """`tools`, `tool_choice` and `parallel_tool_calls` of the chat, those that there are. Raises `ClientError`."""
    if len(fields.get("tools", b"")) > MAX_TOOLS:
        if is_longer(fields["tools"], MAX_TOOLS):
            raise wrong("tools", f"it may hold at most {MAX_TOOLS} tools")
        read(fields, "tools", _kinds)  # a million of what are no tools are not made
    tools: list[Raw] = read(fields, "tools", _tools) or []
    choice: str | _Chosen | None = read(fields, "tool_choice", _choice)
    is_parallel: bool | None = read(fields, "parallel_tool_calls", _flag)
    chosen = None if choice is None else _chosen(choice)
    if not tools:
        if chosen not in (None, "auto", "none"):
            raise wrong("tool_choice", "there are no tools to choose from")
        return {}
    found = {"tools": Raw(encode([_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]))}
    if chosen is not None:
        found["tool_choice"] = Raw(encode(chosen))
    if is_parallel is not None:
        found["parallel_tool_calls"] = Raw(encode(is_parallel))
    return found


def told_tools(fields: Mapping[str, Raw]) -> list[_SaidTool]:
    """Tools that were read before, as a response says them again: with all that a client's schema requires."""
    tools: list[Raw] = read(fields, "tools", _tools) or []
    return [read_at(f"tools[{index}]", tool, _said_tool) for index, tool in enumerate(tools)]


def told_text(fields: Mapping[str, Raw]) -> dict[str, Raw | str]:
    """`text` that was read before, as a response says it again."""
    said: _SaidText = read(fields, "text", _said_text)
    form = Raw(b'{"type":"text"}') if bytes(said.format) in (b"", b"null") else said.format
    return {"format": form} | ({} if said.verbosity is None else {"verbosity": said.verbosity})


def format_fields(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """`response_format` and `verbosity` of the chat. Raises `ClientError`."""
    text: _Text | None = read(fields, "text", _text)
    if text is None:
        return {}
    found = {} if text.verbosity is None else {"verbosity": Raw(encode(text.verbosity))}
    wanted = text.format
    if wanted is None or wanted.type == "text":
        return found
    if wanted.type == "json_object":
        return found | {"response_format": Raw(b'{"type":"json_object"}')}
    check_object(wanted.schema, "text.format.schema")
    if not wanted.name:
        raise wrong("text.format.name", "it must name the schema")
    schema: Chat = {"name": wanted.name, "schema": wanted.schema}
    schema |= {} if wanted.description is None else {"description": wanted.description}
    schema |= {} if wanted.strict is None else {"strict": wanted.strict}
    return found | {"response_format": Raw(encode({"type": "json_schema", "json_schema": schema}))}


def _tool(raw: Raw, path: str) -> Chat:
    kind: _Kind = read_at(path, raw, _tool_kind)
    if kind.type != "function":
        raise wrong(f"{path}.type", f"nobody here runs {kind.type[:64]}: tools are functions that the caller runs")
    tool: _Function = read_at(path, raw, _function)
    function: Chat = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if bytes(tool.parameters) != b"null":
        check_object(tool.parameters, f"{path}.parameters")
        function["parameters"] = tool.parameters
    if tool.strict is not UNSET and tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _chosen(choice: str | _Chosen) -> str | Chat:
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise wrong("tool_choice", "it must be auto, none, required or a function")
        return choice
    if choice.type != "function":
        raise wrong("tool_choice.type", f"{choice.type[:64]} cannot be chosen here: only a function")
    if not choice.name:
        raise wrong("tool_choice.name", "it must name the function")
    return {"type": "function", "function": {"name": choice.name}}
