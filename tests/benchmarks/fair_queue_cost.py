"""What the fair queue costs: CPU of a push and a pick at a steady depth, hits and scores given.

    python -m tests.benchmarks.fair_queue_cost [--json FILE]

Sixteen replicas are full: one seat comes free, the queue is woken, one entry is picked and another comes. Every offer was
made before, so that only the queue is measured; each pick compares as many as the settings allow. Process time, with the
garbage collector as it is in a gateway.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from policies.entry import Entry
from policies.fair_queue import FairQueue
from policies.fair_settings import FairSettings, LaneRule
from policies.lane import Lane
from policies.offer import NoRoom, Offer

REPLICAS = [f"replica{number}" for number in range(16)]
TARGET_US = 15.0  # push and pick together at 10,000 waiting
CASES = ((100, 10), (10_000, 1), (10_000, 10), (10_000, 100), (10_000, 5000), (100_000, 100), (100_000, 100_000))


class Traffic:
    """A queue at a steady depth. `num_tenants` by Zipf's law, which the flows of a shared gateway follow."""

    def __init__(self, depth: int, num_tenants: int, *, skew: float = 1.0, quantum_tokens: float = 8192.0) -> None:
        rules = {lane: LaneRule(bound=depth + 10_000) for lane in Lane}
        self.queue = FairQueue(FairSettings(quantum_tokens=quantum_tokens, lanes=rules))
        self._random = Random(depth * 7 + num_tenants)
        self._tenants = [f"tenant{number}" for number in range(num_tenants)]
        self._weights = [1.0 / (rank + 1) ** skew for rank in range(num_tenants)]
        self._offers: dict[Entry, Offer] = {}
        self._now = 0.0
        spread = [self.entry(tenant) for tenant in self._tenants[:depth]]
        for entry in spread + self.entries(depth - len(spread)):
            self.queue.push(entry, self._now)

    def entry(self, tenant: str) -> Entry:
        """One request with its offer: prompts of up to 4,000 tokens, part of them a hit."""
        entry = Entry(tenant, Lane.STANDARD, output_tokens=self._random.randrange(50, 500), deadline=self._now + 300.0)
        prompt_tokens = self._random.randrange(100, 4000)
        hit_tokens = self._random.choice((0, 0, prompt_tokens // 2, prompt_tokens * 9 // 10))
        replica = REPLICAS[self._random.randrange(len(REPLICAS))]
        if hit_tokens:
            entry.home = replica
        self._offers[entry] = Offer(hit_tokens + self._random.random(), prompt_tokens - hit_tokens, replica)
        return entry

    def entries(self, num: int) -> list[Entry]:
        """Requests of tenants drawn by their weights."""
        return [self.entry(tenant) for tenant in self._random.choices(self._tenants, self._weights, k=num)]

    def measure(self, num: int, operation: Callable[["Traffic", list[Entry]], None]) -> float:
        """CPU-microseconds of the operation for one of `num` new requests."""
        entries = self.entries(num)
        begun = time.process_time()
        operation(self, entries)
        return (time.process_time() - begun) / num * 1e6

    def push_and_pick(self, entries: list[Entry]) -> None:
        """A seat comes free for each new request."""
        queue, choose, now = self.queue, self._offers.__getitem__, self._now
        for entry in entries:
            now += 0.001
            queue.push(entry, now)
            queue.wake()
            queue.pick(choose, now)
        self._now = now

    def push_and_pick_near(self, entries: list[Entry]) -> None:
        """The same, and the queue is told which replica has the seat."""
        queue, choose, now = self.queue, self._offers.__getitem__, self._now
        for number, entry in enumerate(entries):
            now += 0.001
            queue.push(entry, now)
            queue.wake()
            queue.pick(choose, now, near=REPLICAS[number % 16 : number % 16 + 1])
        self._now = now

    def push_pick_and_settle(self, entries: list[Entry]) -> None:
        """The same, and each dispatched request ends, having cost a little more or less than predicted."""
        queue, choose, now = self.queue, self._offers.__getitem__, self._now
        for entry in entries:
            now += 0.001
            queue.push(entry, now)
            queue.wake()
            picked = queue.pick(choose, now)
            if picked is not None:
                queue.settle(picked, picked.charged * 1.1, now)
        self._now = now

    def push_and_find_no_room(self, entries: list[Entry]) -> None:
        """The fleet is full when a request comes, and it leaves again."""
        queue, now = self.queue, self._now
        for entry in entries:
            queue.push(entry, now)
            queue.pick(lambda _: NoRoom.LANE, now)
            queue.remove(entry, now)

    def ask_places(self, entries: list[Entry]) -> None:
        """What every keep-alive comment of a waiting stream asks."""
        waiting = list(self._offers)[: len(entries)]
        for entry in waiting:
            self.queue.place_of(entry)


OPERATIONS = {
    "push and pick": Traffic.push_and_pick,
    "pick near": Traffic.push_and_pick_near,
    "and settle": Traffic.push_pick_and_settle,
    "push, no room, leave": Traffic.push_and_find_no_room,
    "place": Traffic.ask_places,
}


def measure(repeats: int, num: int) -> list[dict[str, float]]:
    """A row a case: the median of each operation, and the least of push and pick."""
    rows = []
    for depth, num_tenants in CASES:
        traffic = Traffic(depth, num_tenants)
        gc.collect()
        row: dict[str, float] = {"waiting": depth, "tenants": num_tenants}
        for name, operation in OPERATIONS.items():
            samples = [traffic.measure(num, operation) for _ in range(repeats)]
            row[name] = statistics.median(samples)
            row.setdefault("least push and pick", min(samples))
        rows.append(row)
    return rows


def table_of(rows: list[dict[str, float]]) -> Table:
    """CPU-microseconds for a person to read."""
    table = Table(title="CPU-µs of the fair queue")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *(f"{value:,.0f}" if name in {"waiting", "tenants"} else f"{value:.2f}" for name, value in row.items())
        )
    return table


def main() -> int:
    """0 when push and pick stay within the target at 10,000 waiting, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fair_queue_cost", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="runs of which the median counts (7)")
    parser.add_argument("--num", type=int, default=2000, help="requests a run (2000)")
    parser.add_argument("--json", type=Path, help="where the results go, too")
    options = parser.parse_args()
    rows = measure(options.repeats, options.num)
    Console().print(table_of(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(row["push and pick"] > TARGET_US for row in rows if row["waiting"] == 10_000))


if __name__ == "__main__":
    sys.exit(main())
