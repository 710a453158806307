"""What the gauges of `/metrics` mean, and the counters that are read at a scrape as they are; in the order shown."""

from typing import NamedTuple


class MetricHelp(NamedTuple):
    """One metric as the reference page shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def _gauge(name: str, meaning: str, *labels: str) -> MetricHelp:
    return MetricHelp(f"warmlane_{name}", "gauge", labels, meaning)


def _counter(name: str, meaning: str, *labels: str) -> MetricHelp:
    return MetricHelp(f"warmlane_{name}_total", "counter", labels, meaning)


READ_AT_SCRAPE = (
    _gauge("gateways", "living gateways, with a shared store"),
    _gauge("gateways_degraded", "gateways whose lease has run out: the shared store is away"),
    _gauge("limits_degraded", "gateways that decide limits without the shared store"),
    _gauge("gateways_deaf", "gateways that hear none of the others, though there are some"),
    _counter("gossip_sent", "messages told to the other gateways: where prompts went, load, what was learned"),
    _counter("gossip_sent_bytes", "bytes of them"),
    _counter("gossip_heard", "messages of other gateways that were taken in"),
    _counter(
        "gossip_dropped",
        "not told for want of `room` (notes) or `unsent` (messages the store did not take); of others not taken in: "
        "`malformed`, of another `version` or installation (`stranger`), `late` or repeated, and `lost` on the way",
        "reason",
    ),
    _gauge("config_generation", "how often other settings came into force, from 1 at the start"),
    _gauge("config_refused", "1 while the last reading of the configuration was refused"),
    _gauge("ledger_waiting", "requests written down that the ledger does not have yet"),
    _gauge("ledger_files", "files that gateways of this node wrote and the ledger still reads"),
    _counter("mirrored", "copies of requests for another model, by how they ended", "model", "outcome"),
    _counter("ledger_dropped", "refusals that found no room to be written down"),
    _counter("ledger_recovered", "requests of gateways that died, charged as reserved"),
    _counter("ledger_unreadable", "lines of the files that nobody could read"),
    _counter("ledger_restored", "ledger files that were taken away and made again"),
    _counter(
        "response_cache",
        "requests that the response cache could answer (`hit`) or might have (`miss`); answers `kept`, `unfit` (not "
        "complete, or too large), `evicted` for want of room, `expired`",
        "result",
    ),
    _gauge("response_cache_bytes", "what the answers that are kept take"),
    _gauge("response_cache_answers", "answers that are kept"),
    _gauge("queue_depth", "requests waiting for a seat", "model", "lane"),
    _gauge("replica_seats", "seats the gateway may fill", "replica"),
    _gauge("bulk_seats", "seats that bulk may hold beside the present interactive work", "replica"),
    _gauge("replica_state", "1 for the state it is in", "replica", "state"),
    _gauge(
        "replica_share", "part of its seats it may be given: 1, less while it starts slowly, 0 while ejected", "replica"
    ),
    _gauge("replica_running", "requests in its batch, as it says or as we count", "replica"),
    _gauge("replica_waiting", "requests in its own queue, if it says", "replica"),
    _gauge("replica_kv_used_ratio", "share of its KV cache in use, if it says", "replica"),
    _gauge(
        "replica_kv_events",
        "1 for how much its KV events tell: `complete`, `partial` or `unknown`",
        "replica",
        "standing",
    ),
    _gauge("replica_kv_blocks", "blocks it holds, as its KV events tell", "replica"),
    _counter(
        "ejections",
        "replicas left out for a while: for `failures`, or answers that began `late`",
        "model",
        "because",
    ),
    _counter("replica_kv_event_gaps", "times batches of its KV events were missing", "replica"),
)
