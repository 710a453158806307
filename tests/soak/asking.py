"""One request sent and read to its end, or left; and what is wrong with how it ended."""

import asyncio
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.soak.traffic import Ask


@dataclass
class Ending:
    """How one request ended for its client. `wrong`: sentences, empty if nothing is."""

    request_id: str
    kind: str
    has_left: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    wrong: list[str] = field(default_factory=list)


async def ask(client: httpx.AsyncClient, wanted: Ask) -> Ending:
    """Send it. Never raises for what the worker does."""
    ending = Ending(uuid.uuid4().hex, wanted.kind)
    try:
        async with asyncio.timeout(wanted.leaves_after_s):
            await _exchange(client, wanted, ending)
    except TimeoutError:
        ending.has_left = True
    except (httpx.HTTPError, KeyError, ValueError, TypeError) as error:
        ending.wrong.append(f"{type(error).__name__}: {error}")
    return ending


async def _exchange(client: httpx.AsyncClient, wanted: Ask, ending: Ending) -> None:
    headers = {"x-request-id": ending.request_id}
    if not wanted.body.get("stream"):
        answer = await client.post(wanted.path, json=wanted.body, headers=headers)
        if answer.status_code != 200:
            ending.wrong.append(f"status {answer.status_code}: {answer.text[:200]}")
            return
        _check_whole(wanted, ending, answer.json())
        return
    async with client.stream("POST", wanted.path, json=wanted.body, headers=headers) as answer:
        if answer.status_code != 200:
            ending.wrong.append(f"status {answer.status_code}: {(await answer.aread())[:200]!r}")
            return
        events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line.startswith("data: ")]
    _check_stream(wanted, ending, events)


def _check_whole(wanted: Ask, ending: Ending, answer: dict[str, Any]) -> None:
    if wanted.path == "/v1/embeddings":
        if len(answer["data"]) != wanted.num_choices:
            ending.wrong.append(f"{len(answer['data'])} vectors for {wanted.num_choices} texts")
        return
    choices = answer["choices"]
    finishes = {choice["index"]: [choice["finish_reason"]] for choice in choices}
    texts = [(choice.get("message") or {}).get("content") or "" for choice in choices]
    _check(wanted, ending, finishes, texts, answer["usage"])


def _check_stream(wanted: Ask, ending: Ending, events: list[str]) -> None:
    if events.count("[DONE]") != 1 or events[-1] != "[DONE]":
        ending.wrong.append(f"a stream of {len(events)} events with {events.count('[DONE]')} ends: {events[-1:]}")
        return
    finishes: dict[int, list[str]] = {}
    texts: dict[int, str] = {}
    usages = []
    for event in map(json.loads, events[:-1]):
        if event.get("usage"):
            usages.append(event["usage"])
        for choice in event["choices"]:
            index = choice["index"]
            texts[index] = texts.get(index, "") + ((choice.get("delta") or {}).get("content") or "")
            finishes.setdefault(index, []).extend([choice["finish_reason"]] if choice["finish_reason"] else [])
    if len(usages) != 1:
        ending.wrong.append(f"{len(usages)} usages in a stream")
        return
    _check(wanted, ending, finishes, texts.values(), usages[0])


def _check(
    wanted: Ask, ending: Ending, finishes: dict[int, list[str]], texts: Iterable[str], usage: dict[str, Any]
) -> None:
    if sorted(finishes) != list(range(wanted.num_choices)) or any(len(found) != 1 for found in finishes.values()):
        ending.wrong.append(f"{wanted.num_choices} choices ended so: {finishes}")
    ending.prompt_tokens, ending.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    ending.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    if wanted.is_unseen and ending.cached_tokens:
        ending.wrong.append(f"{ending.cached_tokens} cached tokens under a salt that was never used")
    if wanted.is_json and all(found == ["stop"] for found in finishes.values()):
        for text in texts:
            json.loads(text)
