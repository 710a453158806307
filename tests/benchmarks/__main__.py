"""`python -m tests.benchmarks [--quick]`: a table on the terminal and everything measured in a JSON file."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from tests.benchmarks.gateway_cpu import GATEWAY_COMMAND, Plan, measure, table_of
from tests.benchmarks.workloads import WORKLOADS


def main() -> int:
    """0 when everything was measured, 1 with one sentence when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round instead of three: to see that it works")
    parser.add_argument("--rounds", type=int, help="interleaved rounds of which the median counts (3)")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="these workloads")
    parser.add_argument(
        "--gateway-command", default=GATEWAY_COMMAND, help="how to start the gateway; {config} is replaced"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("build/benchmarks/gateway_cpu.json"), help="where the results go"
    )
    options = parser.parse_args()
    plan = Plan(
        rounds=options.rounds or (1 if options.quick else 3),
        workloads=options.only,
        seconds=1.5 if options.quick else None,
        warm_up_s=0.5 if options.quick else 1.0,
        gateway_command=options.gateway_command,
    )
    console = Console()
    try:
        result = measure(plan, console)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1))
    console.print(table_of(result))
    console.print(f"details: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
