"""Counts gaps between tokens by length, for Prometheus.

Every token of every client moves it, hence no locks and no walk through the buckets: the library's own histogram took
an eighth of what the event loop does for a token.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class GapHistogram(Collector):
    """One histogram with fixed labels. Counted and collected on one thread, the event loop's.

    `bounds`: upper ends of its buckets in seconds, growing; what is longer than all goes into one more.
    """

    def __init__(
        self, name: str, text: str, label_names: Sequence[str], labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name, self._text = name, text
        self._label_names, self._labels = label_names, labels
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum_s = 0.0

    def count(self, gap_s: float, num_tokens: int) -> None:
        """So many tokens came at once, this long after the ones before: each counts its share of the gap."""
        self._counts[bisect_left(self._bounds, gap_s / num_tokens)] += num_tokens
        self._sum_s += gap_s

    def collect(self) -> Iterable[Metric]:
        """The one metric."""
        buckets, total = [], 0
        for bound, number in zip((*self._bounds, inf), self._counts, strict=True):
            total += number
            buckets.append(("+Inf" if bound == inf else repr(bound), total))
        family = HistogramMetricFamily(self._name, self._text, labels=self._label_names)
        family.add_metric(self._labels, buckets, self._sum_s)
        yield family
