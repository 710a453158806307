"""What the configuration says of a model that tenants may name: `[[models]]`."""

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from gateway.config_values import Name, UsdPerMillion

MAX_FALLBACKS = 8  # chosen: each may take as long as a request may
Weight = Annotated[float, Field(ge=0, le=1e6)]


class Mirror(BaseModel, extra="forbid", frozen=True):
    """`share`: of a model's requests, 0 to 1, that are copied to `model`."""

    model: Name
    share: Annotated[float, Field(ge=0, le=1)]


class ModelSection(BaseModel, extra="forbid", frozen=True):
    """A model that tenants may name. Replicas may serve models without one; this adds aliases, bounds and prices.

    `tokenizer`: a GGUF file with the model's vocabulary, or its `tokenizer.json` or the folder of that, so that prompts
    can be compared with what engines tell of their caches (`kv_events`); that of our own workers is known. `price_in`,
    `price_cached`, `price_out`: USD per million tokens of input, of input found in a cache (without it: as any input)
    and of output. A model with no price cannot be used by a tenant that has a `usd_per_month`.

    `weights`: whose replicas serve what names this model, by weight, itself among them if it stands there. `fallbacks`:
    models that are tried in turn when this one cannot answer. `mirror`: a share of its requests is copied to another
    model, whose answers nobody gets. All three: of chats and completions.
    """

    name: Name
    aliases: tuple[Name, ...] = ()
    context_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    tokenizer: str = ""
    price_in: UsdPerMillion | None = None
    price_cached: UsdPerMillion | None = None
    price_out: UsdPerMillion | None = None
    weights: dict[Name, Weight] = {}
    fallbacks: Annotated[tuple[Name, ...], Field(max_length=MAX_FALLBACKS)] = ()
    mirror: Mirror | None = None

    @model_validator(mode="after")
    def _a_price_is_whole(self) -> Self:
        given = [price is not None for price in (self.price_in, self.price_out)]
        if any(given) != all(given) or (self.price_cached is not None and not any(given)):
            raise ValueError(f"the price of {self.name} needs both price_in and price_out")
        if self.price_cached is not None and self.price_in is not None and self.price_cached > self.price_in:
            # A budget holds a prompt back as computed anew: what is cached must not cost more than that.
            raise ValueError(f"price_cached of {self.name} must be at most its price_in")
        return self
