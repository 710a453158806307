"""Which model a name means: aliases resolve to one real name, and only that name is used from then on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gateway.errors import ClientError
from gateway.model_settings import ModelSection
from gateway.model_surfaces import ModelSurfaces
from gateway.outcome import Outcome
from policies.tenant import Tenant


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as `GET /v1/models` shows it. `context_tokens`, `tasks` (what it does): None where nobody said."""

    name: str
    aliases: tuple[str, ...] = ()
    context_tokens: int | None = None
    tasks: tuple[str, ...] | None = None


class ModelTable:
    """The configured models and whatever the replicas serve besides. `served` names the latter, at each call.

    `surfaces`: what the replicas say of their models; None: nothing.
    """

    def __init__(
        self,
        configured: Iterable[ModelSection],
        served: Callable[[], frozenset[str]],
        surfaces: ModelSurfaces | None = None,
    ) -> None:
        self._served = served
        self._surfaces = surfaces or ModelSurfaces()
        self.configure(configured)

    def configure(self, configured: Iterable[ModelSection]) -> None:
        """Other models and aliases from now on; requests that were resolved keep the real name that they have."""
        self._configured = {
            section.name: ServedModel(section.name, section.aliases, section.context_tokens) for section in configured
        }
        self._aliases = {alias: model.name for model in self._configured.values() for alias in model.aliases}

    def names(self) -> frozenset[str]:
        """Every real name."""
        return self._served() | self._configured.keys()

    def visible(self, tenant: Tenant) -> list[ServedModel]:
        """The models a tenant may use, by name."""
        allowed = tenant.limits.models
        names = sorted(name for name in self.names() if allowed is None or self._is_allowed(name, allowed))
        return [self._with_facts(self._configured.get(name, ServedModel(name))) for name in names]

    def resolve(self, asked: str, tenant: Tenant) -> str:
        """The real name. Raises `ClientError`: 404 if there is no such model, 403 if the tenant may not use it."""
        name = self._aliases.get(asked, asked)
        if name not in self._configured and name not in self._served():
            raise ClientError(
                f"the model {asked[:128]!r} does not exist; GET /v1/models lists yours",
                param="model",
                status=404,
                code="model_not_found",
            )
        allowed = tenant.limits.models
        if allowed is not None and asked not in allowed and not self._is_allowed(name, allowed):
            raise ClientError(
                f"this project may not use the model {asked[:128]!r}",
                param="model",
                status=403,
                code="model_not_allowed",
                outcome=Outcome.FORBIDDEN,
            )
        return name

    def allows(self, name: str, tenant: Tenant) -> bool:
        """Whether the tenant may use a model, by its real name."""
        allowed = tenant.limits.models
        return allowed is None or self._is_allowed(name, allowed)

    def _with_facts(self, model: ServedModel) -> ServedModel:
        """What the configuration leaves open, as the engines say."""
        context_tokens = model.context_tokens or self._surfaces.context_tokens(model.name)
        return replace(model, context_tokens=context_tokens, tasks=self._surfaces.tasks(model.name))

    def _is_allowed(self, name: str, allowed: frozenset[str]) -> bool:
        if name in allowed:
            return True
        model = self._configured.get(name)
        return model is not None and not allowed.isdisjoint(model.aliases)
