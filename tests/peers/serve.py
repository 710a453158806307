"""A gateway before an engine that does what the request's own words tell it to: `python -m tests.peers.serve`.

Prints one line of JSON, `{"url", "key"}`, and serves until its standard input ends. The engine is sent the last words
that were said (by the user, or a tool):

    weather …      calls the first tool, for Paris; given a tool's result, says "It is sunny."
    hold …         says "Hello", and then nothing more
    wrong …        refuses with 400
    busy NAME      refuses with 429 and `retry-after: 1`, the first time that it is told so by that name
    else           "Hello world"; where a JSON schema or a certain tool is asked for, `{"name": "Paris", "population": 2}`
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.gateway.inputs_kit import served
from tests.gateway.kit import MODEL, Engines, running_gateway, settings_for
from tests.scripted_engine import Reply, answer, sse, status

CITY = '{"name": "Paris", "population": 2}'
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 0}}
EMBEDDER = "text-embedding-3-small"


class ObedientEngine:
    """A script for every request."""

    def __init__(self):
        self._seen = set()

    def __call__(self, request):
        """The reply to this one."""
        asked = request.json
        if request.path.endswith(("/embeddings", "/tokenize")):
            return served()(request)
        role, said = _last(asked)
        if said.startswith("wrong"):
            return status(400)
        if said.startswith("busy") and said not in self._seen:
            self._seen.add(said)
            return status(429, headers={"retry-after": "1"})
        called = None if role == "tool" else _called(asked, said)
        return _call(request, called) if called else _told(asked, role, said)(request)


def _told(asked, role, said):
    if said.startswith("hold"):
        return answer("Hello", " world", gates={2 if asked.get("stream") else 0: asyncio.Event()})
    if role == "tool":
        return answer("It is ", "sunny.")
    if (asked.get("response_format") or {}).get("type") == "json_schema":
        return answer(CITY[:9], CITY[9:20], CITY[20:])
    return answer("Hello", " world")


def _last(asked):
    if "prompt" in asked:
        return "user", str(asked["prompt"])
    last = asked["messages"][-1]
    content = last["content"]
    if isinstance(content, list):
        content = next((part["text"] for part in content if part.get("type") == "text"), "")
    return last["role"], content or ""


def _called(asked, said):
    """(name of the tool to call, its arguments), or None."""
    if not asked.get("tools"):
        return None
    first = asked["tools"][0]["function"]["name"]
    if said.startswith("weather"):
        return first, '{"city": "Paris"}'
    choice = asked.get("tool_choice", "auto")
    is_forced = choice == "required" or isinstance(choice, dict)
    return (choice["function"]["name"] if isinstance(choice, dict) else first, CITY) if is_forced else None


def _call(request, called):
    name, arguments = called
    head = {"index": 0, "id": "call_a", "type": "function"}
    envelope = {"id": "chatcmpl-x", "created": 1_700_000_000, "model": request.json["model"]}
    if not request.json.get("stream"):
        call = {key: value for key, value in head.items() if key != "index"}
        call["function"] = {"name": name, "arguments": arguments}
        said = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
        choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": "tool_calls"}
        body = envelope | {"object": "chat.completion", "choices": [choice], "usage": USAGE}
        return Reply([json.dumps(body).encode()], headers=[("content-type", "application/json")])
    half = len(arguments) // 2
    deltas = [
        {"role": "assistant", "content": None},
        {"tool_calls": [head | {"function": {"name": name, "arguments": ""}}]},
        *(
            {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
            for piece in (arguments[:half], arguments[half:])
        ),
    ]
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"})
    chunk = envelope | {"object": "chat.completion.chunk"}
    events = [sse(json.dumps(chunk | {"choices": [choice]})) for choice in choices]
    events.append(sse(json.dumps(chunk | {"choices": [], "usage": USAGE})))
    return Reply([*events, sse("[DONE]")], headers=[("content-type", "text/event-stream")])


async def serve():
    """Until standard input ends."""
    engines = Engines(1)
    engines.all[0].fallback = ObedientEngine()
    models = [{"name": MODEL, "aliases": [EMBEDDER]}]
    with tempfile.TemporaryDirectory() as folder:
        async with engines.all[0]:
            settings = settings_for(engines, models=models, retries={"max_attempts": 1})
            async with running_gateway(settings, Path(folder) / "store.sqlite3", engines) as gateway:
                print(json.dumps({"url": gateway.url, "key": gateway.key, "model": MODEL}), flush=True)
                await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
