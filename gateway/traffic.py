"""Which models a request may go to besides the one that it names: variants by weight, fallbacks, copies for a mirror.

`routing/traffic.py` draws; here are the settings in force, and what a failure must be like for another model to be
tried. Chats and completions only: vectors of two models do not compare.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engines.contract import Fault, ReplicaError
from gateway.errors import Refused
from gateway.model_settings import ModelSection
from gateway.models import ModelTable
from gateway.outcome import Outcome
from gateway.request import InferenceRequest
from policies.tenant import Tenant
from routing.traffic import Share, Variants

# The engines' own trouble. What a client did wrong is as wrong elsewhere.
_TROUBLE = frozenset(
    {Fault.CONNECT, Fault.STALE, Fault.RESET, Fault.TIMEOUT, Fault.STATUS, Fault.PROTOCOL, Fault.BACKPRESSURE}
)


@dataclass(frozen=True, slots=True)
class _Copied:
    model: str
    share: Share


class Traffic:
    """What the configuration says of a model's traffic. `table`: who may use what."""

    def __init__(self, models: tuple[ModelSection, ...], table: ModelTable) -> None:
        self._table = table
        self._variants: Mapping[str, Variants] = {}
        self._weights: Mapping[str, Mapping[str, float]] = {}
        self._fallbacks: Mapping[str, tuple[str, ...]] = {}
        self._copied: Mapping[str, _Copied] = {}
        self._num_copies: dict[tuple[str, str], int] = {}
        self.configure(models)

    def configure(self, models: tuple[ModelSection, ...]) -> None:
        """Other settings from now on."""
        self._weights = {one.name: one.weights for one in models if one.weights}
        self._variants = {one.name: Variants(one.weights) for one in models if one.weights}
        self._fallbacks = {one.name: one.fallbacks for one in models if one.fallbacks}
        self._copied = {
            one.name: _Copied(one.mirror.model, Share(one.mirror.share)) for one in models if one.mirror is not None
        }

    def has_variants(self, model: str) -> bool:
        """Whether the name stands for several models."""
        return model in self._variants

    def variant(self, model: str, home: int) -> str:
        """Who answers for the model. `home`: of the conversation, `PrefixKey.home`."""
        return self._variants[model].of(home)

    def larger(self, model: str, variant: str) -> tuple[str, ...]:
        """Whom a variant that cannot answer falls back to: those of the name that have more weight, the largest first.

        So a broken canary harms nobody, and a fleet in need does not fall upon it.
        """
        weights = self._weights.get(model, {})
        least = weights.get(variant, 0.0)
        found = [name for name, weight in weights.items() if weight > least]
        return tuple(sorted(found, key=lambda name: -weights[name]))

    def fallbacks(self, model: str, request: InferenceRequest, tenant: Tenant) -> tuple[str, ...]:
        """Models to try in its place, in order: those that the tenant may use under their own names."""
        if request.inputs is not None:
            return ()
        return tuple(name for name in self._fallbacks.get(model, ()) if self._table.allows(name, tenant))

    def mirror(self, model: str, request: InferenceRequest) -> str | None:
        """The model that this request is to be copied to, if it is one of those that are."""
        copied = self._copied.get(model)
        return copied.model if copied is not None and request.inputs is None and copied.share.is_next() else None

    def count_copy(self, model: str, outcome: str) -> None:
        """A copy for the model ended so: `finished`, `failed`, or it was `left_out`."""
        key = (model, outcome)
        self._num_copies[key] = self._num_copies.get(key, 0) + 1

    def gauges(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """For `/metrics`."""
        for (model, outcome), number in self._num_copies.items():
            yield "warmlane_mirrored_total", {"model": model, "outcome": outcome}, number


def is_trouble(error: Refused | ReplicaError) -> bool:
    """Whether another model may do better: engines failed, or have no room. Limits and deadlines are the tenant's."""
    if isinstance(error, ReplicaError):
        return error.fault in _TROUBLE
    return error.problem.outcome is Outcome.SHED
