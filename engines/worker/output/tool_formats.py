"""The ways in which model families write tool calls: what announces one, and how it is read from there. Pure.

A family is a set of marks. Families that share a mark write different things behind it, which their first character
tells apart, so that one reader serves all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engines.worker.output.calls import (
    MAX_NAME_CHARS,
    CallSink,
    NoCall,
    Reader,
    read_arguments,
    read_calls,
    solid,
    until,
)
from engines.worker.output.json_scan import WHITESPACE
from engines.worker.output.tagged_arguments import read_arg_pairs, read_parameters

ReadCall = Callable[[CallSink], Reader]


@dataclass(frozen=True, slots=True)
class CallForm:
    """A call as a grammar enforces it: `begin` with NAME for the tool's name, the arguments as JSON, `end`.

    `trigger`: the start of `begin` that tells a call from other text. `separator`: between calls.
    """

    begin: str
    end: str
    trigger: str
    separator: str = "\n"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One family's way. `marks`: what announces calls; `layout`: marks around calls that mean nothing by themselves.

    `form`: how an enforced call is written. `reads_bare`: an answer that begins with a JSON call, without any mark, is
    one. `short_ids`: its template takes no call ids but those of nine letters and digits.
    """

    name: str
    marks: Mapping[str, ReadCall]
    form: CallForm
    layout: tuple[str, ...] = ()
    reads_bare: bool = True
    short_ids: bool = False

    @property
    def all_marks(self) -> tuple[str, ...]:
        """Every text that the format gives a meaning."""
        return (*self.marks, *self.layout)


def read_bare(sink: CallSink, first: str) -> Reader:
    """Calls that begin an answer without a mark: one or several objects, or an array."""
    yield from read_calls(sink, first, is_bare=True)
    return (yield from _more_calls(sink, is_bare=True))


def _more_calls(sink: CallSink, *, is_bare: bool) -> Reader:
    """Further objects behind a call, as Llama and small models separate them; returns what is none of it."""
    while True:
        between = ""
        while (char := (yield)) in WHITESPACE or char in ";,":
            between += char
        if char != "{":
            return between + char
        yield from read_calls(sink, char, is_bare=is_bare)


def _tag(sink: CallSink) -> Reader:
    """Behind `<tool_call>`: JSON (Hermes, Qwen, SmolLM), `<function=` (Qwen3-Coder) or a name and pairs (GLM)."""
    char = yield from solid()
    if char in "{[":
        yield from read_calls(sink, char)
        return ""
    sink.begin()
    if char == "<":
        if (yield from until("=", limit=9)) != "function":
            raise NoCall
        return (yield from _function(sink))
    name = (yield from until("\n", char)).strip()
    sink.name(name)
    yield from read_arg_pairs(sink, name)
    return ""


def _function(sink: CallSink) -> Reader:
    """Behind `<function=`: a name, then JSON (Functionary, Llama) or `<parameter=` elements (Qwen3-Coder)."""
    sink.begin()
    name = (yield from until(">")).strip()
    sink.name(name)
    char = yield from solid()
    if char == "{":
        yield from read_arguments(sink, char)
    else:
        yield from read_parameters(sink, name, char)
    return ""


def _mistral(sink: CallSink) -> Reader:
    """Behind `[TOOL_CALLS]`: an array of calls, or a name, perhaps an id, and arguments."""
    char = yield from solid()
    if char in "{[":
        yield from read_calls(sink, char)
        return ""
    sink.begin()
    name = char
    while (char := (yield)) not in "{[":
        name += char
        if len(name) > MAX_NAME_CHARS:
            raise NoCall
    sink.name(name.strip())
    while char == "[":
        if (yield from until("]")) not in ("ARGS", "CALL_ID"):
            raise NoCall
        while (char := (yield)) not in "{[":
            pass
    yield from read_arguments(sink, char)
    return ""


def _python_tag(sink: CallSink) -> Reader:
    """Behind `<|python_tag|>`: one or several JSON objects."""
    char = yield from solid()
    yield from read_calls(sink, char)
    return (yield from _more_calls(sink, is_bare=False))


def _deepseek(sink: CallSink) -> Reader:
    """Behind `<｜tool▁call▁begin｜>`: a name and arguments, or the word function, a name and a block of code."""
    sink.begin()
    head = (yield from until("<｜tool▁sep｜>")).strip()
    char = yield from solid()
    if char != "{":
        head = (yield from until("\n", char)).strip()
        while (char := (yield)) != "{":
            if char not in "`json" and char not in WHITESPACE:
                raise NoCall
    sink.name(head)
    yield from read_arguments(sink, char)
    while (char := (yield)) in "`\n":
        pass
    return char


