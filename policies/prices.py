"""What tokens are worth against a limit: charged tokens for rates and days, nanodollars for months. Whole numbers.

A price is in nanodollars for a million tokens, so that every price a person writes is a whole number; what a request
costs is rounded up to a nanodollar once, at its end.
"""

from dataclasses import dataclass
from decimal import Decimal

from policies.meters import NANODOLLARS

_MILLION = 1_000_000


@dataclass(slots=True)  # not frozen, as all that is made for every request: it would cost twice as much
class Work:
    """Tokens that an engine worked off for one request. `cached_tokens` of the prompt came from its cache."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that were computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, slots=True)
class Price:
    """Of a million tokens, in nanodollars."""

    uncached: int
    cached: int
    output: int

    def of(self, work: Work) -> int:
        """Nanodollars, rounded up: work that has a price is never free."""
        total = (
            work.uncached_tokens * self.uncached + work.cached_tokens * self.cached + work.output_tokens * self.output
        )
        return -(-total // _MILLION)


def nanodollars(usd: float) -> int:
    """Dollars as a person writes them, in nanodollars, to the nearest."""
    return round(Decimal(repr(usd)) * NANODOLLARS)


def price_of(usd_in: float | None, usd_cached: float | None, usd_out: float | None) -> Price | None:
    """A model's price from USD per million tokens; None unless both input and output have one.

    Without a price of its own a cached token costs what any input token costs.
    """
    if usd_in is None or usd_out is None:
        return None
    uncached = nanodollars(usd_in)
    return Price(uncached, uncached if usd_cached is None else nanodollars(usd_cached), nanodollars(usd_out))


def charged_tokens(work: Work, cached_token_discount: float) -> int:
    """Uncached and output tokens, and the cached ones times (1 - discount), rounded up. `discount`: 0..1."""
    if not work.cached_tokens:
        return work.prompt_tokens + work.output_tokens
    millionths = round((1.0 - cached_token_discount) * _MILLION)  # whole, so that nothing is lost by a float's last bit
    return work.uncached_tokens + work.output_tokens - (-work.cached_tokens * millionths // _MILLION)
