"""`python -m tests.soak.gateway --minutes 20`: one gateway under mixed traffic while its engines fail, watched for leaks.

Every minute the traffic pauses: then nothing is in flight, no seat is held, no client's socket is left, and every request
has one outcome that its client, the log, the ledger, the usage and the metrics tell alike. Memory, files and tasks do not
grow. Exit status 1 on any violation.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import httpx

from tests.benchmarks.processes import running
from tests.soak.fake_engines import FakeEngine
from tests.soak.gateway_plot import chart
from tests.soak.gateway_report import Report
from tests.soak.gateway_run import Soak
from tests.soak.gateway_tenants import Tenants
from tests.soak.gateway_traffic import MAX_BODY_MB, MODEL

_NUM_ENGINES = 3
_FAULT_SHARE = 0.12
_SEATS = 6
_CONFIG = f"""
[gateway]
drain_s = 2
max_body_mb = {MAX_BODY_MB}
[timeouts]
first_token_s = 3
idle_s = 3
total_s = {{total_s}}
head_s = 3
body_s = 3
[lanes.interactive]
max_wait_s = 5
[lanes.standard]
max_wait_s = 5
[lanes.bulk]
max_wait_s = 5
[responses]
max_per_project = 200
[[models]]
name = "{MODEL}"
price_in = 1.0
price_out = 2.0
"""


def config_of(engines: list[FakeEngine], total_s: float) -> str:
    """The gateway's configuration. `total_s`: how long a whole answer may take, and a pause may then wait for one."""
    replicas = (
        f'[[replicas]]\nname = "r{number}"\nmodel = "{MODEL}"\nengine = "warmlane"\nseats = {_SEATS}\n'
        f'url = "http://127.0.0.1:{engine.proxy.port}"\n'
        for number, engine in enumerate(engines)
    )
    return _CONFIG.format(total_s=total_s) + "".join(replicas)


@contextlib.asynccontextmanager
async def prepared(report: Report, folder: Path, num_engines: int, total_s: float = 20) -> AsyncIterator[Soak]:
    """A gateway with that many engines and the soak that watches it."""
    random = Random(report.seed)
    engines = [FakeEngine(random, _FAULT_SHARE, folder / f"engine-{number}.log") for number in range(num_engines)]
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        config, log, home = folder / "warmlane.toml", folder / "gateway.log", folder / "home"
        config.write_text(config_of(engines, total_s))
        command = [sys.executable, "-m", "gateway", "gateway", "--config", str(config), "--port", "0"]
        settings = {"WARMLANE_HOME": str(home)}
        with running([*command, "--admin-port", "0"], core=None, log=log, env=settings) as (pid, fields):
            ready = {name: values[0] for name, values in fields.items()}
            tenants = await Tenants.create(ready)
            yield Soak(report, ready, tenants, engines, pid=pid, home=home, log=log)
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))


async def soak(report: Report, folder: Path, num_clients: int, pause_every_s: float) -> None:
    """The whole run; what is wrong goes into the report."""
    async with prepared(report, folder, _NUM_ENGINES) as watched:
        await watched.run(num_clients, pause_every_s, Random(report.seed))


def main() -> int:
    """0 when all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.gateway", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=12, help="clients at once")
    parser.add_argument("--pause-every", type=float, default=60, help="seconds of traffic between two pauses")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    parser.add_argument("--out", type=Path, default=Path("build/soak/gateway.json"), help="where the report goes")
    parser.add_argument("--plot", type=Path, help="an SVG of memory, files and requests over time")
    options = parser.parse_args()
    report = Report(options.seed, options.minutes)
    with tempfile.TemporaryDirectory(prefix="wl-soak-") as folder:
        try:
            asyncio.run(soak(report, Path(folder), options.clients, options.pause_every))
        except (httpx.HTTPError, OSError, RuntimeError, ExceptionGroup) as error:
            report.add("run to its end", [f"the run broke off: {error!r}"])
    report.judge()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report.as_json(), indent=1))
    if options.plot is not None:
        options.plot.write_text(chart(report.samples))
    print(f"{report.table()}\n(details: {options.out})")
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