_TAGGED = CallForm('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "<tool_call>")
_BARE = CallForm('{"name": "NAME", "arguments": ', "}", '{"name": "')
_LLAMA = CallForm('{"name": "NAME", "parameters": ', "}", '{"name": "', "; ")
_FUNCTION = CallForm("<function=NAME>", "</function>", "<function=", "")
_IN_ARRAY = CallForm('[TOOL_CALLS][{"name": "NAME", "arguments": ', "}]", "[TOOL_CALLS]", "")
_WITH_ARGS = CallForm("[TOOL_CALLS]NAME[ARGS]", "", "[TOOL_CALLS]", "")
_DEEPSEEK = CallForm("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>", "")
_DEEPSEEK_R1 = CallForm(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
    "\n```<｜tool▁call▁end｜>",
    "<｜tool▁call▁begin｜>",
)
_GRANITE = CallForm('<|tool_call|>[{"name": "NAME", "arguments": ', "}]", "<|tool_call|>", "")
_DEEPSEEK_MARKS = {"<｜tool▁call▁begin｜>": _deepseek}
_DEEPSEEK_LAYOUT = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>")

HERMES = ToolFormat("hermes", {"<tool_call>": _tag}, _TAGGED, ("</tool_call>",))
GLM = ToolFormat("glm", {"<tool_call>": _tag}, _TAGGED, ("</tool_call>",))
QWEN_CODER = ToolFormat(
    "qwen-coder", {"<tool_call>": _tag, "<function=": _function}, _TAGGED, ("</tool_call>", "</function>")
)
LLAMA = ToolFormat("llama", {"<|python_tag|>": _python_tag, "<function=": _function}, _LLAMA, ("</function>",))
FUNCTIONARY = ToolFormat("functionary", {"<function=": _function}, _FUNCTION, ("</function>",))
MISTRAL = ToolFormat("mistral", {"[TOOL_CALLS]": _mistral}, _IN_ARRAY, reads_bare=False, short_ids=True)
MISTRAL_ARGS = ToolFormat("mistral-args", {"[TOOL_CALLS]": _mistral}, _WITH_ARGS, reads_bare=False, short_ids=True)
DEEPSEEK_R1 = ToolFormat("deepseek-r1", _DEEPSEEK_MARKS, _DEEPSEEK_R1, _DEEPSEEK_LAYOUT)
DEEPSEEK = ToolFormat("deepseek", _DEEPSEEK_MARKS, _DEEPSEEK, _DEEPSEEK_LAYOUT)
GRANITE = ToolFormat("granite", {"<|tool_call|>": _tag}, _GRANITE, ("<|/tool_call|>",))
PLAIN_JSON = ToolFormat("json", {}, _BARE)

FORMATS = {
    found.name: found
    for found in (
        *(HERMES, GLM, QWEN_CODER, GRANITE, LLAMA, FUNCTIONARY, MISTRAL, MISTRAL_ARGS),
        *(DEEPSEEK_R1, DEEPSEEK, PLAIN_JSON),
    )
}

# What a template says of its family; the first of which all is there counts.
_SIGNS = (
    (("[TOOL_CALLS]", "[ARGS]"), MISTRAL_ARGS),
    (("[TOOL_CALLS]",), MISTRAL),
    (("<｜tool▁call▁begin｜>", "```json"), DEEPSEEK_R1),
    (("<｜tool▁call▁begin｜>",), DEEPSEEK),
    (("<arg_key>",), GLM),
    (("<parameter=",), QWEN_CODER),
    (("<tool_call>",), HERMES),
    (("<|tool_call|>",), GRANITE),
    (("<|python_tag|>",), LLAMA),
    (("<function=",), FUNCTIONARY),
)


def format_of(template: str, special_texts: frozenset[str] = frozenset()) -> ToolFormat:
    """The format of the model with this template; one that takes no tools is asked for Hermes' by us.

    Llama's smaller templates show only their JSON, so their vocabulary is asked too.
    """
    for signs, found in _SIGNS:
        if all(sign in template for sign in signs):
            return found
    if "<|python_tag|>" in special_texts:
        return LLAMA
    return PLAIN_JSON if "tools" in template else HERMES
