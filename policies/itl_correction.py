"""Whether people's gaps between tokens were as the step-cost model promised; widens or narrows the room of bulk. Pure.

The slow loop: it moves only on many gaps (200 at least) seen under the present setting, additively up, by a factor
down, within bounds, and not at all while the p95 lies near the objective. Gaps are compared as multiples of the
objective that held for them, because the number of rows beside them differs. Knows no clock and no requests.
"""

from collections import Counter
from dataclasses import dataclass
from math import exp, floor, inf, log

_BUCKET = log(1.04)  # ratios are kept by buckets 4% wide: finer than any decision made here
_LEAST, _MOST = 1 / 64, 64.0
_SHARE_BESIDE = 0.05  # chosen: with fewer bulk rows than this on average a request counts as alone


@dataclass(frozen=True, slots=True)
class SeenGaps:
    """The gaps between one interactive request's tokens. `since`: when its first token came, `now`: when it ended.

    `sample`: some of them, evenly taken, in seconds. `urgent_rows`, `bulk_rows`: on the replica meanwhile, on average,
    itself included.
    """

    since: float
    now: float
    sample: tuple[float, ...]
    urgent_rows: float
    bulk_rows: float


@dataclass(frozen=True, slots=True)
class CorrectionSettings:
    """Chosen, but for `min_gaps` (a p95 of fewer says nothing). Raises `ValueError` for bounds that make no sense.

    `first`, `least`, `most`: room for bulk as a multiple of what the model allows. `narrow` multiplies it, `widen` is
    added. `too_long_from`, `short_until`: p95 as a multiple of the objective above which room is taken, below which
    given. `min_requests`: so many at least behind the gaps. `window_s`: gaps that did not become enough by then are
    dropped, and a narrowed room goes one step back towards the first: the trouble may be over, and nobody can see
    it while bulk is kept away.
    """

    first: float = 0.5
    least: float = 0.1
    most: float = 2.0
    narrow: float = 0.7
    widen: float = 0.1
    too_long_from: float = 1.05
    short_until: float = 0.95
    min_gaps: int = 200
    min_requests: int = 10
    window_s: float = 300.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not 0 < self.least <= self.first <= self.most < inf or not 0 < self.narrow < 1 or self.widen <= 0:
            raise ValueError("room goes from least over first to most, narrow is within 0..1, widen above 0")
        if self.min_gaps < 200 or self.min_requests < 1 or self.window_s <= 0:
            raise ValueError("a p95 needs 200 gaps and a request at least, and a window")
        if not 0 < self.short_until < self.too_long_from:
            raise ValueError("short_until lies below too_long_from: between them nothing moves")


class _Ratios:
    """Gaps as multiples of their objective, in buckets: bounded by the buckets' range."""

    def __init__(self) -> None:
        self.num_gaps = 0
        self.num_requests = 0
        self._buckets: Counter[int] = Counter()

    def add(self, gaps: SeenGaps, objective_s: float) -> None:
        """Take in one request."""
        self.num_requests += 1
        self.num_gaps += len(gaps.sample)
        self._buckets.update(_bucket(gap_s / objective_s) for gap_s in gaps.sample)

    def p95(self) -> float:
        """The middle of the bucket that holds the 95th of a hundred gaps; 0 without any."""
        left = 0.05 * self.num_gaps
        for bucket in sorted(self._buckets, reverse=True):
            left -= self._buckets[bucket]
            if left < 0:
                return exp((bucket + 0.5) * _BUCKET)
        return 0.0


class ItlCorrection:
    """`room`: what bulk may take of a step, as a multiple of what the model allows; it starts low."""

    def __init__(self, settings: CorrectionSettings) -> None:
        self.settings = settings
        self.room = settings.first
        self.num_moves = 0
        self.p95_alone: float | None = None  # of gaps without bulk, as a multiple of the objective; None: not seen
        self.p95_beside: float | None = None
        self._alone = _Ratios()
        self._beside = _Ratios()
        self._changed_at = -inf
        self._began_at: float | None = None

    def __repr__(self) -> str:
        return f"<ItlCorrection room={self.room:.2f} moves={self.num_moves} gaps={self._beside.num_gaps}>"

    def observe(self, gaps: SeenGaps, objective_s: float, growth: float, *, is_fixed: bool) -> None:
        """Take in one request; may move the room. Those that began before the last move say nothing of this one.

        `is_fixed`: the objective is a time of its own. Otherwise it is `growth` times the step without bulk, and where
        gaps without bulk are longer than that already, `growth` times those: bulk is not to blame for them.
        """
        if not gaps.sample or not objective_s > 0:
            return
        self.expire(gaps.now)
        if gaps.bulk_rows < _SHARE_BESIDE:
            self._alone.add(gaps, objective_s)
            if self._is_enough(self._alone):
                self.p95_alone, self._alone = self._alone.p95(), _Ratios()
            return
        if gaps.since < self._changed_at:
            return
        if self._began_at is None:
            self._began_at = gaps.now
        self._beside.add(gaps, objective_s)
        if self._is_enough(self._beside):
            bound = 1.0 if is_fixed or self.p95_alone is None else max(1.0, growth * self.p95_alone)
            self.p95_beside = self._beside.p95()
            self._start_window(gaps.now, self._moved(self.p95_beside / bound))

    def expire(self, now: float) -> None:
        """Drop a window that did not fill, and forget a part of a narrowing with it."""
        if self._began_at is None:
            self._began_at = now
        elif now - self._began_at >= self.settings.window_s:
            self._start_window(now, max(self.room, min(self.settings.first, self.room + self.settings.widen)))

    def _is_enough(self, ratios: _Ratios) -> bool:
        return ratios.num_gaps >= self.settings.min_gaps and ratios.num_requests >= self.settings.min_requests

    def _moved(self, p95: float) -> float:
        settings = self.settings
        if p95 > settings.too_long_from:
            return max(settings.least, self.room * settings.narrow)
        if p95 < settings.short_until:
            return min(settings.most, self.room + settings.widen)
        return self.room

    def _start_window(self, now: float, room: float) -> None:
        self._beside = _Ratios()
        self._began_at = now
        if room != self.room:
            self.room, self._changed_at = room, now
            self.num_moves += 1


def _bucket(ratio: float) -> int:
    return floor(log(min(max(ratio, _LEAST), _MOST)) / _BUCKET)
