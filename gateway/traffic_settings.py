"""What `weights`, `fallbacks` and `mirror` of models may name; asked when a configuration is read."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol


class _Mirror(Protocol):
    @property
    def model(self) -> str: ...


class _Model(Protocol):
    """As far as these three go."""

    @property
    def name(self) -> str: ...

    @property
    def weights(self) -> Mapping[str, float]: ...

    @property
    def fallbacks(self) -> tuple[str, ...]: ...

    @property
    def mirror(self) -> _Mirror | None: ...

    @property
    def price_in(self) -> float | None: ...


def refuse_bad_traffic(models: Sequence[_Model], served: AbstractSet[str]) -> None:
    """Raises `ValueError` for a name that nobody serves, oneself where that is no use, and a variant without a price.

    Each list is followed one step: a fallback's own fallbacks are not, so there is no ring to run in.
    """
    known = served | {model.name for model in models}
    priced = {model.name for model in models if model.price_in is not None}
    for model in models:
        mirror = () if model.mirror is None else (model.mirror.model,)
        for key, names in (("weights", tuple(model.weights)), ("fallbacks", model.fallbacks), ("mirror", mirror)):
            _refuse_names(model.name, key, names, known)
        if model.weights and not sum(model.weights.values()):
            raise ValueError(f"models: weights of {model.name}: one of them must be above 0")
        if model.name in priced and (unpriced := sorted(model.weights.keys() - priced)):
            raise ValueError(f"models: weights of {model.name}: it has a price, so {unpriced[0]} needs one too")


def _refuse_names(model: str, key: str, names: Iterable[str], known: AbstractSet[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name == model and key != "weights":
            raise ValueError(f"models: {key} of {model}: it cannot be its own")
        if name not in known:
            raise ValueError(f"models: {key} of {model}: {name} is no model; give real names, not aliases")
        if name in seen:
            raise ValueError(f"models: {key} of {model}: {name} stands more than once")
        seen.add(name)
