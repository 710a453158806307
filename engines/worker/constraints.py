"""What an answer must look like, out of the several fields that can say so. Pure; compiling is `grammars`'.

One field may constrain an answer; tools constrain it when a call is required or a tool is strict.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from engines.worker.composed_grammars import ReasoningTokens
from engines.worker.errors import invalid, unsupported
from engines.worker.grammar_spec import GrammarKind, GrammarSpec, Structure, structural_spec
from engines.worker.output.tool_formats import CallForm
from engines.worker.schema import GenerationFields
from engines.worker.tools import ToolUse


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar that the answer follows, and the field it comes from.

    `calls`: tool calls that may stand instead. `reasoning`: the model may reason before it.
    """

    spec: GrammarSpec
    param: str
    calls: GrammarSpec | None = None
    reasoning: ReasoningTokens | None = None


def constraint_of(
    request: GenerationFields, tools: ToolUse | None = None, form: CallForm | None = None
) -> Constraint | None:
    """The constraint of a request; None if any text will do. Raises `ApiError` 400 naming the field."""
    wanted = _wanted(request)
    if tools is None or form is None:
        return wanted
    if tools.is_required:
        if wanted is not None:
            raise invalid(wanted.param, f"`{wanted.param}` excludes a `tool_choice` that requires a call")
        return Constraint(calls_spec(tools, form, is_required=True), "tools")
    if wanted is not None:
        return Constraint(wanted.spec, wanted.param, calls_spec(tools, form, is_required=True))
    return Constraint(calls_spec(tools, form, is_required=False), "tools") if tools.strict else None


def calls_spec(tools: ToolUse, form: CallForm, *, is_required: bool) -> GrammarSpec:
    """Tool calls as a grammar. Unless required, other text may stand before and between them."""
    structures = [
        Structure(begin=form.begin.replace("NAME", name), schema=json.dumps({**schema, "type": "object"}), end=form.end)
        for name, schema in tools.schemas.items()
    ]
    return structural_spec(
        structures,
        [form.trigger],
        required=is_required,
        separator=None if tools.max_calls == 1 else form.separator,
        strict=bool(tools.strict),
    )


def _wanted(request: GenerationFields) -> Constraint | None:
    found = [
        Constraint(spec, param)
        for param, spec in (
            ("response_format", _response_format(request.response_format)),
            ("structured_outputs", _structured_outputs(request.structured_outputs)),
            ("guided_json", _schema("guided_json", request.guided_json)),
            ("guided_regex", _text(GrammarKind.REGEX, request.guided_regex)),
            ("guided_choice", _choice(request.guided_choice)),
            ("guided_grammar", _text(GrammarKind.GRAMMAR, request.guided_grammar)),
            ("json_schema", _schema("json_schema", request.json_schema)),
            ("grammar", _text(GrammarKind.GRAMMAR, request.grammar)),
        )
        if spec is not None
    ]
    if len(found) > 1:
        raise invalid(found[1].param, f"`{found[1].param}` excludes `{found[0].param}`")
    return found[0] if found else None


def _response_format(wish: Mapping[str, object] | None) -> GrammarSpec | None:
    if wish is None or wish.get("type") == "text":
        return None
    if wish.get("type") == "json_object":
        schema = wish.get("schema")  # llama-server's extra
        return GrammarSpec(GrammarKind.JSON_OBJECT) if schema is None else _schema("response_format", schema)
    if wish.get("type") != "json_schema":
        raise invalid("response_format", "`response_format.type` must be text, json_object or json_schema")
    described = wish.get("json_schema")
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        raise invalid("response_format", "`response_format.json_schema.schema` must be an object")
    return _schema("response_format", described["schema"], strict=described.get("strict") is True)


def _structured_outputs(wish: Mapping[str, object] | None) -> GrammarSpec | None:
    """vLLM's: exactly one kind."""
    wishes = {kind: value for kind, value in (wish or {}).items() if value is not None and value is not False}
    kinds = [kind for kind in wishes if kind in ("json", "regex", "choice", "grammar", "json_object", "structural_tag")]
    if not kinds:
        return None
    if len(kinds) > 1:
        raise invalid("structured_outputs", "`structured_outputs` may hold one kind only")
    kind, value = kinds[0], wishes[kinds[0]]
    if kind == "structural_tag":
        raise unsupported("structured_outputs")
    if kind == "json_object":
        return GrammarSpec(GrammarKind.JSON_OBJECT)
    if kind == "json":
        return _schema("structured_outputs", value)
    if kind == "choice" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return _choice(value)
    if kind == "choice" or not isinstance(value, str):
        raise invalid("structured_outputs", f"`structured_outputs.{kind}` has the wrong type")
    return _text(GrammarKind.REGEX if kind == "regex" else GrammarKind.GRAMMAR, value)


def _schema(param: str, schema: object, *, strict: bool = True) -> GrammarSpec | None:
    """Of an object, or of a text that is one, as vLLM takes it."""
    if schema is None:
        return None
    if not isinstance(schema, dict | str | bool):
        raise invalid(param, f"`{param}` must hold a JSON schema")
    return GrammarSpec(GrammarKind.JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema), strict)


def _choice(choices: list[str] | None) -> GrammarSpec | None:
    return None if choices is None else GrammarSpec(GrammarKind.CHOICE, json.dumps(choices))


def _text(kind: GrammarKind, text: str | None) -> GrammarSpec | None:
    return GrammarSpec(kind, text) if text else None
