"""Two real gguf workers, driven with conversations of the trace: by our gateway's routing, and by turns (round robin).

Conversations: requests of the Mooncake trace that begin as an earlier one does for more than the block all share, of at
least three turns, lengths divided by 16, at most 512 tokens. Each run on a fresh `warmlane up` with two workers of one
thread each; round robin sends straight to the workers, without a gateway between. A rate is sustained if p95 of TTFT is at
most 2 s.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from engines.hardware import detect
from engines.launch.demo_model import DEMO_MODEL_NAME
from gateway.replay.exchange import Heard
from gateway.replay.player import Pace, play
from gateway.replay.report import replayed
from gateway.replay.target import Target
from gateway.replay.trace_text import TextRequest, scaled, texts_of
from gateway.simulation.recording import RecordedRequest, Recording
from gateway.simulation.trace_files import read_recording
from tests.benchmarks.isolation_systems import PATIENCE_S
from tests.benchmarks.processes import running

OURS, TURNS = "warmlane", "round robin"
TRACE = Path(__file__).parents[1] / "traces" / "mooncake_conversation.jsonl.gz"
SCALE, MAX_TOKENS, MIN_TURNS, NUM_WORKERS = 16, 512, 3, 2
TTFT_S = 2.0
RATES = tuple(round(0.5 * 1.15**step, 3) for step in range(3, 14))  # requests a second, each 15% above the one before
_KV_TOKENS, _MAX_SEQS = 8192, 8
_CONFIG = f"""
[gateway]
port = 0
admin_port = 0
[telemetry]
log_level = "warning"
[[workers]]
model = "{DEMO_MODEL_NAME}"
count = {NUM_WORKERS}
threads = 1
max_seqs = {_MAX_SEQS}
kv_tokens = {_KV_TOKENS}
host_kv_mb = 0
"""


@dataclass(frozen=True)
class Found:
    """One run. `rate`: requests a second. Seconds; `hit_of_possible`: of what one endless cache would hit."""

    system: str
    rate: float
    failed: int
    ttft_p50_s: float
    ttft_p95_s: float
    itl_p95_s: float
    hit_of_possible: float

    @property
    def holds(self) -> bool:
        """Whether the rate is sustained."""
        return not self.failed and self.ttft_p95_s <= TTFT_S


def conversations(recording: Recording, num_requests: int) -> Recording:
    """The first requests of conversations that are long enough and whose prompts all are short enough."""
    turns: dict[int, int] = {}  # block: its conversation
    of: list[tuple[int, RecordedRequest]] = []
    for request in recording.requests:
        known = [turns[name] for name in request.blocks[1:] if name in turns]
        chat = known[-1] if known else request.number
        of.append((chat, request))
        for name in request.blocks[1:]:
            turns.setdefault(name, chat)
    nums = Counter(chat for chat, _ in of)
    too_long = {chat for chat, request in of if request.prompt_tokens > MAX_TOKENS * SCALE}
    kept = [request for chat, request in of if nums[chat] >= MIN_TURNS and chat not in too_long]
    return Recording(tuple(kept[:num_requests]), recording.block_tokens)


@contextmanager
def fleet(home: Path) -> Iterator[tuple[Target, list[Target]]]:
    """The gateway, and its workers when they are ready."""
    config = home / "up.toml"
    config.write_text(_CONFIG)
    words = [sys.executable, "-m", "gateway.cli", "up", "--config", str(config)]
    env = {"WARMLANE_HOME": str(home / "up")}
    with running(words, core=None, log=home / "up.log", env=env, ready_s=PATIENCE_S) as (_, lists):
        ready = {name: values[0] for name, values in lists.items()}
        headers, deadline = {"authorization": f"Bearer {ready['admin_token']}"}, time.monotonic() + PATIENCE_S
        replicas: list[dict[str, str]] = []
        while sum(replica["state"] == "ready" for replica in replicas) < NUM_WORKERS:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the workers did not become ready: {replicas}")
            time.sleep(0.1)
            replicas = httpx.get(f"{ready['admin']}/admin/v1/replicas", headers=headers).json()["data"]
        urls = [replica["url"] for replica in replicas]
        gateway = Target(ready["url"].removesuffix("/v1"), ready["key"], DEMO_MODEL_NAME)
        yield gateway, [Target(url, "", DEMO_MODEL_NAME) for url in urls]


async def by_turns(texts: Sequence[TextRequest], workers: Sequence[Target], pace: Pace) -> list[Heard]:
    """Round robin: each request to the engine after the one before it."""
    parts = [texts[number :: len(workers)] for number in range(len(workers))]
    played = (play(part, worker, pace, quietly) for part, worker in zip(parts, workers, strict=True))
    return [heard for part in await asyncio.gather(*played) for heard in part]


def quietly(*_: int) -> None:
    """Runs are short: each one's line is the progress."""


