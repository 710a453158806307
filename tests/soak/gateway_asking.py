"""One request sent to the gateway and read to its end, or left; and what its client knows of it."""

import asyncio
import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.soak.gateway_traffic import Ask

_PATIENCE_S = 20.0  # a connection that the gateway does not end by then is held for ever
_ENDS = ("[DONE]", "message_stop", "response.completed", "response.incomplete", "response.failed")


@dataclass
class Ending:
    """`status` 0: no answer came. `seen`: done, left, broken (a stream that told of an error) or none.

    `client_id`: the `x-request-id` it sent; of two pipelined requests both had it (`num_sent`).
    """

    kind: str
    client_id: str = field(default_factory=lambda: f"soak-{uuid.uuid4().hex}")
    num_sent: int = 1
    request_id: str | None = None
    status: int = 0
    seen: str = "none"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    response_id: str | None = None
    wrong: list[str] = field(default_factory=list)


async def ask(client: httpx.AsyncClient, wanted: Ask, key: str) -> Ending:
    """Send it. Never raises for what the gateway does."""
    ending = Ending(wanted.kind)
    headers = {"authorization": f"Bearer {key}", "x-request-id": ending.client_id, "x-warmlane-lane": wanted.lane}
    try:
        async with asyncio.timeout(wanted.leaves_after_s):
            await (_by_hand if wanted.raw else _exchange)(client, wanted, headers, ending)
    except TimeoutError:
        ending.seen = "left"
    except (httpx.HTTPError, OSError, KeyError, ValueError, TypeError) as error:
        if wanted.kind != "too large":  # the gateway may close before it has read it
            ending.wrong.append(f"{type(error).__name__}: {error}")
    return ending


async def _exchange(client: httpx.AsyncClient, wanted: Ask, headers: dict[str, str], ending: Ending) -> None:
    content = wanted.body if isinstance(wanted.body, bytes) else None
    given = wanted.body if isinstance(wanted.body, dict) else None
    method = "GET" if wanted.body is None else "POST"
    async with client.stream(method, wanted.path, content=content, json=given, headers=headers) as answer:
        ending.status, ending.request_id = answer.status_code, answer.headers.get("x-request-id")
        pieces = []
        async for piece in answer.aiter_text():
            pieces.append(piece)
            if wanted.pause_s:
                await asyncio.sleep(wanted.pause_s)
    text = "".join(pieces)
    if answer.status_code == 200 and wanted.is_streaming:
        read_stream(text, ending)
        return
    told = json.loads(text)
    ending.seen = "done"
    if answer.status_code == 200:
        _note(told, ending)
    elif "error" not in told:
        ending.wrong.append(f"a {answer.status_code} without an error: {text[:200]}")


def read_stream(text: str, ending: Ending) -> None:
    """What came of a stream: exactly one end, or an error that was told."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    objects = [json.loads(event) for event in events if event != "[DONE]"]
    is_broken = any(one.get("error") or one.get("type") in ("error", "response.failed") for one in objects)
    ends = events.count("[DONE]") + sum(one.get("type") in _ENDS for one in objects)
    for one in objects:
        _note(next((one[name] for name in ("response", "message") if isinstance(one.get(name), dict)), one), ending)
    ending.seen = "broken" if is_broken else "done"
    if not is_broken and ends != 1:
        ending.wrong.append(f"a stream with {ends} ends: {events[-1:]}")


def _note(told: dict[str, Any], ending: Ending) -> None:
    usage = told.get("usage")
    if isinstance(usage, dict):
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        cached = usage.get("cache_read_input_tokens") or 0  # Anthropic's input_tokens are without them
        ending.prompt_tokens = prompt + cached if prompt is not None else ending.prompt_tokens
        out = usage.get("completion_tokens", usage.get("output_tokens"))
        ending.completion_tokens = out if out is not None else ending.completion_tokens
    if told.get("object") == "response":
        ending.response_id = told["id"]


async def _by_hand(client: httpx.AsyncClient, wanted: Ask, headers: dict[str, str], ending: Ending) -> None:
    """Bytes on a connection of its own, that no HTTP client would send."""
    body = json.dumps(wanted.body).encode()
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([f"POST {wanted.path} HTTP/1.1", "host: soak", *lines, f"content-length: {len(body)}", "", ""])
    whole = head.encode() + body
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        sent = {"half a head": whole[:40], "half a body": whole[:-5], "nothing": b"", "two at once": whole + whole}
        writer.write(sent[wanted.raw])
        if wanted.raw == "nothing":
            ending.seen = "left"
        elif wanted.raw == "two at once":
            await _read_two(reader, ending)
        else:
            async with asyncio.timeout(_PATIENCE_S):
                told = await reader.read()
            ending.seen = "left"
            if told and not told.startswith(b"HTTP/1.1 4"):
                ending.wrong.append(f"half a request was answered {told[:100]!r}")
    except TimeoutError:
        ending.wrong.append("its connection was never ended")
    finally:
        writer.transport.abort()


async def _read_two(reader: asyncio.StreamReader, ending: Ending) -> None:
    ending.num_sent = 2
    async with asyncio.timeout(_PATIENCE_S):
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
    ending.seen = "answered twice"
