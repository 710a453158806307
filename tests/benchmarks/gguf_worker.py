"""The gguf worker beside llama-server: same library, same model, same threads, streaming over HTTP, on this machine.

Distinct prompts at several concurrencies, then a 500-token prefix that all requests of a round share and nobody has
seen before. Both servers are started anew for each round, and the rounds of both alternate. Needs a quiet machine; the
demo model is fetched once.

On a machine that others use too, times mean little, and CPU seconds with several threads neither: these wait for one
another by spinning. CPU seconds an output token with `--threads 1` are then what compares the two.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from engines.hardware import detect
from engines.launch.demo_model import DEMO_MODEL_NAME, ensure_demo_model
from tests.benchmarks.isolation_systems import PATIENCE_S, Setup, llama_server
from tests.benchmarks.load import percentiles
from tests.benchmarks.processes import cpu_s, family, running
from tests.benchmarks.streamed import Streamed, streamed
from tests.models import models_folder

OURS, THEIRS = "warmlane", "llama-server"
_WORDS = [
    "the",
    "a",
    "small",
    "quiet",
    "river",
    "house",
    "garden",
    "letter",
    "morning",
    "asks",
    "finds",
    "keeps",
    "sees",
    "takes",
    "and",
    "when",
    "under",
]
_KV_TOKENS = 16_384
_EXAMPLES = """examples:
  python -m tests.benchmarks.gguf_worker            five rounds, about ten quiet minutes
  python -m tests.benchmarks.gguf_worker --quick    one round: only to see that it works
  python -m tests.benchmarks.gguf_worker --threads 1    CPU seconds that compare on a busy machine too
"""


@dataclass(frozen=True)
class Case:
    """`clients` at once, each with `prompt_words` of its own after `shared_words` of the round's, `output` tokens out."""

    name: str
    clients: int
    prompt_words: int
    shared_words: int = 0
    output: int = 64


CASES = (
    Case("distinct", 1, 150),
    Case("distinct", 4, 150),
    Case("distinct", 16, 150),
    Case("shared prefix", 16, 20, shared_words=480),
)


@dataclass(frozen=True)
class Found:
    """One case of one round. Tokens a second of all clients together, from the first request to the last token.

    `cpu_ms_per_token`: of the server's processes, an output token.
    """

    system: str
    case: str
    clients: int
    tokens_per_s: float
    ttft_ms: dict[str, float]
    cached_tokens: int
    cpu_ms_per_token: float


def bodies_of(case: Case, number: int) -> list[dict[str, object]]:
    """The requests of a round: the same for both systems, and unlike those of any other round from their first word."""
    rng = random.Random(f"{case.name} {case.clients} {number}")
    shared = " ".join(rng.choices(_WORDS, k=case.shared_words))
    fixed = {"model": DEMO_MODEL_NAME, "temperature": 0, "max_tokens": case.output, "ignore_eos": True}
    prompts = [
        f"{number} {shared} {client} " + " ".join(rng.choices(_WORDS, k=case.prompt_words))
        for client in range(case.clients)
    ]
    return [fixed | {"prompt": prompt} for prompt in prompts]


async def measure(system: str, url: str, case: Case, number: int) -> Found:
    """All clients of a case at once."""
    warm_up = {"model": DEMO_MODEL_NAME, "prompt": "warm up", "max_tokens": 4, "temperature": 0}
    await streamed(url, "/v1/completions", warm_up)
    server = [pid for pid in family(os.getpid()) if pid != os.getpid()]
    before_s = cpu_s(server)
    answers = await asyncio.gather(*(streamed(url, "/v1/completions", body) for body in bodies_of(case, number)))
    return _found(system, case, answers, cpu_s(server) - before_s)


def _found(system: str, case: Case, answers: Sequence[Streamed], server_cpu_s: float) -> Found:
    num_tokens = sum(one.output_tokens for one in answers)
    if num_tokens != case.clients * case.output:
        raise RuntimeError(f"{system} wrote {num_tokens} tokens, not {case.clients * case.output}")
    seconds = max(one.ended_at for one in answers) - min(one.begun_at for one in answers)
    return Found(
        system,
        case.name,
        case.clients,
        num_tokens / seconds,
        percentiles([one.ttft_s * 1e3 for one in answers]),
        sum(one.cached_tokens for one in answers),
        server_cpu_s * 1e3 / num_tokens,
    )


@contextmanager
def worker(setup: Setup, model: Path, home: Path) -> Iterator[str]:
    """The URL of our worker alone, in a process of its own."""
    command = [sys.executable, "-m", "gateway.cli", "worker", "--engine", "gguf", "--path", str(model)]
    command += ["--model", DEMO_MODEL_NAME, "--max-seqs", str(setup.seats), "--kv-tokens", str(setup.kv_tokens)]
    command += ["--threads", str(setup.threads), "--threads-batch", str(setup.threads)]
    env = {"WARMLANE_HOME": str(home)}
    with running(command, core=None, log=home / "worker.log", env=env, ready_s=PATIENCE_S) as (_, ready):
        yield ready["url"][0].removesuffix("/v1")