def run(system: str, rate: float, recording: Recording) -> Found:
    """One run on a fresh fleet."""
    facts = scaled(recording.facts(), SCALE)
    pace = Pace(speed=rate * facts.duration_s / facts.requests)
    texts = list(texts_of(recording, scale=SCALE))
    with tempfile.TemporaryDirectory(prefix="warmlane-real-") as home, fleet(Path(home)) as (gateway, workers):
        if system == OURS:
            heard = asyncio.run(play(texts, gateway, pace, quietly))
        else:
            heard = asyncio.run(by_turns(texts, workers, pace))
    told = replayed(heard, facts, {}, TTFT_S)["target"]
    ttft, itl = told["ttft_s"], told["itl_s"]
    return Found(system, rate, told["failed"], ttft["p50"], ttft["p95"], itl["p95"], told["hit_of_oracle"] or 0.0)


def most_sustained(holds: Callable[[float], bool], rates: Sequence[float]) -> float:
    """The highest of these rates that holds, by halving; 0 if none does. Rates ascend; what fails once fails above."""
    low, high = -1, len(rates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(rates[middle]) else (low, middle)
    return rates[low] if low >= 0 else 0.0


def measure(recording: Recording, rates: Sequence[float], repeats: int, console: Console) -> dict[str, object]:
    """Sustained rates of both, then both at 80% of round robin's, by turns."""
    runs: list[Found] = []

    def ran(system: str, rate: float) -> Found:
        runs.append(run(system, rate, recording))
        console.print(_line(runs[-1]))
        return runs[-1]

    most = {system: most_sustained(lambda rate, to=system: ran(to, rate).holds, rates) for system in (TURNS, OURS)}
    at_80 = round(0.8 * (most[TURNS] or rates[0]), 3)
    beside = [ran(system, at_80) for _ in range(repeats) for system in (OURS, TURNS)]
    return {"sustained": most, "at_80": at_80, "beside": list(map(asdict, beside)), "runs": list(map(asdict, runs))}


def _line(one: Found) -> str:
    return (
        f"{one.system} at {one.rate:.2f}/s: TTFT p50 {one.ttft_p50_s:.2f}, p95 {one.ttft_p95_s:.2f} s, "
        f"ITL p95 {one.itl_p95_s * 1e3:.0f} ms, hits {one.hit_of_possible:.3f} of what is possible, {one.failed} failed"
    )


def table_of(result: dict[str, object]) -> Table:
    """Medians of the runs side by side, and the sustained rates."""
    table = Table("", "sustained, requests/s", f"TTFT p95 at {result['at_80']}/s", "hits of what is possible")
    for system in (TURNS, OURS):
        of_it = sorted(
            (one["ttft_p95_s"], one["hit_of_possible"]) for one in result["beside"] if one["system"] == system
        )
        p95, hits = of_it[len(of_it) // 2]
        table.add_row(system, f"{result['sustained'][system]:.2f}", f"{p95:.2f} s", f"{hits:.3f}")
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with a sentence when not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.real_workers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="a full run takes about 20 quiet minutes; --quick one, only to see that it works",
    )
    parser.add_argument("--quick", action="store_true", help="30 requests and two rates")
    parser.add_argument("--requests", type=int, default=150, help="of a run (150)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each at 80%% of round robin's rate (3)")
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/real_workers.json"))
    options = parser.parse_args(arguments)
    console, hardware, load_average = Console(), detect(), os.getloadavg()[0]
    recording = conversations(read_recording(TRACE), 30 if options.quick else options.requests)
    rates = RATES[1:9:7] if options.quick else RATES
    try:
        result = measure(recording, rates, 1 if options.quick else options.repeats, console)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    result |= {"at": at, "machine": f"{hardware.cores} cores, {hardware.cpu_name}", "load_average": load_average}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1))
    console.print(f"{at}; {result['machine']}, load average {load_average:.1f} before")
    console.print(table_of(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
