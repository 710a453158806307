"""Requests sent at their times, whatever becomes of earlier ones (an open loop), with a bound on how many are open."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.replay.exchange import Clock, Heard, body_of, exchange
from gateway.replay.target import Target
from gateway.replay.trace_text import TextRequest

OnProgress = Callable[[int, int], Any]  # (answered, of those that failed)


@dataclass(frozen=True, slots=True)
class Pace:
    """`speed`: times as fast as recorded. `max_open`: at a time; what is due beyond waits, and its wait is in its TTFT.

    `timeout_s`: without a word from the other side. `ignores_end`: engines go on to the recorded length.
    """

    speed: float = 1.0
    max_open: int = 1000
    timeout_s: float = 600.0
    ignores_end: bool = True


async def play(
    requests: Iterable[TextRequest], target: Target, pace: Pace, on_progress: OnProgress, *,
    clock: Clock = time.perf_counter,
) -> list[Heard]:  # fmt: skip
    """Send all; what came of each, in order of arrival. A cancelled run leaves no request behind."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=pace.max_open)
    timeout = httpx.Timeout(pace.timeout_s, connect=min(30.0, pace.timeout_s))
    room, heard, counts = asyncio.Semaphore(pace.max_open), list[Heard](), [0, 0]
    headers = {"content-type": "application/json", **target.headers}

    async def send(request: TextRequest, due_at: float, number: int) -> None:
        try:
            body = body_of(target, request.prompt, request.output_tokens, ignores_end=pace.ignores_end)
            heard[number] = await exchange(client, target, body, due_at, clock)
        finally:
            room.release()
        counts[0] += 1
        counts[1] += bool(heard[number].fault)
        on_progress(*counts)

    async with (
        httpx.AsyncClient(limits=limits, timeout=timeout, headers=headers, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        start = clock()
        for number, request in enumerate(requests):
            due_at = start + request.due_s / pace.speed
            await asyncio.sleep(max(0.0, due_at - clock()))
            await room.acquire()
            heard.append(Heard(due_at, due_at))
            group.create_task(send(request, due_at, number))
    return heard
