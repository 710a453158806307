"""What a client may ask an answer to look like, and the bounds of it that need no compiler. Pure.

A grammar is the client's program, so everything about it is bounded before it is compiled: its text, how deep it nests,
how many parts it has and how much its repetitions multiply. What is refused is refused with the place in it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from engines.worker.grammar_size import paren_depth, pattern_weight


class GrammarKind(Enum):
    """What the text of a spec is."""

    JSON_SCHEMA = "json_schema"  # a JSON schema, as JSON
    JSON_OBJECT = "json_object"  # no text: any JSON object
    REGEX = "regex"  # the whole answer matches it
    CHOICE = "choice"  # a JSON list of strings, one of which is the answer
    GRAMMAR = "grammar"  # Lark, or GBNF with `::=`
    STRUCTURAL = "structural"  # made by `structural_spec`


class GrammarError(Exception):
    """A grammar was not compiled. The message is one sentence that names the place in what the client sent.

    `is_callers_fault`: the same will be refused at any time; else the compiler was busy with others.
    """

    def __init__(self, message: str, *, is_callers_fault: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.is_callers_fault = is_callers_fault


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar as text. `strict`: what the compiler cannot enforce is an error; else it is left out."""

    kind: GrammarKind
    text: str = ""
    strict: bool = True

    @property
    def digest(self) -> bytes:
        """Equal specs have equal digests, and others do not."""
        head = f"{self.kind.value} {self.strict}\0"
        return hashlib.sha256(head.encode() + self.text.encode(errors="surrogatepass")).digest()


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """A part with a schema between two literal texts, such as a tool call. `schema`: JSON text, empty for any JSON."""

    begin: str
    schema: str
    end: str


class Structural(msgspec.Struct, frozen=True, kw_only=True):
    """Structures in free text. See `structural_spec`."""

    structures: list[Structure]
    triggers: list[str]
    required: bool
    separator: str | None


def structural_spec(
    structures: Sequence[Structure],
    triggers: Sequence[str] = (),
    *,
    required: bool = False,
    separator: str | None = "",
    strict: bool = True,
) -> GrammarSpec:
    """A spec for tool calls and the like: what begins like a structure must be one.

    Free text may stand before and between structures, until it holds one of `triggers`, each the beginning of some
    structure's `begin`; then one of those follows. `required`: no free text; at least one structure, others follow
    after `separator`, or none where that is None. Texts of control tokens in `begin` and `end` mean the tokens.
    """
    content = Structural(structures=list(structures), triggers=list(triggers), required=required, separator=separator)
    return GrammarSpec(GrammarKind.STRUCTURAL, msgspec.json.encode(content).decode(), strict)


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Bounds of one grammar; chosen so that the compiler, as measured, stays below some tenths of a second.

    `max_bytes`: its text. `max_depth`: nesting of a schema, brackets of a pattern. `max_parts`: values in a schema,
    strings in a choice. `max_weight`: what repetitions in one pattern multiply to, in characters.
    `max_multiple`: `multipleOf`, whose automaton has so many states. `timeout_s`: compiling, the wait for it included.
    `max_states`: of the lexer while it is used; each takes 1 to 2 kB.
    """

    max_bytes: int = 128 << 10
    max_depth: int = 64
    max_parts: int = 20_000
    max_weight: int = 50_000
    max_multiple: int = 10_000
    timeout_s: float = 5.0
    max_states: int = 20_000


def check_spec(spec: GrammarSpec, limits: GrammarLimits) -> None:
    """Raise `GrammarError` if the spec is malformed or beyond its bounds."""
    num_bytes = len(spec.text.encode(errors="replace"))
    if num_bytes > limits.max_bytes:
        raise GrammarError(f"The {_name(spec)} has {num_bytes} bytes; at most {limits.max_bytes} are allowed.")
    match spec.kind:
        case GrammarKind.JSON_OBJECT:
            return
        case GrammarKind.JSON_SCHEMA:
            check_schema(parse_schema(spec.text, "$"), limits, "$")
        case GrammarKind.CHOICE:
            read_choices(spec.text, limits)
        case GrammarKind.STRUCTURAL:
            structural = read_structural(spec.text)
            for index, structure in enumerate(structural.structures):
                if structure.schema:
                    place = f"structures[{index}].schema"
                    check_schema(parse_schema(structure.schema, place), limits, place)
        case GrammarKind.REGEX | GrammarKind.GRAMMAR:
            _check_pattern(spec.text, limits, f"The {_name(spec)}")


def parse_schema(text: str, place: str) -> dict[str, Any] | bool:
    """The schema's JSON."""
    try:
        schema = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise GrammarError(f"The schema at {place} is not JSON: {error}.") from None
    except RecursionError:
        raise GrammarError(f"The schema at {place} is nested too deeply.") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"The schema at {place} must be an object or a boolean.")
    return schema


