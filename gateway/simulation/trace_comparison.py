"""Policies side by side on one trace: every policy with every seed, and the document of the contract."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.simulation.recording import Recording
from gateway.simulation.trace_policies import BASELINES, OURS, POLICIES, OurSettings, Settings
from gateway.simulation.trace_report import Json, one_policy, settings_told, whole
from gateway.simulation.trace_run import TraceSettings, replica_s, run_trace
from gateway.simulation.trace_tuning import tune

OnProgress = Callable[[str, int, int], Any]  # (what is run, requests that have arrived in all runs, of how many)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared. `policies`: names, each once. `seeds`: at least one.

    `ours`: how our gateways are. `tunes`: baselines get the best parameters of their grid for this fleet, found on the
    first seed; else their defaults.
    """

    settings: TraceSettings
    policies: Sequence[str]
    seeds: Sequence[int]
    ours: OurSettings
    tunes: bool = False


def compare(recording: Recording, comparison: Comparison, on_progress: OnProgress) -> Json:
    """Run all of it. Raises ValueError for a request that does not fit into a replica."""
    progress = _Progress(recording, comparison, on_progress)
    told: Json = {}
    facts = recording.facts()
    for name in comparison.policies:
        parameters = _parameters(recording, comparison, name, progress)
        results = []
        for seed in comparison.seeds:
            with_seed = f"{name}, seed {seed}"
            results.append(
                run_trace(
                    recording, comparison.settings, name, parameters, seed, on_progress=progress.of_run(with_seed)
                )
            )
        told[name] = one_policy(results, facts, POLICIES[name].parameters(parameters))
    settings, engine = comparison.settings, comparison.settings.engine
    modelled_s = replica_s(facts, engine.settings(settings.kv_tokens, recording.block_tokens))
    available_s = settings.num_replicas * facts.duration_s / settings.speed
    load = modelled_s / available_s if available_s else None
    return whole(facts, settings_told(settings, load, comparison.seeds), told)


def _parameters(recording: Recording, comparison: Comparison, name: str, progress: "_Progress") -> Settings:
    if name == OURS:
        return comparison.ours
    policy = POLICIES[name]
    if not comparison.tunes or not policy.grid:
        return policy.settings()
    tried = tune(
        recording, comparison.settings, name, comparison.seeds[0],
        lambda *_: progress.of_run(f"tuning {name}")(len(recording.requests)),
    )  # fmt: skip
    return tried[0].parameters


class _Progress:
    """Requests that have arrived, over all runs."""

    def __init__(self, recording: Recording, comparison: Comparison, on_progress: OnProgress) -> None:
        num_runs = len(comparison.policies) * len(comparison.seeds)
        if comparison.tunes:
            tuned = (POLICIES[name] for name in comparison.policies if name in BASELINES)
            num_runs += sum(len(policy.candidates()) for policy in tuned if policy.grid)
        self._each = len(recording.requests)
        self._all = num_runs * self._each
        self._done = 0
        self._on_progress = on_progress

    def of_run(self, what: str) -> Callable[[int], None]:
        """To be told how many requests of a run have arrived; the last time, of all of them."""
        before = self._done

        def arrived(num: int) -> None:
            self._done = before + num
            self._on_progress(what, self._done, self._all)

        return arrived
