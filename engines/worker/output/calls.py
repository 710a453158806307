"""Tool calls on their way out, and the ways in which models write one call. Pure.

A reader is a generator that is sent one character after another; it returns what it read too much when the call has
ended, and raises `NoCall` when this is none. Readers never look ahead for longer than a call lasts.
"""

import json
from collections.abc import Generator, Mapping
from typing import Any

from engines.worker.output.json_scan import WHITESPACE, BrokenJson, JsonScanner
from engines.worker.output.parts import CallArguments, CallStart, Part

Reader = Generator[None, str, str]
Step = Generator[None, str, None]
MAX_NAME_CHARS = 128  # chosen; OpenAI's bound for names is 64
_NAME_KEYS, _ARGUMENT_KEYS = ('"name"', '"function"'), ('"arguments"', '"parameters"')
_OTHER_KEYS = ('"id"', '"type"', '"tool_call_id"')


class NoCall(ValueError):
    """What was read is not a call of an offered tool."""


class CallSink:
    """Where readers put calls. `tools`: the parameters' schema of each tool offered.

    A call is announced with its name when its arguments begin, so that an announced call is never empty.
    `has_open`: an announced call has not ended. `num_calls`: announced so far. `num_settled`: grows whenever all that
    was read so far has found its place.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self.tools = tools
        self.parts: list[Part] = []
        self.num_calls = 0
        self.num_ended = 0
        self.num_settled = 0
        self._name: str | None = None
        self._held: list[str] = []  # arguments that came before the name

    @property
    def has_open(self) -> bool:
        """Whether an announced call has not ended."""
        return self.num_calls > self.num_ended

    def begin(self) -> None:
        """Forget what was held of a call that was never announced."""
        self._name, self._held = None, []

    def name(self, name: str) -> None:
        """The name of the call. Raises `NoCall` when no such tool is offered."""
        if self._name is not None or name not in self.tools:
            raise NoCall
        self._name = name
        held, self._held = self._held, []
        if held:
            self.arguments("".join(held))

    def arguments(self, text: str) -> None:
        """More of the call's arguments."""
        if self._name is None:
            self._held.append(text)
            return
        if not self.has_open:
            self.parts.append(CallStart(self.num_calls, self._name))
            self.num_calls += 1
        self.parts.append(CallArguments(self.num_calls - 1, text))

    def end(self) -> None:
        """The call is complete; without arguments it has none. Raises `NoCall` when it has no name."""
        if self._name is None:
            raise NoCall
        if not self.has_open:
            self.arguments("{}")
        self.num_ended += 1
        self.settle()
        self.begin()

    def settle(self) -> None:
        """What was read since the last call needs no place of its own."""
        self.num_settled += 1

    def give_up(self) -> int | None:
        """The index of the call that was announced and has not ended, which now never will."""
        self.begin()
        if not self.has_open:
            return None
        self.num_ended += 1
        return self.num_calls - 1


def take_parts(sink: CallSink) -> list[Part]:
    """What the sink has got since the last time."""
    parts, sink.parts = sink.parts, []
    return parts


def solid() -> Generator[None, str, str]:
    """The next character that is not white space."""
    char = yield
    while char in WHITESPACE:
        char = yield
    return char


def until(end: str, first: str = "", limit: int = MAX_NAME_CHARS) -> Generator[None, str, str]:
    """The text before `end`, which is read too. Raises `NoCall` beyond `limit` characters."""
    text = first
    while not text.endswith(end):
        if len(text) > limit + len(end):
            raise NoCall
        text += yield
    return text[: -len(end)]


def read_arguments(sink: CallSink, first: str) -> Step:
    """A JSON object whose text is the arguments, and the end of the call."""
    if first != "{":
        raise NoCall
    scanner, char = JsonScanner(), first
    while True:
        sink.arguments(_fed(scanner, char))
        if scanner.is_done:
            sink.end()
            return
        char = yield


def read_call(sink: CallSink, first: str, *, is_bare: bool = False) -> Step:
    """A JSON object with the call's name and arguments. `is_bare`: nothing announced it, so strange keys mean none."""
    if first != "{":
        raise NoCall
    sink.begin()
    scanner, char = JsonScanner(), first
    while True:
        if scanner.depth == 1 and scanner.expects_value and char not in WHITESPACE:
            yield from _read_value(sink, scanner, char, is_bare=is_bare)
        else:
            _fed(scanner, char)
        if scanner.is_done:
            sink.end()
            return
        char = yield


def _read_value(sink: CallSink, scanner: JsonScanner, first: str, *, is_bare: bool) -> Step:
    """The value of one key of a call."""
    key = scanner.key
    is_name = key in _NAME_KEYS and first == '"'
    is_arguments = key in _ARGUMENT_KEYS and first in '{"'
    if not (is_name or is_arguments):
        if key in (_NAME_KEYS[0], *_ARGUMENT_KEYS) and first != "n":  # null is as good as absent
            raise NoCall
        if is_bare and key not in (*_NAME_KEYS, *_ARGUMENT_KEYS, *_OTHER_KEYS):
            raise NoCall
        _fed(scanner, first)
        return
    pieces, char = [], first
    while True:
        piece = _fed(scanner, char)
        if is_arguments and first == "{":
            sink.arguments(piece)
        else:
            pieces.append(piece)
        if scanner.depth == 1 and scanner.has_value:
            break
        char = yield
    if is_name:
        sink.name(str(json.loads("".join(pieces))))
    elif first == '"':
        sink.arguments(_object_in_string("".join(pieces)))


def _object_in_string(text: str) -> str:
    """Arguments that the model wrote as JSON inside a string."""
    inner = str(json.loads(text))
    try:
        inner.encode()  # half of a surrogate pair, which JSON can name, is no text
        is_object = isinstance(json.loads(inner), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise NoCall
    return inner


def read_calls(sink: CallSink, first: str, *, is_bare: bool = False) -> Step:
    """One call, or an array of them."""
    if first != "[":
        yield from read_call(sink, first, is_bare=is_bare)
        return
    while True:
        char = yield from solid()
        yield from read_call(sink, char, is_bare=is_bare)
        char = yield from solid()
        if char == "]":
            sink.settle()
            return
        if char != ",":
            raise NoCall


def _fed(scanner: JsonScanner, char: str) -> str:
    try:
        return scanner.feed(char)
    except BrokenJson as error:
        raise NoCall from error
