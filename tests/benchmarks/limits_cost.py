"""What limits cost: CPU of everything that is counted for one request, on one gateway that counts alone.

    python -m tests.benchmarks.limits_cost [--json FILE]

A request arrives (requests a minute, in flight), is read (tokens of a minute and a day, money of a month), its answer's
headers are made, and it is settled with its real usage; for its project and its organisation. Process time, with the
garbage collector as it is in a gateway; the loop around it and the reading of two instants count too.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from policies.lane import Lane
from policies.meters import Moment
from policies.prices import Work
from policies.quota import Expected, Quotas
from policies.tenant import Limits, Tenant

TARGET_US = 10.0  # with every limit set at both levels
UNIX = 1_790_000_000.0
EVERY_S = 0.0005  # between two requests
LANES = dict.fromkeys(Lane, 1000)
CASES = {
    "no limits": (Limits(), Limits()),
    "requests": (Limits(rpm=10**8), Limits(rpm=10**9)),
    "requests and in flight": (Limits(rpm=10**8, concurrency=LANES), Limits(rpm=10**9, concurrency=LANES)),
    "tokens a minute": (Limits(tpm=10**13), Limits(tpm=10**14)),
    "all": (
        Limits(
            rpm=10**8,
            concurrency=LANES,
            tpm=10**13,
            tokens_per_day=10**13,
            usd_per_month=1e7,
            cached_token_discount=0.5,
        ),
        Limits(rpm=10**9, concurrency=LANES, tpm=10**14, tokens_per_day=10**14, usd_per_month=1e8),
    ),
}


def measure(limits: tuple[Limits, Limits], num: int, num_tenants: int) -> float:
    """CPU-microseconds of one request. `num_tenants` take turns."""
    quotas, work, expected = Quotas(), Work(1000, 500, 200), Expected(1300, 1000, 2000, 1500)
    tenants = [Tenant(f"project{number}", "organization", "0" * 32, *limits) for number in range(num_tenants)]
    now = 5000.0
    begun = time.process_time()
    for number in range(num):
        now += EVERY_S
        tenant = tenants[number % num_tenants]
        moment = Moment(now, UNIX + now)
        reservation = quotas.reserve(tenant, Lane.STANDARD, moment)
        reservation.hold(expected, moment)
        quotas.headline(tenant, moment)
        moment = Moment(now, UNIX + now)
        reservation.charge(work, 1234, moment)
        reservation.settle(moment)
    return (time.process_time() - begun) / num * 1e6


def rows_of(repeats: int, num: int) -> list[dict[str, object]]:
    """A row a case: the median and the least of its runs, for one tenant and for a hundred."""
    rows: list[dict[str, object]] = []
    for name, limits in CASES.items():
        row: dict[str, object] = {"limits": name}
        for num_tenants in (1, 100):
            gc.collect()
            samples = [measure(limits, num, num_tenants) for _ in range(repeats)]
            row[f"{num_tenants} tenants"] = statistics.median(samples)
            row[f"{num_tenants} least"] = min(samples)
        rows.append(row)
    return rows


def table_of(rows: list[dict[str, object]]) -> Table:
    """CPU-microseconds for a person to read."""
    table = Table(title="CPU-µs of a request's limits")
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "limits" else "right")
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    return table


def main() -> int:
    """0 when all limits together stay within the target, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.limits_cost", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="runs of which the median counts (9)")
    parser.add_argument("--num", type=int, default=20_000, help="requests a run (20000)")
    parser.add_argument("--json", type=Path, help="where the results go, too")
    options = parser.parse_args()
    rows = rows_of(options.repeats, options.num)
    Console().print(table_of(rows))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(float(str(row["1 least"])) > TARGET_US for row in rows))


if __name__ == "__main__":
    sys.exit(main())
