"""Why a limit refuses, in words and numbers for the client: which limit, what is left of it, when to come back."""

import math
from dataclasses import dataclass
from enum import Enum

from policies.in_flight import Unit
from policies.meters import NANODOLLARS, Counted, Meter, Short
from policies.minute_window import WINDOW_S


class Reason(Enum):
    """The limit that refused. The value is the `code` a client sees."""

    RPM = "rpm"
    TPM = "tpm"
    TOKENS_PER_DAY = "tokens_per_day"
    USD_PER_MONTH = "usd_per_month"
    CONCURRENCY = "concurrency"
    UNPRICED = "model_not_priced"  # money is limited, and nobody said what the model costs


class Scope(Enum):
    """Whose limit it is."""

    PROJECT = "project"
    ORGANIZATION = "organization"


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused, and nothing was counted. `retry_after_s`: None when waiting is no use (more than the limit itself).

    `limit`, `remaining`: of the refusing limit, in requests, tokens or nanodollars. `pending`: the meter and the amount
    (of a unit: 1) that the other gateways were asked for just now; another try in some milliseconds may pass.
    """

    reason: Reason
    scope: Scope
    limit: int
    remaining: int
    retry_after_s: float | None
    message: str
    pending: tuple[Meter | Unit, int] | None = None

    @property
    def name(self) -> str:
        """For the record: whose limit, and which, such as `project.rpm`."""
        return f"{self.scope.value}.{self.reason.value}"


REASONS = {counted: Reason(counted.value) for counted in Counted}


def over(short: Short, scope: Scope, amount: int, *, time_zone: str) -> Rejected:
    """A meter has no room for `amount`; 0: for anything."""
    meter = short.meter
    limit = meter.limit
    if meter.counted is Counted.REQUESTS:
        text = f"the {scope.value} may send {limit} requests in {WINDOW_S} seconds: {short.remaining} are left"
    elif meter.counted is Counted.TOKENS:
        text = f"the {scope.value} may use {limit} tokens in {WINDOW_S} seconds: " + _need(short, amount)
    elif meter.counted is Counted.DAY_TOKENS:
        text = f"the {scope.value} may use {limit} tokens a day ({time_zone}): " + _need(short, amount)
    else:
        left = f"{usd(short.remaining)} are left" + (f" and this request may cost {usd(amount)}" if amount else "")
        text = f"the {scope.value} may spend {usd(limit)} USD a month ({time_zone}): {left}"
    message = f"{text}; {_when(short.retry_after_s)}"
    pending = (meter, amount) if short.is_pending else None
    return Rejected(REASONS[meter.counted], scope, limit, short.remaining, short.retry_after_s, message, pending)


def full(scope: Scope, lane: str, limit: int, retry_after_s: float | None) -> Rejected:
    """As many requests are in flight as may be."""
    text = f"the {scope.value} may have {limit} requests in flight in the {lane} lane, queued ones included"
    message = f"{text}: 0 are left; {_when(retry_after_s)}"
    return Rejected(Reason.CONCURRENCY, scope, limit, 0, retry_after_s, message)


def unpriced(scope: Scope, limit: int, remaining: int) -> Rejected:
    """Money is limited and the model has no price: what cannot be counted is not spent."""
    message = (
        f"the {scope.value} may spend {usd(limit)} USD a month and this model has no price, so its use cannot be "
        "counted; ask the operator to set price_in and price_out of the model"
    )
    return Rejected(Reason.UNPRICED, scope, limit, remaining, None, message)


def usd(nanousd: int) -> str:
    """Dollars without needless zeros."""
    return f"{nanousd // NANODOLLARS}.{nanousd % NANODOLLARS:09d}".rstrip("0").rstrip(".")


def _need(short: Short, amount: int) -> str:
    return f"{short.remaining} are left" + (f" and this request needs about {amount}" if amount else "")


def _when(retry_after_s: float | None) -> str:
    if retry_after_s is None:
        return "waiting is of no use"
    seconds = max(1, math.ceil(retry_after_s))
    days, hours = divmod(seconds // 3600, 24)
    words = f" ({days} d {hours} h)" if days else f" ({hours} h {seconds % 3600 // 60} min)" if hours else ""
    return f"try again in {seconds} s{words}"
