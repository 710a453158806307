"""What limits cost: CPU of everything that is counted for one request, on one gateway that counts alone.

    python -m tests.benchmarks.limits_cost [--json FILE]

A request arrives (requests a minute, in flight), is read (tokens of a minute and a day, money of a month), its answer's
headers are made, and it is settled with its real usage; for its project and its organisation. `counted` is that alone;
`with the gateway` adds all that the gateway does around it: estimates, prices, what was really done, header bytes.
Process time, with the garbage collector as it is in a gateway; the loop around it and the reading of instants count too.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console
from rich.table import Table

from cache_affinity.ratio import TokenRatios
from gateway.chunks import Usage
from gateway.model_settings import ModelSection
from gateway.owed import Owed
from gateway.parts import Call
from gateway.relay import Relayed
from gateway.reserving import Reserving
from gateway.story import Story
from policies.lane import Lane
from policies.meters import Moment
from policies.output_estimate import OutputEstimates
from policies.prices import Work
from policies.quota import Expected, Quotas
from policies.tenant import Limits, Tenant
from routing.query import RouteQuery

TARGET_US = 10.0  # with every limit set at both levels, and all that the gateway does for them
UNIX = 1_790_000_000.0
EVERY_S = 0.0005  # between two requests
BATCH = 500  # requests made ready before they are measured
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


def counted(limits: tuple[Limits, Limits], num: int, num_tenants: int) -> float:
    """CPU-microseconds of one request's limits. `num_tenants` take turns."""
    quotas, work, expected = Quotas(), Work(1000, 500, 200), Expected(1300, 1000, 2000, 1500)
    tenants = _tenants(limits, num_tenants)
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


def with_the_gateway(limits: tuple[Limits, Limits], num: int, num_tenants: int) -> float:
    """CPU-microseconds of one request in `Reserving`: an answer that comes whole, of a model that has a price."""
    parts = SimpleNamespace(
        settings=SimpleNamespace(models=(ModelSection(name="m", price_in=1, price_cached=0.1, price_out=4),)),
        quotas=Quotas(),
        router=SimpleNamespace(ratios=TokenRatios()),
        outputs=OutputEstimates(),
        peers=None,
        clock=time.monotonic,
        unix=time.time,
    )
    running = _serve(Reserving(parts), _tenants(limits, num_tenants), num)
    try:
        running.send(None)
    except StopIteration as ended:
        return ended.value / num * 1e6
    raise AssertionError("nothing is waited for")


async def _serve(reserving: Reserving, tenants: list[Tenant], num: int) -> float:
    """CPU-seconds of `num` requests; what else a request is made of is there before."""
    spent, answer, num_tenants = 0.0, SimpleNamespace(late_headers=None), len(tenants)
    prompt, incoming = SimpleNamespace(total_bytes=4000), SimpleNamespace(used_up=None, body=b"")
    queries = [RouteQuery("m", prompt, Lane.STANDARD, tenant.project_id, 300) for tenant in tenants]
    for first in range(0, num, BATCH):
        calls = [Call(incoming, None, answer, [], Story("/v1", 0.0, 0.0, None, "r")) for _ in range(BATCH)]
        relays = [Relayed(Usage(1000, 200), first_content_at=1.0) for _ in range(BATCH)]
        for call in calls:
            call.story.request = SimpleNamespace(is_streaming=False, inputs=None)
            call.story.decision = SimpleNamespace(prompt_tokens=1000, hit_tokens=500)
        begun = time.process_time()
        for number in range(BATCH):
            which, call = (first + number) % num_tenants, calls[number]
            with await reserving.arrive(call, tenants[which], Lane.STANDARD) as held:
                await held.expect(queries[which])
                call.story.attempts, call.story.owed, call.story.relayed = 1, Owed.ALL, relays[number]
                answer.late_headers()
                answer.late_headers = None
        spent += time.process_time() - begun
    return spent


def _tenants(limits: tuple[Limits, Limits], num: int) -> list[Tenant]:
    return [Tenant(f"project{number}", "organization", "0" * 32, *limits) for number in range(num)]


Measure = Callable[[tuple[Limits, Limits], int, int], float]
MEASURES: dict[str, Measure] = {"counted": counted, "with the gateway": with_the_gateway}


def rows_of(repeats: int, num: int) -> list[dict[str, object]]:
    """A row a case: the median and the least of its runs, for one tenant and for a hundred."""
    rows: list[dict[str, object]] = []
    for kind, measure in MEASURES.items():
        for name, limits in CASES.items():
            row: dict[str, object] = {"limits": name, "what": kind}
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
        table.add_column(name, justify="left" if name in ("limits", "what") else "right")
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
