"""What tokens are worth against a limit: charged tokens for rates and days, nanodollars for months. Whole numbers.

A price is in nanodollars for a million tokens, so that every price a person writes is a whole number; what a request
costs is rounded up to a nanodollar once, at its end.
"""

from dataclasses import dataclass
from decimal import Decimal

from msgspec import Struct

from policies.meters import NANODOLLARS

_MILLION = 1_000_000


class Work(Struct, gc=False):  # made for every request: half the price of a dataclass
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
        cached = work.cached_tokens
        uncached = work.prompt_tokens - cached
        return -(-(uncached * self.uncached + cached * self.cached + work.output_tokens * self.output) // _MILLION)

    def expected(self, prompt_tokens: int, output_tokens: int) -> tuple[int, int]:
        """(nanodollars with nothing cached, those of the prompt alone), rounded up."""
        prompt = prompt_tokens * self.uncached
        return -(-(prompt + output_tokens * self.output) // _MILLION), -(-prompt // _MILLION)


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


def cached_weight(cached_token_discount: float) -> int:
    """What of a cached token is charged, in millionths: whole, so that nothing is lost by a float's last bit."""
    return round((1.0 - cached_token_discount) * _MILLION)


def charged_tokens(work: Work, weight: int) -> int:
    """Uncached and output tokens, and the cached ones by their `weight` in millionths, rounded up."""
    cached = work.cached_tokens
    if not cached:
        return work.prompt_tokens + work.output_tokens
    return work.prompt_tokens - cached + work.output_tokens - (-cached * weight // _MILLION)
