"""What becomes of a finished request: one log line, the metrics, and a bounded memory for look-ups and receipts.

The hot path only appends; the rest happens a moment later, for many requests at once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import BinaryIO

from gateway.ledger import Journal, NoJournal
from observability.logs import write_records
from observability.metrics import Metrics
from observability.records import RequestRecord
from routing.decision import RouteDecision

FLUSH_AFTER_S = 0.05  # chosen: below what a person notices, many requests at load
MAX_REMEMBERED = 10_000  # records and receipts kept for GET /requests/{id}; about 2 KB each


class Recorder:
    """Takes each record once. `flush` makes everything visible at once."""

    def __init__(
        self,
        metrics: Metrics,
        log: BinaryIO | None = None,
        max_remembered: int = MAX_REMEMBERED,
        journal: Journal | None = None,
        on_key_used: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`journal`: where every record is written down for the ledger, at once; None: nowhere.

        `on_key_used`: told the id of the key of each request, with the batch.
        """
        self._on_key_used = on_key_used
        self._metrics = metrics
        self._journal = journal or NoJournal()
        self._log = log
        self._max_remembered = max_remembered
        self._pending: list[RequestRecord] = []
        self._remembered: OrderedDict[str, tuple[RequestRecord, RouteDecision | None]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: RequestRecord, decision: RouteDecision | None) -> None:
        """One request has ended. `decision`: the last routing decision, if there was one."""
        self._journal.settle(record)
        self._remembered[record.request_id] = (record, decision)
        if len(self._remembered) > self._max_remembered:
            self._remembered.popitem(last=False)
        self._pending.append(record)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_AFTER_S, self.flush)

    def flush(self) -> None:
        """Write the pending log lines and count them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, []
        if pending:
            for record in pending:
                self._metrics.observe(record)
                if record.key:
                    self._on_key_used(record.key)
            write_records(pending, self._log)

    def find(self, request_id: str) -> tuple[RequestRecord, RouteDecision | None] | None:
        """A record among the last `MAX_REMEMBERED`, and its routing decision."""
        return self._remembered.get(request_id)

    def forget(self, projects: frozenset[str]) -> int:
        """Drop the records of projects that are gone, receipts too; how many there were."""
        self.flush()
        gone = [request_id for request_id, (record, _) in self._remembered.items() if record.project in projects]
        for request_id in gone:
            del self._remembered[request_id]
        return len(gone)

    def __len__(self) -> int:
        """How many records are remembered."""
        return len(self._remembered)