def check_schema(schema: object, limits: GrammarLimits, place: str) -> None:
    """Raise `GrammarError` where a schema exceeds its bounds."""
    for count, (path, key, value, depth) in enumerate(_walk(schema, place)):
        if depth > limits.max_depth:
            raise GrammarError(f"The schema is nested more than {limits.max_depth} levels deep at {shown(path)}.")
        if count >= limits.max_parts:
            raise GrammarError(f"The schema has more than {limits.max_parts} values, counted up to {shown(path)}.")
        if key == "multipleOf" and isinstance(value, int | float) and not _is_small_multiple(value, limits):
            raise GrammarError(f"`multipleOf` at {shown(path)} must be at most {limits.max_multiple} in its digits.")
        if key == "pattern" and isinstance(value, str):
            _check_pattern(value, limits, f"`pattern` at {shown(path)}")
        if key == "patternProperties" and isinstance(value, dict):
            for pattern in value:
                _check_pattern(pattern, limits, f"A key of `patternProperties` at {shown(path)}")


def read_choices(text: str, limits: GrammarLimits) -> list[str]:
    """The strings of a choice."""
    try:
        choices = msgspec.json.decode(text, type=list[str])
    except (msgspec.DecodeError, RecursionError):
        raise GrammarError("A choice must be a list of strings.") from None
    if not choices or len(choices) > limits.max_parts:
        raise GrammarError(f"A choice must have 1 to {limits.max_parts} strings.")
    if not all(choices):
        raise GrammarError(f"String {choices.index('')} of the choice is empty.")
    return choices


def read_structural(text: str) -> Structural:
    """The structures of a spec."""
    try:
        structural = msgspec.json.decode(text, type=Structural)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"The structures are malformed: {error}.") from None
    if not structural.structures:
        raise GrammarError("There must be at least one structure.")
    if not structural.required:
        _check_triggers(structural)
    elif not all(structure.begin for structure in structural.structures):
        raise GrammarError("Each structure must have a `begin`.")
    return structural


def _check_triggers(structural: Structural) -> None:
    for index, structure in enumerate(structural.structures):
        if not any(trigger and structure.begin.startswith(trigger) for trigger in structural.triggers):
            raise GrammarError(f"`begin` of structures[{index}] starts with none of the triggers.")


def _walk(value: object, place: str) -> Iterator[tuple[str, str, object, int]]:
    """Every value of a document: its place, its key, itself and its depth."""
    pending: list[tuple[str, str, object, int]] = [(place, "", value, 0)]
    while pending:
        entry = pending.pop()
        yield entry
        path, _, value, depth = entry
        if isinstance(value, dict):
            pending.extend((f"{path}.{key}", key, child, depth + 1) for key, child in value.items())
        elif isinstance(value, list):
            pending.extend((f"{path}[{index}]", "", child, depth + 1) for index, child in enumerate(value))


def _is_small_multiple(value: float, limits: GrammarLimits) -> bool:
    """Whether its digits, the decimal point left out, are a small number: that many states an automaton has."""
    if not 0 < value < float("inf"):
        return True  # the compiler says what is wrong with it
    mantissa = json.dumps(value).lower().partition("e")[0].replace(".", "").strip("0")
    return int(mantissa or "0") <= limits.max_multiple and value <= limits.max_multiple


def _check_pattern(pattern: str, limits: GrammarLimits, subject: str) -> None:
    if paren_depth(pattern) > limits.max_depth:
        raise GrammarError(f"{subject} nests more than {limits.max_depth} brackets.")
    if pattern_weight(pattern) > limits.max_weight:
        raise GrammarError(f"{subject} repeats too much: multiplied out, its repetitions exceed {limits.max_weight}.")


def _name(spec: GrammarSpec) -> str:
    return {
        GrammarKind.JSON_SCHEMA: "JSON schema",
        GrammarKind.REGEX: "regular expression",
        GrammarKind.GRAMMAR: "grammar",
    }.get(spec.kind, spec.kind.value)


def shown(path: str) -> str:
    """A place, cut in the middle where it is long: paths are made of the client's keys."""
    return path if len(path) <= 200 else f"{path[:120]}...{path[-60:]}"