def rounds(cases: Sequence[Case], num_rounds: int, model: Path, threads: int, console: Console) -> list[Found]:
    """Each case in each round on fresh servers, ours and theirs by turns."""
    found = []
    steps = [(number, case) for number in range(num_rounds) for case in cases]
    for number, case in track(steps, "rounds", console=console):
        setup = Setup(max(4, case.clients), _KV_TOKENS, threads)
        systems = [(OURS, worker), (THEIRS, llama_server)]
        for system, start in systems if number % 2 == 0 else reversed(systems):
            with tempfile.TemporaryDirectory(prefix="warmlane-gguf-") as home, ExitStack() as started:
                url = started.enter_context(start(setup, model, Path(home)))
                found.append(asyncio.run(measure(system, url, case, number)))
            console.print(_line(found[-1]))  # so that a run that is cut short was not for nothing
    return found


def _line(one: Found) -> str:
    return (
        f"{one.case} {one.clients}, {one.system}: {one.tokens_per_s:.1f} tokens/s, "
        f"TTFT p95 {one.ttft_ms['p95']:.0f} ms, {one.cpu_ms_per_token:.2f} CPU ms a token"
    )


def summary(found: Sequence[Found], cases: Sequence[Case]) -> list[dict[str, object]]:
    """Medians over the rounds of each case, and ours as a ratio of theirs."""
    rows = []
    for case in cases:
        row: dict[str, object] = {"case": case.name, "clients": case.clients}
        for system in (OURS, THEIRS):
            of_it = [one for one in found if (one.system, one.case, one.clients) == (system, case.name, case.clients)]
            row[system] = {
                "tokens_per_s": statistics.median(one.tokens_per_s for one in of_it),
                "ttft_p50_ms": statistics.median(one.ttft_ms["p50"] for one in of_it),
                "ttft_p95_ms": statistics.median(one.ttft_ms["p95"] for one in of_it),
                "cached_tokens": statistics.median(one.cached_tokens for one in of_it),
                "cpu_ms_per_token": statistics.median(one.cpu_ms_per_token for one in of_it),
            }
        row["ratio"] = {
            name: row[OURS][name] / row[THEIRS][name]
            for name in ("tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "cpu_ms_per_token")
        }
        rows.append(row)
    return rows


def table_of(rows: Sequence[dict[str, object]]) -> Table:
    """For the terminal."""
    columns = ("tok/s", "TTFT p95 ms", "CPU ms a token")
    table = Table("prompts", "clients", *(head for name in columns for head in (f"{name} ours", "theirs", "ratio")))
    for row in rows:
        ours, theirs, ratio = row[OURS], row[THEIRS], row["ratio"]
        speed = (f"{ours['tokens_per_s']:.1f}", f"{theirs['tokens_per_s']:.1f}", f"{ratio['tokens_per_s']:.2f}")
        ttft = (f"{ours['ttft_p95_ms']:.0f}", f"{theirs['ttft_p95_ms']:.0f}", f"{ratio['ttft_p95_ms']:.2f}")
        cpu = (
            f"{ours['cpu_ms_per_token']:.2f}",
            f"{theirs['cpu_ms_per_token']:.2f}",
            f"{ratio['cpu_ms_per_token']:.2f}",
        )
        table.add_row(row["case"], str(row["clients"]), *speed, *ttft, *cpu)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with a sentence when not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gguf_worker",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, help="of which the median counts (5)")
    parser.add_argument("--clients", type=int, nargs="+", help="only cases with so many clients")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of both (all cores)")
    parser.add_argument("--model", type=Path, help="another GGUF than the demo model")
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/gguf_worker.json"))
    options = parser.parse_args(arguments)
    console = Console()
    cases = [case for case in CASES if not options.clients or case.clients in options.clients]
    model, hardware = options.model or ensure_demo_model(models_folder()), detect()
    load_average = os.getloadavg()[0]
    try:
        found = rounds(cases, options.rounds or (1 if options.quick else 5), model, options.threads, console)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    rows = summary(found, cases)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    machine = f"{hardware.cores} cores, {hardware.cpu_name or hardware.machine}"
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    told = {"at": at, "machine": machine, "load_average": load_average, "model": model.name}
    told |= {"threads": options.threads}
    options.json.write_text(json.dumps(told | {"rows": rows, "rounds": [asdict(one) for one in found]}, indent=1))
    console.print(f"{at}; {machine}, load average {load_average:.1f} before; {model.name}")
    console.print(table_of(rows))
    console.print(f"details: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
