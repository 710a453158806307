"""Small fleets and requests for the simulator's tests."""

from engines.fake import SchedulerSettings
from engines.step_cost import StepCost
from gateway.simulation.prompts import Passage
from gateway.simulation.replica import EngineSettings
from gateway.simulation.run import FleetSettings, RunSettings
from gateway.simulation.workload import SimulatedRequest
from policies.lane import Lane

COST = StepCost(base_s=0.010, per_row_s=0.001, per_prefill_token_s=0.0001)


def engine(*, max_seqs=4, max_step_tokens=256, kv_tokens=4096, num_slots=None, **settings):
    """A worker with round numbers."""
    scheduler = SchedulerSettings(
        max_seqs=max_seqs, max_step_tokens=max_step_tokens, context_tokens=2048, kv_tokens=kv_tokens, **settings
    )
    return EngineSettings(scheduler, COST, num_slots=num_slots)


def fleet(num_replicas=1, seats=4, reserved=0, speeds=(), **settings):
    """A fleet of such workers. `reserved`: seats kept for interactive."""
    return FleetSettings(num_replicas, engine(**settings), seats, {Lane.INTERACTIVE: reserved}, speeds=speeds)


def until(duration_s, **settings):
    """A run without hops, so that times can be reckoned by hand."""
    return RunSettings(duration_s, **({"hop_s": 0.0} | settings))


def ask(name, *, at=0.0, prompt=((1, 64),), answer=4, tenant="alder", lane=Lane.INTERACTIVE, patience_s=None):
    """A request. `prompt`: (content, tokens) of each passage; `answer`: its length."""
    passages = tuple(Passage(content, length) for content, length in prompt)
    content = 1_000_000 + sum(map(ord, name)) * 1000 + len(name)
    return SimulatedRequest(name, tenant, lane, at, passages, Passage(content, answer), patience_s)
