"""Counted limits: what may be used in a window of time, and the contract of whoever counts it.

A meter is one limit of one project or organisation: requests or tokens of the last minute, tokens of a day, money of a
month. One gateway counts exactly and in memory; several lease parts of each window from the shared store. Everything
is a whole number, so that nothing is lost by rounding: requests, charged tokens, nanodollars. Knows no clock.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from msgspec import Struct

NANODOLLARS = 1_000_000_000  # of a dollar: a token of 0.001 USD a million is one of them
UNLIMITED = 2**62  # the limit of a meter that only counts


class Counted(Enum):
    """What a meter counts, and the name of the limit; the value is the `code` a refused client sees."""

    REQUESTS = "rpm"
    TOKENS = "tpm"
    DAY_TOKENS = "tokens_per_day"
    MONTH_MONEY = "usd_per_month"


class Moment(Struct, frozen=True, gc=False):  # several are made for every request: half the price of a dataclass
    """One instant on two clocks, in seconds. `now`: monotonic, for sliding windows. `unix`: for calendar windows."""

    now: float
    unix: float


@dataclass(frozen=True, slots=True)
class Meter:
    """One limit. `of`: `project:ID` or `organization:ID`. `limit`: requests, charged tokens or nanodollars.

    `starts_at`, `ends_at`: the calendar window in Unix seconds; both 0 for the sliding window of the last minute.
    `key`: names the counter, whatever its limit is now; meters with one key count together.
    """

    of: str
    counted: Counted
    limit: int
    starts_at: int = 0
    ends_at: int = 0
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.of}:{self.counted.value}:{self.starts_at}")

    @property
    def is_sliding(self) -> bool:
        """Whether it is about the last minute."""
        return not self.ends_at


@dataclass(frozen=True, slots=True)
class Short:
    """Refused; nothing was counted. `remaining`: what the limit still allows here, less than was asked.

    `retry_after_s`: when it would be allowed if nothing else came; None when waiting is no use (more than the limit).
    `is_pending`: an allowance has been asked for, and what is said here may be outdated in milliseconds.
    """

    meter: Meter
    remaining: int
    retry_after_s: float | None
    is_pending: bool = False


class Standing(Struct, gc=False):
    """What the `x-ratelimit-*` headers say, for the strictest limit (the one with the least remaining).

    `reset_s`: as OpenAI defines it, seconds until the limit is back in its initial state if nothing more is sent: until
    the last amount counted leaves the window. 0.0 when none is counted.
    """

    limit: int
    remaining: int
    reset_s: float


class Take(Protocol):
    """An amount that was counted. Ends once, by `correct` or `undo`; a second end changes nothing."""

    def correct(self, actual: int, moment: Moment) -> None:
        """The real amount is known: the difference is counted or given back, also beyond the limit."""
        ...

    def undo(self, moment: Moment) -> None:
        """As if it had never been counted."""
        ...


class Meters(Protocol):
    """Counts. Synchronous: nothing here waits for a network."""

    def take(self, meter: Meter, amount: int, moment: Moment) -> Take | Short:
        """Count an amount if the window has room for it."""
        ...

    def remaining(self, meter: Meter, moment: Moment) -> tuple[int, float]:
        """(what is still allowed here, seconds until the limit is whole again if nothing comes). Does not mutate."""
        ...

    def used(self, meter: Meter, moment: Moment) -> int:
        """What is counted in the window now, as far as is known here."""
        ...

    def expire(self, moment: Moment) -> int:
        """Drop what no window holds any more; how many meters were dropped."""
        ...

    def statistics(self) -> dict[str, int]:
        """`takes` (not ended) is 0 when quiescent; `meters` are those in memory."""
        ...
