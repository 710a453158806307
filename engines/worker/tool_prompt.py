"""Tools told in words to a model whose template takes none: the stated fallback. Pure.

The tools go into the system message, calls into the assistant's text as Hermes' models write them, results into user
messages. The answer is then read in the same format.
"""

import json
from collections.abc import Sequence
from typing import Any

_OPENING = (
    "You can call functions. Their signatures, one JSON object a line:\n<tools>\n{tools}\n</tools>\n"
    "To call functions, answer with one block for each call and nothing else:\n"
    '<tool_call>\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n</tool_call>\n'
    "Call a function only if it helps; otherwise answer in plain words."
)


def with_tools_told(messages: list[dict[str, Any]], tools: Sequence[object]) -> list[dict[str, Any]]:
    """The messages of a template, with `tools` told in the first system message and no tool messages left."""
    told = _OPENING.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)) if tools else ""
    plain = [_plain(message) for message in messages]
    if told:
        if plain[0]["role"] == "system":
            head = {**plain[0], "content": f"{plain[0]['content']}\n\n{told}" if plain[0]["content"] else told}
            plain = [head, *plain[1:]]
        else:
            plain = [{"role": "system", "content": told}, *plain]
    return _joined(plain)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message in words alone."""
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{message['content']}\n</tool_response>",
            "is_result": True,
        }
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls]
    content = "\n".join([message["content"], *texts] if message["content"] else texts)
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring results in one message, since many templates want roles to alternate."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if message.get("is_result") and joined and joined[-1].get("is_result"):
            joined[-1]["content"] += "\n" + message["content"]
        else:
            joined.append(message)
    return [{key: value for key, value in message.items() if key != "is_result"} for message in joined]
