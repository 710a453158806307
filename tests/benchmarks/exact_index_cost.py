"""What the exact index costs: CPU of a look-up, of events from their bytes to the index, and memory.

    python -m tests.benchmarks.exact_index_cost [--json FILE] [--blocks N]

The look-up asks for 64 blocks at 64 replicas, of which each holds another length of the prompt; the decision is the whole
of `Router.route` over the same replicas, whose shadows hold as many KiB of it. Events are vLLM's maps, prompts of 64 blocks or one block at a time as decoding
makes them. Process time, best of several rounds; memory as the growth of the resident set.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from cache_affinity.exact import ExactIndex
from cache_affinity.kv_events import BlocksStored, TokenChain, names, pack, root
from engines.core.events import BlockStored, Medium
from engines.kv_event_wire import read_batch
from engines.worker.kv_event_maps import write_batch
from tests.routing.fleet import Fleet, key_of

BLOCK_SIZE = 16
NUM_REPLICAS = 64
NUM_BLOCKS = 64
TARGETS = {"decision_us": 60.0, "events_blocks_per_s": 100_000.0, "mb_for_2m_blocks": 700.0}


def prompt(number: int, num_blocks: int = NUM_BLOCKS) -> list[int]:
    """Token ids of a prompt unlike any other."""
    start = number * 7919
    return [(start + place * 31) % 50_000 for place in range(num_blocks * BLOCK_SIZE)]


def filled(num_replicas: int = NUM_REPLICAS) -> tuple[ExactIndex, TokenChain]:
    """An index in which replica n holds n blocks of one prompt, and that prompt."""
    index = ExactIndex()
    tokens = prompt(1)
    packed = pack(tokens)
    for number in range(1, num_replicas + 1):
        num = number * NUM_BLOCKS // num_replicas
        stored = BlocksStored(tuple(range(num)), None, packed[: num * BLOCK_SIZE * 4], BLOCK_SIZE)
        index.apply(f"r{number}", [stored])
        index.mark(f"r{number}", is_known=True)
    return index, TokenChain(pack([*tokens, 1]))


def cpu_us(call: Callable[[], object], rounds: int = 5, calls: int = 2000) -> float:
    """CPU microseconds of a call, the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(calls):
            call()
        best = min(best, (time.process_time() - start) / calls)
    return best * 1e6


def look_up_us() -> dict[str, float]:
    """A look-up with the names made, and with the names to be made."""
    index, chain = filled()
    packed = chain.packed
    return {
        "look_up_us": cpu_us(lambda: index.hits(chain)),
        "look_up_with_names_us": cpu_us(lambda: index.hits(TokenChain(packed))),
    }


def decision_us() -> dict[str, float]:
    """The router's whole decision over 64 replicas: nothing held anywhere, and as much by shadow as exactly."""
    index, chain = filled()
    fleet = Fleet(NUM_REPLICAS)
    query = fleet.query("shared beginning " * 256, "a question")
    without = cpu_us(lambda: fleet.router.route(query, fleet.now), calls=1000)
    fleet.router.exact = index
    long = "shared beginning " * 4096
    for number, replica in enumerate(fleet.pool, start=1):
        replica.shadow.insert(key_of(long[: number * 1024]), fleet.now)
    exactly = fleet.query(long[: NUM_REPLICAS * 1024], "a question", tokens=chain)
    return {
        "decision_without_us": without,
        "decision_us": cpu_us(lambda: fleet.router.route(exactly, fleet.now), calls=1000),
    }


def payloads(num_blocks: int, blocks_a_batch: int) -> Iterator[bytes]:
    """Batches of one stored event each."""
    for number in range(num_blocks // blocks_a_batch):
        hashes = tuple((number * blocks_a_batch + one).to_bytes(32, "big") for one in range(blocks_a_batch))
        event = BlockStored(hashes, None, tuple(prompt(number, blocks_a_batch)), BLOCK_SIZE, "", Medium.DEVICE)
        yield write_batch(0.0, [event], "generation")


def events_per_s(blocks_a_batch: int, num_blocks: int = 64_000) -> float:
    """Blocks a second of one core, from bytes to the index."""
    ready = list(payloads(num_blocks, blocks_a_batch))
    best = 0.0
    for _ in range(3):
        index = ExactIndex()
        start = time.process_time()
        for number, payload in enumerate(ready):
            index.apply("r1", read_batch(number, payload).events)
        best = max(best, num_blocks / (time.process_time() - start))
    return best


def memory_mb(num_blocks: int) -> float:
    """Growth of the resident set by an index of so many blocks, no two alike."""
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    index = ExactIndex(max_blocks=num_blocks)
    for number in range(num_blocks // NUM_BLOCKS):
        first = number * NUM_BLOCKS
        hashes = tuple((first + one) * 0x9E3779B97F4A7C15 & ((1 << 60) - 1) for one in range(NUM_BLOCKS))
        index.apply(f"r{number % NUM_REPLICAS}", [BlocksStored(hashes, None, pack(prompt(number)), BLOCK_SIZE)])
    gc.collect()
    return (process.memory_info().rss - before) / 1e6


def names_us() -> float:
    """The names of the blocks of one prompt."""
    packed, start = pack(prompt(1)), root("", "", BLOCK_SIZE)
    return cpu_us(lambda: names(start, packed, BLOCK_SIZE))


def measure(num_blocks: int) -> dict[str, float]:
    """All numbers by name."""
    memory = memory_mb(num_blocks) * 2_000_000 / num_blocks
    return {
        **look_up_us(),
        "names_us": names_us(),
        **decision_us(),
        "events_blocks_per_s": events_per_s(NUM_BLOCKS),
        "events_blocks_per_s_one_by_one": events_per_s(1, 20_000),
        "mb_for_2m_blocks": memory,
    }


def table_of(found: dict[str, float]) -> Table:
    """For the terminal."""
    table = Table("what", "measured", "target")
    for name, value in found.items():
        table.add_row(name, f"{value:,.1f}", f"{TARGETS[name]:,.0f}" if name in TARGETS else "")
    return table


def main() -> int:
    """0 when everything was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.exact_index_cost", description=__doc__)
    parser.add_argument("--blocks", type=int, default=2_000_000, help="blocks for the memory (2,000,000)")
    parser.add_argument("--json", type=Path, help="where the results go")
    options = parser.parse_args()
    found = measure(options.blocks)
    Console().print(table_of(found))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
