"""The sections of the configuration about replicas that fail, stand out, come back or are slow to answer."""

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from routing.outliers import OutlierSettings
from routing.slow_start import SlowStartSettings

Ratio = Annotated[float, Field(ge=0, le=1)]


class RetrySection(BaseModel, extra="forbid", frozen=True):
    """`budget_ratio`: retries allowed as a share of requests, over the last seconds.

    `replica_budget_ratio`: of the attempts at one replica, those whose failure may be retried, so that one broken
    replica does not use up what all may.
    """

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    budget_ratio: Ratio = 0.1
    replica_budget_ratio: Ratio = 0.5


class OutlierSection(BaseModel, extra="forbid", frozen=True):
    """Replicas that fail, or answer late, far more often than the others of their model get no requests for a while.

    `max_ejected_share`: of a model's replicas that may be out, lost ones counted in; one of three may; 0: nobody is
    ejected. `first_s`: how long the first time; each further one twice as long, up to `max_s`.
    """

    max_ejected_share: Annotated[float, Field(ge=0, le=0.5)] = 0.25
    first_s: Annotated[float, Field(ge=1, le=3600)] = 15
    max_s: Annotated[float, Field(ge=1, le=86400)] = 300

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.max_s < self.first_s:
            raise ValueError(f"max_s is {self.max_s:g}, less than first_s, {self.first_s:g}")
        return self

    def rules(self) -> OutlierSettings:
        """The same for the router."""
        return OutlierSettings(self.max_ejected_share, self.first_s, self.max_s)


class SlowStartSection(BaseModel, extra="forbid", frozen=True):
    """A replica that comes to a model whose others are at work may have a growing part of its seats.

    `window_s`: until it may have all; 0: at once.
    """

    window_s: Annotated[float, Field(ge=0, le=3600)] = 15

    def rules(self) -> SlowStartSettings:
        """The same for the router."""
        return SlowStartSettings(self.window_s)


class HedgingSection(BaseModel, extra="forbid", frozen=True):
    """A second attempt on another replica for a stream of the interactive lane that is slow to begin.

    `max_share`: of those requests that may have one; 0: none has. `quantile`: it is made when so many of the requests
    with such a predicted time would have begun.
    """

    max_share: Annotated[float, Field(ge=0, le=0.5)] = 0
    quantile: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95
