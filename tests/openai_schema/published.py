"""OpenAI's published schema of its answers: `assert_valid("Response", body)`, `assert_valid_event(event)` of a response's stream."""

import functools
import json
from pathlib import Path

import jsonschema_rs

_ANSWERS = Path(__file__).with_name("answers.json")
_PLACE = "#/components/schemas/"


def assert_valid(name, value):
    """Fail with where and why, if it is not what OpenAI says it is."""
    errors = validator(name).iter_errors(value)
    found = [f"{'/'.join(str(step) for step in error.instance_path)}: {error.message}" for error in errors]
    assert not found, f"{name}\n" + "\n".join(found)[:2000]


def assert_valid_event(event):
    """The same, by the schema of the event's own type."""
    assert event["type"] in _events(), f"OpenAI knows no event {event['type']}"
    assert_valid(_events()[event["type"]], event)


@functools.cache
def validator(name):
    """The validator of one answer."""
    return jsonschema_rs.Draft202012Validator({"$ref": _PLACE + name, "components": {"schemas": _schemas()}})


@functools.cache
def _schemas():
    return json.loads(_ANSWERS.read_text())


@functools.cache
def _events():
    """Name of the schema by type of the event."""
    variants = [one["$ref"].removeprefix(_PLACE) for one in _schemas()["ResponseStreamEvent"]["anyOf"]]
    return {_schemas()[name]["properties"]["type"]["enum"][0]: name for name in variants}
