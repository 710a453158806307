"""What a worker tells Prometheus: vLLM's vocabulary under our own prefix, and on request under vLLM's too.

Its registry is its own, so several workers can live in one test process. Gauges and engine counters are read when
scraped; only latencies and endings are counted as they happen. Labels are closed sets.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engines.core.load import EngineLoad
from engines.step_cost import StepCost
from engines.worker.gap_histogram import GapHistogram
from engines.worker.request_log import Outcome
from policies.lane import Lane

_PREFIX, _VLLM_PREFIX = "warmlane:", "vllm:"
_LABELS = ("model_name", "engine")
# vLLM's buckets, seconds
_TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_ITL_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

_GAUGES: tuple[tuple[str, str, Callable[[EngineLoad], float]], ...] = (
    ("num_requests_running", "Sequences that hold a seat.", lambda load: load.running),
    ("num_requests_waiting", "Sequences that wait for a seat.", lambda load: load.waiting),
    ("kv_cache_usage_perc", "KV cache in use by running sequences, 0 to 1.", lambda load: load.kv_used_ratio),
    ("host_kv_bytes", "Host memory with KV that was evicted.", lambda load: load.kv_host_bytes),
    ("host_kv_max_bytes", "Most of it.", lambda load: load.kv_host_max_bytes),
)
_COUNTERS: tuple[tuple[str, str, Callable[[EngineLoad], float]], ...] = (
    ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", lambda load: load.prefix_query_tokens),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda load: load.prefix_hit_tokens),
    ("prompt_tokens", "Prompt tokens of all sequences.", lambda load: load.prefix_query_tokens),
    ("prompt_tokens_cached", "Prompt tokens taken from the cache.", lambda load: load.prefix_hit_tokens),
    ("generation_tokens", "Generated tokens.", lambda load: load.generation_tokens),
    ("bulk_rows_left_out", "Rows that bulk would have had but for others.", lambda load: load.bulk_rows_left_out),
    ("bulk_lifts", "Steps with bulk in spite of the objective.", lambda load: load.bulk_lifts),
    ("spec_decode_num_draft_tokens", "Tokens guessed ahead.", lambda load: load.drafted_tokens),
    ("spec_decode_num_accepted_tokens", "Of these, found right.", lambda load: load.accepted_tokens),
    ("host_kv_saved_tokens", "Tokens copied to host memory.", lambda load: load.kv_saved_tokens),
    ("host_kv_restored_tokens", "Tokens copied back.", lambda load: load.kv_restored_tokens),
    ("host_kv_discarded_tokens", "Tokens given up in host memory.", lambda load: load.kv_discarded_tokens),
    ("num_preemptions", "Sequences that lost their seat.", lambda load: load.preemptions),
)


_VECTOR_COUNTERS = (
    ("embedding_requests", "Requests answered with vectors or scores."),
    ("embedding_inputs", "Texts, or pairs of them, embedded or ranked."),
    ("embedding_tokens", "Tokens of these."),
)


class VectorCounts(Struct, frozen=True):
    """What was embedded or ranked so far."""

    requests: int = 0
    inputs: int = 0
    tokens: int = 0


class WorkerMetrics:
    """One worker's metrics. Also the `TokenTimes` of its generations."""

    def __init__(
        self, model: str, load: Callable[[], EngineLoad], *, block_size: int, num_blocks: int, vllm_names: bool = False
    ) -> None:
        self._registry = CollectorRegistry()
        labels = (model, "0")
        self._registry.register(_EngineCollector(labels, load, block_size=block_size, num_blocks=num_blocks))
        self._ttft = Histogram(
            f"{_PREFIX}time_to_first_token_seconds",
            "Arrival to first token.",
            _LABELS,
            registry=self._registry,
            buckets=_TTFT_BUCKETS,
        ).labels(*labels)
        name, text = f"{_PREFIX}inter_token_latency_seconds", "Gap between consecutive tokens of a sequence."
        self._itl = GapHistogram(name, text, _LABELS, labels, _ITL_BUCKETS)
        self._registry.register(self._itl)
        outcomes = Counter(
            f"{_PREFIX}requests", "Requests by how they ended.", (*_LABELS, "outcome"), registry=self._registry
        )
        self._outcomes = {outcome: outcomes.labels(*labels, outcome.value) for outcome in Outcome}
        self._vectors = [
            Counter(f"{_PREFIX}{name}", text, _LABELS, registry=self._registry).labels(*labels)
            for name, text in _VECTOR_COUNTERS
        ]
        self.num_vectors = VectorCounts()
        self._alias = CollectorRegistry()
        if vllm_names:
            self._alias.register(_Renamed(self._registry))

    def first_token(self, ttft_s: float) -> None:
        """A request's first token came this long after its arrival."""
        self._ttft.observe(ttft_s)

    def next_tokens(self, gap_s: float, num_tokens: int) -> None:
        """`num_tokens` came at once, this long after the ones before."""
        self._itl.count(gap_s, num_tokens)

    def ended(self, outcome: Outcome) -> None:
        """A request ended."""
        self._outcomes[outcome].inc()

    def embedded(self, num_inputs: int, num_tokens: int) -> None:
        """A request was answered with vectors or scores."""
        added = (1, num_inputs, num_tokens)
        before = self.num_vectors
        self.num_vectors = VectorCounts(before.requests + 1, before.inputs + num_inputs, before.tokens + num_tokens)
        for counter, number in zip(self._vectors, added, strict=True):
            counter.inc(number)

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry) + generate_latest(self._alias)


