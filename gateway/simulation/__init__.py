"""Two simulators around the gateway's own rules, in virtual time (docs/design/005-simulation.md).

*Token by token*, for what happens in a batch, with all lanes: `run` puts a `simulation` together from a `workload` and
workers with the engines' own scheduler (`replica`); `flight`, `measure` and `service` observe it.

*Block by block*, for traces of routing (`warmlane simulate`): `trace_run` puts a `trace_fleet` together from a
`recording` and `block_…` replicas; in front are our gateways (`fronts`) or another rule (`direct_front`, `baseline…`).
The other `trace_…` modules read files, compare and tell; `plan` looks for the cheapest fleet.

Both have their events from `events`, our gateway from `dispatch`, the engine's numbers from `replica`, and what a load
means from `capacity`.
"""
