"""What steps took, from the ledger: times of requests, and what else their replica had to do meanwhile.

The ledger knows no gaps, but how long an answer took and how many tokens it had; who was on the same replica then is in
the other rows. Of a replica that gets requests from elsewhere too this sees a part of the work only.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.replay.step_fit import Observation

LEAST_TOKENS = 16  # of an answer: a shorter one's time is mostly the way there and back
MOST_ROWS = 200_000  # read, the oldest first as an export has them: more would say no more; chosen
_ALONE = 1.001  # itself, and what sums of many times round to
_COLUMNS = ("replica", "started_at", "ended_at", "queue_s", "ttft_s", "prompt_tokens", "cached_tokens")
_NEEDED = (*_COLUMNS, "completion_tokens")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Served:
    """One answered request of a replica. Times: Unix seconds."""

    sent_at: float
    first_at: float
    over_at: float
    uncached_tokens: int
    output_tokens: int


class NoLedger(ValueError):
    """The file is no export of the ledger; the message says what it lacks."""


def read_served(lines: Iterable[str]) -> dict[str, list[Served]]:
    """Streamed answers by replica, from `warmlane usage export` as CSV. Raises `NoLedger`."""
    try:
        return _by_replica(csv.DictReader(lines))
    except csv.Error as error:
        raise NoLedger(f"it is no CSV: {error}") from None


def _by_replica(reader: "csv.DictReader[str]") -> dict[str, list[Served]]:
    missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise NoLedger(f"it is no CSV of `warmlane usage export`: it lacks {', '.join(missing)}")
    found: dict[str, list[Served]] = defaultdict(list)
    for number, row in enumerate(reader, start=2):
        try:
            served = _served(row)
        except (TypeError, ValueError) as error:
            raise NoLedger(f"line {number}: {error}") from None
        if served is not None:
            found[row["replica"]].append(served)
        if number > MOST_ROWS:
            break
    return dict(found)


def observations(served: Sequence[Served], max_step_tokens: int) -> Iterator[Observation]:
    """Of one replica: each answer's tokens behind the first, and the way to the first where nobody else was there.

    A busy replica's way to a first token has waits in it that no row tells of; its gaps tell what reading costs.
    """
    sent, firsts, ends = (
        np.array([getattr(one, name) for one in served]) for name in ("sent_at", "first_at", "over_at")
    )
    rows, present, read = _Integral(firsts, ends), _Integral(sent, ends), _Read(served)
    for one in served:
        tokens, wait_s = one.uncached_tokens, one.first_at - one.sent_at
        if tokens and wait_s > 0 and present.mean(one.sent_at, one.first_at) <= _ALONE:
            yield Observation(-(-tokens // max_step_tokens), 0.0, tokens, wait_s, hops=1.0)
        took_s, steps = one.over_at - one.first_at, one.output_tokens - 1
        if one.output_tokens >= LEAST_TOKENS and took_s > 0:
            tokens = read.between(one.first_at, one.over_at)
            yield Observation(steps, rows.mean(one.first_at, one.over_at) * steps, tokens, took_s)


def _served(row: dict[str, str]) -> Served | None:
    """None for what says nothing of a replica's steps."""
    if not (row["replica"] and row["ttft_s"] and row["prompt_tokens"] and row["completion_tokens"]):
        return None
    started, ttft_s = float(row["started_at"]), float(row["ttft_s"])
    sent_at = started + float(row["queue_s"] or 0.0)
    uncached = max(0, int(row["prompt_tokens"]) - int(row["cached_tokens"] or 0))
    return Served(sent_at, started + ttft_s, float(row["ended_at"]), uncached, int(row["completion_tokens"]))


class _Integral:
    """How many were there at a time, on average between two moments; each from its beginning to its end."""

    def __init__(self, begins: Floats, ends: Floats) -> None:
        times = np.concatenate([begins, np.maximum(begins, ends)])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        steps = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])[order]
        rows = np.cumsum(steps)
        passed = np.diff(self._times, append=self._times[-1:])
        self._sums = np.concatenate([[0.0], np.cumsum(rows * passed)[:-1]])

    def mean(self, begin: float, end: float) -> float:
        """Between the two."""
        sums: Floats = np.interp([begin, end], self._times, self._sums)
        return float(sums[1] - sums[0]) / (end - begin)


class _Read:
    """Prompt tokens that were read between two moments, each prompt's at its first token."""

    def __init__(self, served: Sequence[Served]) -> None:
        ordered = sorted(served, key=lambda one: one.first_at)
        self._times = np.array([one.first_at for one in ordered])
        self._sums = np.concatenate([[0], np.cumsum([one.uncached_tokens for one in ordered])])

    def between(self, begin: float, end: float) -> int:
        """Of all whose first token came in `(begin, end]`."""
        first, last = np.searchsorted(self._times, [begin, end], side="right")
        return int(self._sums[last] - self._sums[first])
