"""A closed loop of clients: each connection sends its next request when the last answer has ended.

    python -m tests.benchmarks.load --url http://127.0.0.1:8080 --key wl-… --workload small --pid 1234

Prints one JSON object: rates, latencies in ms, and the CPU that the `--pid` process and its children used meanwhile.
Raw like the mock, so that the generator is not the bottleneck.
"""

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import httptools
import uvloop

from tests.benchmarks.processes import cpu_s, family, memory_mb
from tests.benchmarks.workloads import WORKLOADS, Workload

_STAMP = re.compile(rb"t=(\d+) ")
_MAX_ERRORS = 100  # after which a run is worth nothing


class Measurement:
    """What is counted while `is_on`. Times in ms. A chunk is one event, the end marker not counted."""

    def __init__(self) -> None:
        self.is_on = False
        self.num_requests = 0
        self.num_chunks = 0
        self.num_errors = 0
        self.last_error = ""
        self.ttft_ms: list[float] = []
        self.total_ms: list[float] = []
        self.transit_ms: list[float] = []

    def failed(self, what: str) -> None:
        self.num_errors += 1
        self.last_error = what[:300]


class Client(asyncio.Protocol):
    """One connection of the loop."""

    def __init__(
        self, requests: list[bytes], workload: Workload, found: Measurement, first: int, every_s: float = 0.0
    ) -> None:
        self._requests = requests
        self._workload = workload
        self._found = found
        self._turn = first
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._tail = b""
        self._first_at: float | None = None
        self._turn += 1
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests[self._turn % len(self._requests)])

    def data_received(self, data: bytes) -> None:
        self._received_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._found.failed(f"not HTTP: {error}")
            self._transport.close()

    def on_body(self, data: bytes) -> None:
        if self._first_at is None:
            self._first_at = time.perf_counter()
        self._tail = data[-300:]
        if self._found.is_on and self._workload.is_streaming:
            self._found.num_chunks += data.count(b"\n\ndata:") + data.startswith(b"data:")
            for stamp in _STAMP.findall(data):
                self._found.transit_ms.append((self._received_ns - int(stamp)) / 1e6)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        status = self._parser.get_status_code()
        if status != 200 or (self._workload.is_streaming and b"[DONE]" not in self._tail):
            self._found.failed(f"{status} {self._tail!r}")
        elif self._found.is_on:
            self._found.num_requests += 1
            self._found.num_chunks -= self._workload.is_streaming  # [DONE]
            self._found.total_ms.append((now - self._sent_at) * 1e3)
            self._found.ttft_ms.append(((self._first_at or now) - self._sent_at) * 1e3)
        if self._found.num_errors < _MAX_ERRORS and self._parser.should_keep_alive():
            self._due = max(self._due + self._every_s, self._loop.time())
            self._loop.call_at(self._due, self._send)
        else:
            self._transport.close()


def requests_of(workload: Workload, host: str, key: str) -> list[bytes]:
    """The requests as bytes on the wire."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: "
    )
    return [head.encode() + b"%d\r\n\r\n%b" % (len(body), body) for body in workload.bodies()]


async def run(
    url: str, key: str, workload: Workload, pid: int, *, seconds: float, warm_up_s: float, rate: float = 0.0
) -> dict[str, object]:
    """One measured run against `url`. `rate`: requests a second of all connections together; 0: as fast as it goes."""
    parts = urlsplit(url)
    found = Measurement()
    requests = requests_of(workload, parts.netloc, key)
    rng = random.Random(3)
    loop = asyncio.get_running_loop()
    every_s = workload.connections / rate if rate else 0.0

    async def begin(number: int) -> None:
        await asyncio.sleep(rng.random() * max(workload.ramp_s, min(every_s, warm_up_s)))
        try:
            await loop.create_connection(
                lambda: Client(requests, workload, found, number, every_s), parts.hostname, parts.port
            )
        except OSError as error:
            found.failed(f"cannot connect: {error}")

    beginning = [loop.create_task(begin(number)) for number in range(workload.connections)]
    await asyncio.sleep(workload.ramp_s + warm_up_s)
    await asyncio.gather(*beginning)
    pids = family(pid)
    cpu_before, started_at = cpu_s(pids), time.perf_counter()
    found.is_on = True
    await asyncio.sleep(seconds)
    found.is_on = False
    elapsed_s, used_s = time.perf_counter() - started_at, cpu_s(pids) - cpu_before
    num_units = found.num_requests if workload.unit == "request" else found.num_chunks
    return {
        "requests_per_s": round(found.num_requests / elapsed_s, 1),
        "chunks_per_s": round(found.num_chunks / elapsed_s, 1),
        "cpu_us": round(used_s * 1e6 / num_units, 2) if num_units else None,
        "cores": round(used_s / elapsed_s, 3),
        "memory_mb": round(memory_mb(pids), 1),
        "ttft_ms": percentiles(found.ttft_ms),
        "total_ms": percentiles(found.total_ms),
        "transit_ms": percentiles(found.transit_ms),
        "errors": found.num_errors,
        "last_error": found.last_error,
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {f"p{q}": round(ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 3) for q in (50, 95, 99)}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--connections", type=int, help="instead of the workload's own number")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second in all, instead of what goes")
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    if options.connections:
        workload = replace(workload, connections=options.connections)
    seconds = options.seconds or workload.seconds
    work = run(
        options.url, options.key, workload, options.pid, seconds=seconds, warm_up_s=options.warm_up, rate=options.rate
    )
    print(json.dumps(uvloop.run(work)))


if __name__ == "__main__":
    main()