class _EngineCollector(Collector):
    """The engine's own numbers, read at each scrape."""

    def __init__(
        self, labels: tuple[str, str], load: Callable[[], EngineLoad], *, block_size: int, num_blocks: int
    ) -> None:
        self._labels = labels
        self._load = load
        self._config = {
            "block_size": str(block_size),
            "num_gpu_blocks": str(num_blocks),
            "kv_cache_size_tokens": str(block_size * num_blocks),
        }

    def collect(self) -> Iterable[Metric]:
        load = self._load()
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=_LABELS)
            gauge.add_metric(self._labels, value(load))
            yield gauge
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=_LABELS)
            counter.add_metric(self._labels, value(load))
            yield counter
        yield from self._lanes(load)
        yield self._hits_by_medium(load)
        yield self._step_cost(load.step_cost)
        info = GaugeMetricFamily(f"{_PREFIX}cache_config_info", "The KV cache.", labels=(*_LABELS, *self._config))
        info.add_metric((*self._labels, *self._config.values()), 1)
        yield info

    def _lanes(self, load: EngineLoad) -> Iterable[Metric]:
        for name, text, counts in (
            ("num_requests_running_by_lane", "Sequences that hold a seat.", load.running_by_lane),
            ("num_requests_waiting_by_lane", "Sequences that wait for a seat.", load.waiting_by_lane),
        ):
            gauge = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=(*_LABELS, "lane"))
            for lane in Lane:
                gauge.add_metric((*self._labels, lane.value), counts.of(lane))
            yield gauge

    def _hits_by_medium(self, load: EngineLoad) -> Metric:
        text = "Prompt tokens found in the prefix cache, by where they lay."
        counter = CounterMetricFamily(f"{_PREFIX}prefix_cache_hits_by_medium", text, labels=(*_LABELS, "medium"))
        on_device = load.prefix_hit_tokens - load.prefix_host_hit_tokens
        for medium, tokens in (("device", on_device), ("host", load.prefix_host_hit_tokens)):
            counter.add_metric((*self._labels, medium), tokens)
        return counter

    def _step_cost(self, cost: StepCost) -> Metric:
        text = "What a step takes: its base, and what a decoded row and a prefill token add."
        gauge = GaugeMetricFamily(f"{_PREFIX}step_cost_seconds", text, labels=(*_LABELS, "term"))
        terms = (("base", cost.base_s), ("row", cost.per_row_s), ("prefill_token", cost.per_prefill_token_s))
        for term, seconds in terms:
            gauge.add_metric((*self._labels, term), seconds)
        return gauge


class _Renamed(Collector):
    """The same metrics under vLLM's prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            renamed = Metric(_renamed(family.name), family.documentation, family.type, family.unit)
            renamed.samples = [sample._replace(name=_renamed(sample.name)) for sample in family.samples]
            yield renamed


def _renamed(name: str) -> str:
    return _VLLM_PREFIX + name.removeprefix(_PREFIX)
