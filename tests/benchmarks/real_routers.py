"""Hit tokens of routers in front of the same two llama-servers: ours, two others as they are shipped, and by turns.

The conversations of real_workers.py, each router on fresh servers of one thread each. Hits are what the servers report.
The others live in environments of their own, which this makes no use of but to start them:

    python -m tests.benchmarks.peers
    python -m tests.benchmarks.real_routers --peers .peers
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from engines.launch.demo_model import DEMO_MODEL_NAME, ensure_demo_model
from gateway.replay.player import Pace, play
from gateway.replay.report import replayed
from gateway.replay.target import Target
from gateway.replay.trace_text import scaled, texts_of
from gateway.simulation.recording import Recording
from gateway.simulation.trace_files import read_recording
from tests.benchmarks.isolation_systems import PATIENCE_S, Setup, llama_server
from tests.benchmarks.processes import running
from tests.benchmarks.real_workers import SCALE, TRACE, TTFT_S, by_turns, conversations, quietly
from tests.models import models_folder

PEERS = {"sglang-router": "sglang_router.launch_router", "vllm-router": "vllm_router.launch_router"}
_SETUP = Setup(8, 8192, 1)
_CONFIG = """
[gateway]
port = 0
admin_port = 0
[telemetry]
log_level = "warning"
"""
_REPLICA = """
[[replicas]]
name = "llama-{number}"
model = "{model}"
engine = "llama-server"
url = "{url}"
seats = {seats}
"""


@dataclass(frozen=True)
class Found:
    """One router's run. Tokens as the servers report them; `hit_of_possible`: of what one endless cache would hit."""

    router: str
    failed: int
    reported: int
    hit_tokens: int
    hit_of_possible: float
    ttft_p95_s: float


@contextmanager
def ours(urls: Sequence[str], home: Path) -> Iterator[Target]:
    """A gateway with the servers as its replicas, once it serves."""
    config = home / "gateway.toml"
    replicas = (
        _REPLICA.format(number=number, model=DEMO_MODEL_NAME, url=url, seats=_SETUP.seats)
        for number, url in enumerate(urls)
    )
    config.write_text(_CONFIG + "".join(replicas))
    words = [sys.executable, "-m", "gateway.cli", "gateway", "--config", str(config)]
    env = {"WARMLANE_HOME": str(home / "gateway")}
    with running(words, core=None, log=home / "gateway.log", env=env, ready_s=PATIENCE_S) as (_, ready):
        target = Target(ready["url"][0].removesuffix("/v1"), ready["key"][0], DEMO_MODEL_NAME)
        _until_served(target)
        yield target


@contextmanager
def peer(module: str, python: Path, urls: Sequence[str], home: Path) -> Iterator[Target]:
    """Another router, cache-aware and otherwise as it comes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(python), "-m", module, "--worker-urls", *urls, "--policy", "cache_aware"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(port + 1)]
    with (home / "router.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        target = Target(f"http://127.0.0.1:{port}", "", DEMO_MODEL_NAME)
        _until_served(target)
        yield target
    finally:
        process.kill()
        process.wait()


def _until_served(target: Target) -> None:
    """Until the router answers a request from a server. Raises RuntimeError."""
    body = {"model": target.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    deadline, told = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(target.url + target.path, json=body, headers=target.headers, timeout=PATIENCE_S)
            if answer.is_success:
                return
            told = answer.text[:200]
        time.sleep(0.2)
    raise RuntimeError(f"{target.url} does not serve: {told}")


def run(router: str, rate: float, recording: Recording, python: Path | None) -> Found:
    """One run on fresh servers."""
    facts = scaled(recording.facts(), SCALE)
    pace = Pace(speed=rate * facts.duration_s / facts.requests)
    texts, model = list(texts_of(recording, scale=SCALE)), ensure_demo_model(models_folder())
    with tempfile.TemporaryDirectory(prefix="warmlane-routers-") as folder, ExitStack() as started:
        homes = [Path(folder) / str(number) for number in range(2)]
        for home in homes:
            home.mkdir()
        urls = [started.enter_context(llama_server(_SETUP, model, home)).removesuffix("/") for home in homes]
        if router == "round robin":
            heard = asyncio.run(by_turns(texts, [Target(url, "", DEMO_MODEL_NAME) for url in urls], pace))
        else:
            start: Callable[..., AbstractContextManager[Target]] = ours
            target = started.enter_context(
                start(urls, Path(folder)) if python is None else peer(PEERS[router], python, urls, Path(folder))
            )
            heard = asyncio.run(play(texts, target, pace, quietly))
    told = replayed(heard, facts, {}, TTFT_S)["target"]
    of_possible = told["hit_of_oracle"] or 0.0
    return Found(router, told["failed"], told["reported"], told["hit_tokens"], of_possible, told["ttft_s"]["p95"])


def table_of(found: Sequence[Found]) -> Table:
    """For the terminal."""
    table = Table("router", "hit tokens", "of what is possible", "TTFT p95", "failed")
    for one in found:
        cells = (f"{one.hit_tokens:,}", f"{one.hit_of_possible:.3f}", f"{one.ttft_p95_s:.2f} s", str(one.failed))
        table.add_row(one.router, *cells)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with a sentence when not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.real_routers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", type=Path, help="the folder with their environments; without: ours and by turns")
    parser.add_argument("--requests", type=int, default=150, help="of a run (150)")
    parser.add_argument("--rate", type=float, default=1.5, help="requests a second (1.5)")
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/real_routers.json"))
    options = parser.parse_args(arguments)
    console, load_average = Console(), os.getloadavg()[0]
    recording = conversations(read_recording(TRACE), options.requests)
    routers: dict[str, Path | None] = {"round robin": None, "warmlane": None}
    if options.peers is not None:
        routers |= {name: options.peers / name / "bin" / "python" for name in PEERS}
    found = []
    try:
        for router, python in routers.items():
            found.append(run(router, options.rate, recording, python))
            console.print(found[-1])
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    options.json.parent.mkdir(parents=True, exist_ok=True)
    told = {"rate": options.rate, "load_average": load_average, "runs": list(map(asdict, found))}
    options.json.write_text(json.dumps(told, indent=1))
    console.print(table_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
