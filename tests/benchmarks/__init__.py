"""What the gateway costs, measured on this machine: `python -m tests.benchmarks [--quick]`."""
