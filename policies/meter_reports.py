"""What a gateway and the shared store tell each other about meters: reports of use, and grants of allowance.

A gateway takes from an allowance that it was granted (`held` in the store, counted as used for everybody else) and
reports what it used, second by second of the store's clock. Every use is told in a numbered batch, so that a lost
answer, a failover or an outage makes none count twice. Pure values.
"""

from dataclasses import dataclass

from policies.meters import Counted, Meter

WINDOW_S = 60  # a use stays counted for 60 whole seconds after the one it is noted in
AHEAD_S = 2  # a noted second may be so far ahead of the store's; beyond that a clock was set back
SECOND_OF_CALENDAR = 0  # a calendar window is one counter


def keep_s(meter: Meter) -> int:
    """How long the store knows the last batch of a gateway that says nothing: longer than it matters."""
    return 2 * WINDOW_S if meter.is_sliding else 3600


def keeps_of_the_dead(counted: Counted) -> bool:
    """Whether what a silent gateway held stays counted (money), instead of returning when its lease ends (rates)."""
    return counted is Counted.MONTH_MONEY


@dataclass(frozen=True, slots=True)
class MeterAsk:
    """One meter in a report. `spare`: all that the gateway may still take; it has given up the rest already.

    `wanted`: the allowance it has use for. `need`: the least that a request lacked, all or nothing; 0 if none did.
    `used`: (second, amount), net, of the batches after number `base` up to this report; `base` 0: of all it remembers.
    """

    meter: Meter
    spare: int
    wanted: int
    need: int
    base: int
    used: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MeterReport:
    """What a gateway tells. `number` grows with every report; `sent_at`: seconds on the lease's clock."""

    gateway: str
    number: int
    sent_at: float
    asks: tuple[MeterAsk, ...]


@dataclass(frozen=True, slots=True)
class MeterGrant:
    """The answer to one ask. `granted`: more to take; below 0: to give up, as far as it is still there.

    `batch`: the last batch that the store has of this gateway; `is_behind`: the one in this report did not follow on it
    and was not taken in. `used`: of all gateways, as counted; `free`: neither used nor held. `resets_at`, `retry_at`:
    Unix seconds of the store, when the window is whole again, and when what was needed would fit; 0: now, or unknown.
    `is_called`: others hold what was needed and were told to give it back. `is_stale`: overtaken by a later report.
    """

    granted: int
    batch: int
    used: int
    free: int
    resets_at: int
    retry_at: int
    is_behind: bool = False
    is_called: bool = False
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class MeterGrants:
    """The answer to a report. `at_ms`: on the store's clock. `called`: keys that the others are told to report on."""

    at_ms: int
    grants: tuple[MeterGrant, ...]
    called: tuple[str, ...] = ()
