"""Which surfaces a model is served on by its replicas, and what is told whoever asks it for another one."""

from collections.abc import Iterable

from gateway.errors import ClientError

MAX_NAMED = 5  # models that serve what another one does not, in the sentence about it

# (model, its surfaces, its tasks where they are known, its longest input where that is known), of one replica
Served = tuple[str, frozenset[str], frozenset[str] | None, int | None]


class ModelSurfaces:
    """By model: what all its replicas serve, and what some do."""

    def __init__(self) -> None:
        self._every: dict[str, frozenset[str]] = {}
        self._some: dict[str, frozenset[str]] = {}
        self._tasks: dict[str, frozenset[str]] = {}
        self._context_tokens: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ModelSurfaces { ({model: sorted(found) for model, found in self._some.items()}) }>"

    def replace(self, replicas: Iterable[Served]) -> None:
        """These are the replicas now, in any state."""
        self._every, self._some, self._tasks, self._context_tokens = {}, {}, {}, {}
        for model, surfaces, tasks, context_tokens in replicas:
            self._every[model] = self._every.get(model, surfaces) & surfaces
            self._some[model] = self._some.get(model, surfaces) | surfaces
            if tasks is not None:
                self._tasks[model] = self._tasks.get(model, tasks) | tasks
            if context_tokens is not None:
                self._context_tokens[model] = min(context_tokens, self._context_tokens.get(model, context_tokens))

    def needs(self, model: str, surface: str) -> str | None:
        """What a replica must be chosen by: nothing (empty) if all of the model's serve it. None: none does."""
        every = self._every.get(model)
        if every is None or surface in every:
            return ""
        return surface if surface in self._some[model] else None

    def of(self, model: str) -> frozenset[str]:
        """What some replica of the model serves."""
        return self._some.get(model, frozenset())

    def tasks(self, model: str) -> tuple[str, ...] | None:
        """What the model does, in order; None where nobody says."""
        found = self._tasks.get(model)
        return None if found is None else tuple(sorted(found))

    def context_tokens(self, model: str) -> int | None:
        """The longest input that all its engines take, as far as they say."""
        return self._context_tokens.get(model)

    def refusal(self, asked: str, model: str, surface: str, visible: Iterable[str], *, called: str = "") -> ClientError:
        """400: no replica of the model serves the surface. `visible`: the models that the caller may know of.

        `called`: the path that the caller used, where what it needs of an engine has another name.
        """
        others = [name for name in visible if name in self._tasks and surface in self._some[name]]
        own = ", ".join(sorted(one for one in self.of(model) if " " not in one)) or "nothing that this gateway has"
        elsewhere = f"; {_named(others)} {'do' if len(others) > 1 else 'does'}" if others else ""
        named = surface if surface.startswith(called) else called
        message = f"the model {asked[:128]!r} does not serve {named}: it serves {own}{elsewhere}"
        return ClientError(message, param="model", code="unsupported_model")


def _named(models: list[str]) -> str:
    more = f" and {len(models) - MAX_NAMED} more" if len(models) > MAX_NAMED else ""
    return ", ".join(map(repr, models[:MAX_NAMED])) + more
