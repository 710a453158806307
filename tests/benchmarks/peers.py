"""Other gateways to measure beside ours: each in an environment of its own under `.peers/`, its packages pinned.

python -m tests.benchmarks.peers                # install what is missing, about 1.2 GB
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tests.benchmarks.processes import end, free_port, on_core
from tests.benchmarks.workloads import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(".peers")
_PINS = Path(__file__).with_name("peers")
_LITELLM_KEY = "sk-benchmark"
# A model that litellm knows spares it a failed look-up of the price for every request.
_LITELLM_MODEL = """
- model_name: {model}
  litellm_params: {{model: openai/gpt-4o-mini, api_base: "{url}/v1", api_key: none}}
"""

Command = Callable[[Path, int, Sequence[str], Path], list[str]]


@dataclass(frozen=True)
class Peer:
    """`command`: from its bin folder, port, engines and a folder for files; `key`: what it asks of clients."""

    name: str
    command: Command
    key: str = "none"
    env: dict[str, str] = field(default_factory=dict)


def _rust_router(module: str, level: str) -> Command:
    def command(binaries: Path, port: int, engines: Sequence[str], _folder: Path) -> list[str]:
        words = [str(binaries / "python"), "-m", module, "--worker-urls", *engines, "--policy", "cache_aware"]
        return [*words, *_place(port), "--prometheus-port", str(free_port()), "--log-level", level]

    return command


def _smg(binaries: Path, port: int, engines: Sequence[str], _folder: Path) -> list[str]:
    words = [str(binaries / "smg"), "launch", "--worker-urls", *engines, "--policy", "cache_aware"]
    return [*words, *_place(port), "--prometheus-port", str(free_port()), "--log-level", "warn"]


def _litellm(binaries: Path, port: int, engines: Sequence[str], folder: Path) -> list[str]:
    config = folder / "litellm.yaml"
    models = "".join(_LITELLM_MODEL.format(model=MODEL, url=url) for url in engines)
    config.write_text(f"model_list:{models}general_settings: {{master_key: {_LITELLM_KEY}}}\n")
    return [str(binaries / "litellm"), "--config", str(config), "--num_workers", "1", *_place(port)]


def _place(port: int) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(port)]


PEERS = {
    peer.name: peer
    for peer in (
        Peer("sglang-router", _rust_router("sglang_router.launch_router", "warn")),
        Peer("smg", _smg),
        Peer("vllm-router", _rust_router("vllm_router.launch_router", "warning")),
        Peer(
            "litellm",
            _litellm,
            key=_LITELLM_KEY,
            env={"LITELLM_LOG": "ERROR", "REPEATED_STREAMING_CHUNK_LIMIT": "1000000", "NO_PROXY": "127.0.0.1"},
        ),
    )
}


def install(name: str, console: Console) -> None:
    """Make the peer's environment if it is not there. Raises RuntimeError with what pip said."""
    place, pins = FOLDER / name, _PINS / f"{name}.txt"
    done = place / ".installed"
    if done.exists() and done.read_text() == pins.read_text():
        return
    console.print(f"installing {name} into {place}")
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--progress-bar", "on", "-r", str(pins)],
    ):
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"{name} cannot be installed: {ended.stderr[-500:]}")
    done.write_text(pins.read_text())


@contextmanager
def started(peer: Peer, engines: Sequence[str], folder: Path, core: int | None) -> "Iterator[tuple[str, int]]":
    """Its URL and process id; it may not answer yet."""
    port = free_port()
    binaries = (FOLDER / peer.name / "bin").absolute()
    command = peer.command(binaries, port, engines, folder)
    with (folder / f"{peer.name}.log").open("wb") as log, on_core(core):
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={"PATH": f"{binaries}:/usr/bin:/bin", **peer.env},
        )
    try:
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        end(process)


def main() -> int:
    """0 when all are there, 1 with a sentence when not."""
    argparse.ArgumentParser(
        prog="python -m tests.benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    console = Console()
    try:
        for name in PEERS:
            install(name, console)
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
