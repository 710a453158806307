"""What a workload costs at best, and so what "40% of capacity" means: modelled replica-seconds at oracle hits.

The oracle is one infinite cache that all replicas share from the start: a prompt token is read once in the fleet. A
step's base cost is shared by as many rows as the engine has seats, or by a full budget of prompt tokens, whichever
needs more steps: no schedule does better, so load 1.0 is a bound that no policy reaches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from gateway.simulation.prompts import Prompt
from gateway.simulation.replica import EngineSettings
from gateway.simulation.workload import SimulatedRequest


class OracleCache:
    """An infinite cache of whole passages, one for each salt: what an ideal fleet would have to read."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def uncached_tokens(self, prompt: Prompt, salt: str) -> int:
        """Tokens of the prompt that nobody has read yet, at least the last one; they are known from now on."""
        chain, uncached = salt.encode(), 0
        for passage in prompt:
            name = b"%d:%d" % (passage.content, passage.num_tokens)
            chain = blake2b(chain + name, digest_size=16).digest()
            if chain not in self._known:
                self._known.add(chain)
                uncached += passage.num_tokens
        return max(1, uncached)


@dataclass(frozen=True, slots=True)
class Demand:
    """What some requests ask for. `uncached_tokens`: of `prompt_tokens`, at oracle hits."""

    num_requests: int
    prompt_tokens: int
    uncached_tokens: int
    output_tokens: int

    def replica_s(self, engine: EngineSettings) -> float:
        """Modelled replica-seconds at full batches."""
        scheduler, cost = engine.scheduler, engine.cost
        rows = self.output_tokens - self.num_requests  # a first token comes with the last of its prompt
        num_steps = max(rows / scheduler.max_seqs, self.uncached_tokens / scheduler.max_step_tokens)
        return num_steps * cost.base_s + rows * cost.per_row_s + self.uncached_tokens * cost.per_prefill_token_s


def demand(requests: Iterable[SimulatedRequest]) -> Demand:
    """What these requests ask for together; answers are known too once they were given."""
    oracle, prompt, uncached, output, number = OracleCache(), 0, 0, 0, 0
    for request in requests:
        number += 1
        prompt += request.prompt_tokens
        output += request.answer.num_tokens
        uncached += oracle.uncached_tokens(request.prompt, request.tenant)
        oracle.uncached_tokens((*request.prompt, request.answer), request.tenant)
    return Demand(number, prompt, uncached, output)


def rate_at(load: float, sample: Iterable[SimulatedRequest], engine: EngineSettings, num_replicas: int) -> float:
    """Requests a second that are `load` (0..1) of what the fleet could do of requests like the sample's."""
    asked = demand(sample)
    return load * num_replicas * asked.num_requests / asked.replica_s(engine)
