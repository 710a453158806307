"""What must hold of a soak's requests: each has one outcome, told alike by client, log, ledger, usage and metrics. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.soak.gateway_asking import Ending

# what a client saw to the outcomes that it may have
_BY_STATUS = {
    400: {"client_error"},
    401: {"unauthenticated"},
    403: {"forbidden"},
    404: {"client_error"},
    408: {"client_error", "timed_out", "client_gone"},
    413: {"client_error"},
    429: {"refused"},
    502: {"replica_error"},
    503: {"shed"},
    504: {"timed_out"},
}
_BROKEN = {"replica_error", "timed_out", "shed", "refused"}
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")

Record = Mapping[str, Any]


def compare_endings(endings: Iterable[Ending], records: Sequence[Record]) -> list[str]:
    """Each request that a client sent has as many records as it got answers, of an outcome that fits, with its tokens."""
    of_client: dict[str, list[Record]] = {}
    for record in records:
        of_client.setdefault(record.get("client_request_id") or "", []).append(record)
    wrong = []
    for ending in endings:
        found = of_client.pop(ending.client_id, [])
        wrong += [f"{ending.kind} {ending.client_id}: {sentence}" for sentence in (*ending.wrong, *_fit(ending, found))]
    return wrong + [f"nobody sent {client_id!r}: {len(found)} records" for client_id, found in of_client.items()]


def _fit(ending: Ending, found: Sequence[Record]) -> Iterable[str]:
    is_certain = ending.seen not in ("left", "none") and (ending.request_id is not None or ending.num_sent > 1)
    if len(found) > ending.num_sent or (is_certain and len(found) < ending.num_sent):
        yield f"{len(found)} records of {ending.num_sent}, seen: {ending.seen} {ending.status}"
        return
    if not is_certain or ending.num_sent > 1:
        return
    record = found[0]
    outcome = record["outcome"]
    if ending.seen == "broken":
        allowed = _BROKEN
    else:
        allowed = {"finished"} if ending.status == 200 else _BY_STATUS.get(ending.status, set())
    if record.get("reason") == "replica_busy":  # then a 429 is the engine's own, handed on
        allowed = allowed | {"shed"}
    if outcome not in allowed:
        yield f"its client saw {ending.seen} {ending.status}, its record says {outcome} ({record.get('reason')})"
    for name in ("prompt_tokens", "completion_tokens"):
        told = getattr(ending, name)
        if outcome == "finished" and told is not None and told != (record.get(name) or 0):
            yield f"its client was told {told} {name}, its record says {record.get(name)}"


def compare_ledger(records: Sequence[Record], rows: Sequence[Record]) -> list[str]:
    """Each record of a known key has exactly one row that says the same, and there is no other row."""
    wrong = []
    known = {record["request_id"]: record for record in records if record.get("key")}
    for row in rows:
        record = known.pop(row["request_id"], None)
        if record is None:
            wrong.append(f"row {row['request_id']} without a record")
            continue
        told = {name: record.get(name) for name in ("outcome", "status", *_TOKENS)}
        if differ := {name: (value, row[name]) for name, value in told.items() if (value or 0) != (row[name] or 0)}:
            wrong.append(f"row {row['request_id']} differs from its record: {differ}")
    twice = [request_id for request_id, num in Counter(r["request_id"] for r in records).items() if num > 1]
    wrong += [f"{request_id} has several records" for request_id in twice]
    return wrong + [f"record {request_id} ({one['outcome']}) has no row" for request_id, one in known.items()]


def compare_sums(
    rows: Sequence[Record], usage: Iterable[Record], counted: Mapping[str, float], records: Sequence[Record]
) -> list[str]:
    """Usage by project is the sum of the rows; requests by outcome in the metrics are the records'."""
    wrong = []
    sums = {name: sum(row[name] or 0 for row in rows) for name in (*_TOKENS, "charged_tokens")}
    told = {name: sum(one[name] for one in usage) for name in sums}
    if sums != told:
        wrong.append(f"rows sum to {sums}, usage to {told}")
    if len(rows) != (num := sum(one["requests"] for one in usage)):
        wrong.append(f"{len(rows)} rows, {num} requests in the usage")
    outcomes = Counter(record["outcome"] for record in records)
    if dict(outcomes) != {name: int(value) for name, value in counted.items() if value}:
        wrong.append(f"records by outcome {dict(outcomes)}, metrics {dict(counted)}")
    return wrong


def outcomes_counted(exposition: str) -> dict[str, float]:
    """`warmlane_requests_total` by outcome."""
    sums: Counter[str] = Counter()
    for line in exposition.splitlines():
        if line.startswith("warmlane_requests_total{"):
            sums[line.partition('outcome="')[2].partition('"')[0]] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
    return dict(sums)


def slope_per_min(samples: Sequence[tuple[float, float]]) -> float:
    """Least squares of (seconds, value): growth of the value in a minute. 0 of fewer than three."""
    if len(samples) < 3:
        return 0.0
    mean_at = sum(at for at, _ in samples) / len(samples)
    mean = sum(value for _, value in samples) / len(samples)
    spread = sum((at - mean_at) ** 2 for at, _ in samples)
    return 60 * sum((at - mean_at) * (value - mean) for at, value in samples) / spread


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """How much the straight line through them rises from the first to the last."""
    return slope_per_min(samples) * (samples[-1][0] - samples[0][0]) / 60 if samples else 0.0
