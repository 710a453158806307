"""From a spec to the text that llguidance compiles, and from its errors back to a place in the spec. Pure."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from engines.worker.grammar_spec import (
    GrammarError,
    GrammarKind,
    GrammarLimits,
    GrammarSpec,
    Structural,
    parse_schema,
    read_choices,
    read_structural,
    shown,
)

Schema = dict[str, Any] | bool
SpecialIds = Mapping[str, Sequence[int]]

# As long as it likes between values, but not for ever: small models get lost in blank lines.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"
_MAX_TRIALS = 200  # parts of a schema that are compiled to find an error's place; chosen


@dataclass(frozen=True, slots=True)
class Source:
    """What is compiled. `schemas` that are in it, with their places, for `locate`."""

    name: str
    text: str
    strict: bool = True
    schemas: tuple[tuple[str, Schema], ...] = ()


def source_of(spec: GrammarSpec, limits: GrammarLimits, special: SpecialIds) -> Source:
    """The source of a spec that `check_spec` has passed. `special`: token ids of control tokens' texts."""
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = parse_schema(spec.text, "$")
            return Source("JSON schema", _of_schema(schema, strict=spec.strict), spec.strict, (("$", schema),))
        case GrammarKind.JSON_OBJECT:
            return Source("JSON object", _of_schema({"type": "object"}, strict=True))
        case GrammarKind.REGEX:
            return Source("regular expression", LLMatcher.grammar_from_regex(spec.text))
        case GrammarKind.CHOICE:
            choices = " | ".join(json.dumps(choice) for choice in read_choices(spec.text, limits))
            return Source("choice", f"start: {choices}")
        case GrammarKind.GRAMMAR:
            return Source("grammar", _of_grammar(spec.text))
        case GrammarKind.STRUCTURAL:
            structural = read_structural(spec.text)
            schemas = tuple(_schemas_of(structural))
            text = _of_structures(structural, [schema for _, schema in schemas], special, strict=spec.strict)
            return Source("structure", text, spec.strict, schemas)


def locate(source: Source, error: str, error_of: Callable[[str], str]) -> str:
    """` at PLACE` of the innermost part of a schema that has this error by itself, or nothing.

    `error_of`: what compiling a text says, empty if nothing.
    """
    parts = [entry for place, schema in source.schemas for entry in _parts(schema, place)]
    for path, part in reversed(parts[:_MAX_TRIALS]):
        found = error_of(_of_schema(part, strict=source.strict))
        if found and error.endswith(found):
            return f" at {shown(path)}"
    return ""


def _parts(value: object, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects in a schema, each before those in it, and each with the schema's definitions, so that it stands alone."""
    shared = {key: value[key] for key in ("$defs", "definitions") if key in value} if isinstance(value, dict) else {}
    pending = [(path, value)]
    while pending:
        path, value = pending.pop(0)
        if isinstance(value, dict):
            yield path, {**shared, **value}
            pending.extend((f"{path}.{key}", child) for key, child in value.items())
        elif isinstance(value, list):
            pending.extend((f"{path}[{index}]", child) for index, child in enumerate(value))


def _of_schema(schema: dict[str, Any] | bool, *, strict: bool) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(_as_object(schema)), overrides=_options(strict=strict))


def _as_object(schema: Schema) -> dict[str, Any]:
    """A schema that options can be added to; nothing is an instance of a list of no values."""
    if isinstance(schema, dict):
        return schema
    return {} if schema else {"enum": []}


def _options(*, strict: bool) -> Any:
    return {"whitespace_pattern": _WHITESPACE, "lenient": not strict, "coerce_one_of": not strict}


def _of_grammar(text: str) -> str:
    if "::=" not in text:
        return LLMatcher.grammar_from_lark(text)
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(text))
    except GbnfToLarkError as error:
        raise GrammarError(f"The grammar cannot be read: {str(error)[:300]}.") from None
    except (RecursionError, ValueError, IndexError, KeyError, AttributeError, AssertionError) as error:
        raise GrammarError(f"The grammar cannot be read: {type(error).__name__}.") from None


def _schemas_of(structural: Structural) -> Iterator[tuple[str, Schema]]:
    for index, structure in enumerate(structural.structures):
        place = f"structures[{index}].schema"
        yield place, parse_schema(structure.schema, place) if structure.schema else True


def _of_structures(structural: Structural, schemas: Sequence[Schema], special: SpecialIds, *, strict: bool) -> str:
    """Lark with a rule for each structure. After a trigger, which free text reaches lazily, it must be one of them."""
    options = {"x-guidance": _options(strict=strict)}
    lines = ["%llguidance {}"]
    names = []
    for index, (structure, schema) in enumerate(zip(structural.structures, schemas, strict=True)):
        body = f"%json {json.dumps({**_as_object(schema), **options})}"
        end = _literal(structure.end, special)
        if structural.required:
            lines.append(f"tag_{index}: {_literal(structure.begin, special)} {body} {end}")
        else:
            trigger = max((t for t in structural.triggers if t and structure.begin.startswith(t)), key=len)
            rest = _literal(structure.begin[len(trigger) :], special)
            lines += _triggered(index, trigger, f"{rest} {body} {end}", special)
        names.append(f"tag_{index}")
    tags = " | ".join(names)
    if not structural.required:
        lines += [f"start: ({tags})* tag_end", "tag_end: TAG_TEXT", r"TAG_TEXT: /(.|\n)*/"]
    elif structural.separator is None:
        lines.append(f"start: {tags}")
    else:
        lines += [f"start: tag ({_literal(structural.separator, special)} tag)*", f"tag: {tags}"]
    return "\n".join(lines)


def _triggered(index: int, trigger: str, rest: str, special: SpecialIds) -> list[str]:
    literal = _literal(trigger, special)
    if literal.startswith("<["):  # a control token, which no text can hold
        return [f"tag_{index}: TAG_TEXT {literal} {rest}"]
    return [f"trigger_{index}[lazy]: TAG_TEXT {literal}", f"tag_{index}: trigger_{index} {rest}"]


def _literal(text: str, special: SpecialIds) -> str:
    """Lark for a text in which control tokens' texts mean the tokens."""
    known = sorted((name for name in special if name and len(special[name]) == 1), key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, known)) + ")", text) if known else [text]
    return " ".join(f"<[{special[part][0]}]>" if part in special else json.dumps(part) for part in parts if part)
