"""Follows one JSON object or array character by character, without building it. Pure.

Two mistakes that models make are mended on the way, because what they meant is clear: raw control characters inside
strings, and a backslash before a character that needs none. Everything else that is not JSON is an error at once.
"""

import json
import re
from enum import Enum, auto

MAX_DEPTH = 128  # chosen; arguments of real tools stay below 10
WHITESPACE = " \t\r\n"
_MAX_TOKEN = 256  # characters of a number or key that are looked at; chosen
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = ("true", "false", "null")
_CLOSERS = {"{": "}", "[": "]"}
_HEX = frozenset("0123456789abcdefABCDEF")


class BrokenJson(ValueError):
    """The text is no JSON."""


class _State(Enum):
    VALUE = auto()
    ELEMENT_OR_END = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    AFTER = auto()  # a value inside something has ended
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    SCALAR = auto()
    DONE = auto()


class JsonScanner:
    """One value, which must be an object or an array. `key`: the last key of the outermost object, as JSON text."""

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._stack: list[str] = []
        self._is_key = False
        self._token = ""
        self._num_hex = 0
        self.key = ""

    @property
    def is_done(self) -> bool:
        """Whether the value is complete."""
        return self._state is _State.DONE

    @property
    def depth(self) -> int:
        """Objects and arrays that are open."""
        return len(self._stack)

    @property
    def expects_value(self) -> bool:
        """Whether the value of a key comes next."""
        return self._state is _State.VALUE

    @property
    def has_value(self) -> bool:
        """Whether a value inside the innermost object or array has just ended."""
        return self._state is _State.AFTER

    def feed(self, char: str) -> str:
        """Take one more character; the text that stands for it, mended. Raises `BrokenJson`."""
        match self._state:
            case _State.STRING:
                return self._in_string(char)
            case _State.ESCAPE:
                return self._escaped(char)
            case _State.HEX:
                return self._hex(char)
            case _State.SCALAR:
                if char not in ",]}" and char not in WHITESPACE:
                    self._token += char
                    self._check_scalar(is_complete=False)
                    return char
                self._check_scalar(is_complete=True)
                self._state = _State.AFTER
            case _State.DONE:
                raise BrokenJson("text behind the value")
            case _:
                pass
        if char not in WHITESPACE:
            self._structure(char)
        return char

    def _structure(self, char: str) -> None:
        state = self._state
        if state is _State.COLON:
            self._expect(char == ":")
            self._state = _State.VALUE
        elif state is _State.AFTER and char == ",":
            self._state = _State.KEY if self._stack[-1] == "{" else _State.VALUE
        elif state in (_State.AFTER, _State.ELEMENT_OR_END, _State.KEY_OR_END) and char == _CLOSERS[self._stack[-1]]:
            self._stack.pop()
            self._state = _State.AFTER if self._stack else _State.DONE
        elif state in (_State.KEY, _State.KEY_OR_END):
            self._expect(char == '"')
            self._state, self._is_key, self._token = _State.STRING, True, '"'
        else:
            self._expect(state in (_State.VALUE, _State.ELEMENT_OR_END))
            self._begin_value(char)

    def _begin_value(self, char: str) -> None:
        if char in _CLOSERS:
            self._expect(len(self._stack) < MAX_DEPTH)
            self._stack.append(char)
            self._state = _State.KEY_OR_END if char == "{" else _State.ELEMENT_OR_END
            return
        self._expect(bool(self._stack))
        if char == '"':
            self._state, self._is_key = _State.STRING, False
            return
        self._state, self._token = _State.SCALAR, char
        self._check_scalar(is_complete=False)

    def _in_string(self, char: str) -> str:
        if char == "\\":
            self._state = _State.ESCAPE
            return ""
        text = char if char >= " " else json.dumps(char)[1:-1]
        self._keep(text)
        if char == '"':
            self._end_string()
        return text

    def _end_string(self) -> None:
        if not self._is_key:
            self._state = _State.AFTER
            return
        self._state = _State.COLON
        if len(self._stack) == 1:
            self.key = self._token

    def _escaped(self, char: str) -> str:
        self._state = _State.STRING
        if char == "u":
            self._state, self._num_hex = _State.HEX, 0
        text = f"\\{char}" if char in '"\\/bfnrtu' else char if char == "'" else "\\\\" + json.dumps(char)[1:-1]
        self._keep(text)
        return text

    def _hex(self, char: str) -> str:
        self._expect(char in _HEX)
        self._num_hex += 1
        if self._num_hex == 4:
            self._state = _State.STRING
        self._keep(char)
        return char

    def _keep(self, text: str) -> None:
        if self._is_key and len(self._stack) == 1 and len(self._token) < _MAX_TOKEN:
            self._token += text

    def _check_scalar(self, *, is_complete: bool) -> None:
        token = self._token
        self._expect(len(token) <= _MAX_TOKEN)
        if token[0].isalpha():
            self._expect(token in _WORDS if is_complete else any(word.startswith(token) for word in _WORDS))
        else:
            self._expect(bool(_NUMBER.fullmatch(token)) if is_complete else token[-1] in "0123456789+-.eE")

    @staticmethod
    def _expect(claim: bool) -> None:
        if not claim:
            raise BrokenJson("this is not JSON")
