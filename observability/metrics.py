"""The Prometheus metrics people alert on, fed from finished records and from gauges read at scrape time.

Labels come from closed sets: configured models (others are `other`), lanes, outcomes, limits. Tenants never.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from observability.gauges import READ_AT_SCRAPE, MetricHelp
from observability.records import RequestRecord

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
_ITL_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2)
_OVERHEAD_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
OTHER_MODEL = "other"
_MEANINGS = {one.name: one.meaning for one in READ_AT_SCRAPE}

_Metric = TypeVar("_Metric", Counter, Histogram)

_Family = CounterMetricFamily | GaugeMetricFamily

GaugeRows = Iterable[tuple[str, dict[str, str], float]]


class _Series(dict[tuple[str, ...], _Metric]):
    """One metric's series by their labels, each made when it is first counted. Bounded as the labels are.

    The library checks, spells and looks up the labels anew each time, which costs more than the counting.
    """

    def __init__(self, metric: _Metric) -> None:
        self._metric: _Metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> _Metric:
        series: _Metric = self._metric.labels(*labels)
        self[labels] = series
        return series


class Metrics:
    """One registry a process. `models` says which names may be labels; `gauges` is asked at each scrape."""

    def __init__(self, models: Callable[[], frozenset[str]], gauges: Callable[[], GaugeRows]) -> None:
        self._models = models
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for every counter that nobody alerts on
        self.registry = CollectorRegistry()
        self._help: list[MetricHelp] = []
        lane = ["model", "lane"]
        self._requests = self._counter("warmlane_requests", "Requests by how they ended.", [*lane, "outcome"])
        self._refusals = self._counter(
            "warmlane_limit_refusals",
            "Requests refused by a limit, or (shadow_…) let through only by its shadow mode.",
            ["reason"],
        )
        self._alerts = self._counter(
            "warmlane_budget_alerts", "Budgets that reached this percentage, once a window.", ["threshold"]
        )
        self._attempts = self._counter("warmlane_attempts", "Requests sent to engines, retries too.", ["model"])
        self._lost = self._counter(
            "warmlane_attempts_lost", "Attempts that an engine failed before any content; nobody pays.", ["model"]
        )
        self._lost_tokens = self._counter(
            "warmlane_attempts_lost_tokens",
            "Tokens of work in lost attempts, as reported or predicted: the operator's cost.",
            ["model"],
        )
        self._hedges = self._counter(
            "warmlane_hedges", "Second attempts beside slow ones: `won`, `lost` or `failed`.", ["model", "outcome"]
        )
        self._hits = self._counter("warmlane_prefix_hit_tokens", "Prompt tokens found in a cache.", ["model", "source"])
        self._prompt = self._counter("warmlane_prompt_tokens", "Prompt tokens.", ["model"])
        ttft = self._histogram(
            "gen_ai_server_time_to_first_token_seconds", "Arrival to first token.", lane, _TTFT_BUCKETS
        )
        itl = self._histogram(
            "gen_ai_server_time_per_output_token_seconds", "Mean gap between tokens.", lane, _ITL_BUCKETS
        )
        queue = self._histogram("warmlane_queue_seconds", "Wait for a seat.", lane, _TTFT_BUCKETS)
        self._ttft, self._itl, self._queue = _Series(ttft), _Series(itl), _Series(queue)
        self._overhead = self._histogram(
            "warmlane_gateway_overhead_seconds",
            "Arrival to upstream send, without the wait for a seat.",
            [],
            _OVERHEAD_BUCKETS,
        )
        self.registry.register(_Gauges(gauges))

    def observe(self, record: RequestRecord) -> None:
        """Count one finished request, once."""
        model = record.model if record.model in self._models() else OTHER_MODEL
        self._requests[model, record.lane, record.outcome].inc()
        if record.attempts:
            self._attempts[model,].inc(record.attempts)
        if record.hedge:
            self._hedges[model, record.hedge].inc()
        if record.lost_attempts:
            self._lost[model,].inc(record.lost_attempts)
            self._lost_tokens[model,].inc(record.lost_tokens)
        if record.outcome == "refused" and record.reason is not None:
            self._refusals[record.reason,].inc()
        elif record.limit is not None:
            self._refusals[_reason_of(record.limit),].inc()
        is_reported = not record.is_estimated  # an estimate is made of predictions: it must not confirm them
        if record.prompt_tokens is not None and is_reported:
            self._prompt[model,].inc(record.prompt_tokens)
        if record.cached_tokens and is_reported:
            self._hits[model, "reported"].inc(record.cached_tokens)
        if record.predicted_hit_tokens:
            self._hits[model, "predicted"].inc(record.predicted_hit_tokens)
        lane = (model, record.lane)
        for histogram, value in (
            (self._ttft, record.ttft_s),
            (self._itl, record.mean_itl_s),
            (self._queue, record.queue_s),
        ):
            if value is not None:
                histogram[lane].observe(value)
        if record.gateway_s is not None:
            self._overhead.observe(record.gateway_s)

    def budget_reached(self, threshold: int) -> None:
        """A budget reached this percentage, one of a few."""
        self._alerts[str(threshold),].inc()

    def counted(self) -> list[MetricHelp]:
        """What is counted from records, for the reference page; the rest is `READ_AT_SCRAPE`."""
        return self._help

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: list[str]) -> "_Series[Counter]":
        self._help.append(MetricHelp(name + "_total", "counter", tuple(labels), text))
        return _Series(Counter(name, text, labels, registry=self.registry))

    def _histogram(self, name: str, text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        self._help.append(MetricHelp(name, "histogram", tuple(labels), text))
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)


def exposition(rows: Callable[[], GaugeRows]) -> str:
    """The exposition format of these alone: for a process that serves no requests."""
    registry = CollectorRegistry()
    registry.register(_Gauges(rows))
    return generate_latest(registry).decode()


def _reason_of(limit: str) -> str:
    """`rpm` for `project.rpm`, and `shadow_rpm` for `shadow.project.rpm`, which let the request through."""
    name = limit.rpartition(".")[2]
    return f"shadow_{name}" if limit.startswith("shadow.") else name


class _Gauges(Collector):
    """Reads the gauges when asked, so that removed replicas leave no series behind. A name in `_total` is a counter."""

    def __init__(self, read: Callable[[], GaugeRows]) -> None:
        self._read = read

    def collect(self) -> Iterable[_Family]:
        families: dict[str, _Family] = {}
        for name, labels, value in self._read():
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                meaning = _MEANINGS.get(name, name.replace("_", " "))
                family = families[name] = kind(name, meaning, labels=list(labels))
            family.add_metric(list(labels.values()), value)
        return families.values()

    def describe(self) -> Iterable[_Family]:
        return []
