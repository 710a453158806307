"""Cuts the answers of our surfaces out of OpenAI's published description: `python -m tests.openai_schema.trim openapi.json`.

What is kept is what a validator reads; words for people go. See README.md for the two places where meaning is changed.
"""

import json
import sys
from pathlib import Path

ANSWERS = (
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "CreateEmbeddingResponse",
    "CreateTranscriptionResponseJson",
    "CreateTranscriptionResponseStreamEvent",
    "CreateTranscriptionResponseVerboseJson",
    "ErrorResponse",
    "ListModelsResponse",
    "Model",
    "Response",
    "ResponseItemList",
    "ResponseStreamEvent",
    "TokenCountsResource",
)
_FOR_PEOPLE = frozenset({"description", "title", "example", "examples", "deprecated", "default", "discriminator"})
_PLACE = "#/components/schemas/"


def trimmed(description):
    """All schemas that the answers reach, by name."""
    published = description["components"]["schemas"]
    found, waiting = {}, list(ANSWERS)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _without_words(published[name])
            waiting += _named_in(found[name])
    _let_streams_go_on(found)
    return dict(sorted(found.items()))


def _without_words(node):
    if isinstance(node, list):
        return [_without_words(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {
        name: {one: _without_words(schema) for one, schema in value.items()}
        if name == "properties"
        else _without_words(value)
        for name, value in node.items()
        if name not in _FOR_PEOPLE and not name.startswith("x-")
    }
    return {"anyOf": [kept, {"type": "null"}]} if kept.pop("nullable", False) else kept


def _named_in(node):
    if isinstance(node, list):
        return [name for one in node for name in _named_in(one)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"].removeprefix(_PLACE)] if "$ref" in node else []
    return own + [name for value in node.values() for name in _named_in(value)]


def _let_streams_go_on(found):
    """A chunk of a legacy completion has the whole answer's schema; its own text says which members are null there."""
    answer = found["CreateCompletionResponse"]["properties"]
    choice = answer["choices"]["items"]["properties"]
    for members, name in ((choice, "finish_reason"), (answer, "usage")):
        members[name] = {"anyOf": [members[name], {"type": "null"}]}


def main():
    description = json.loads(Path(sys.argv[1]).read_text())
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in trimmed(description).items()]
    Path(__file__).with_name("answers.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
