"""A file with a line of JSON for each step: what was in it, what it was believed to take, what it took.

Lengths and lanes only, never tokens: they are somebody's words. Written in the engine's thread.
"""

from collections import Counter
from pathlib import Path

import msgspec

from engines.core.outlook import StepRecord
from engines.core.plan import Restore, Save
from observability import logs

_MAX_BYTES = 64 << 20  # of a file; chosen: some 100,000 steps


class LoggedRow(msgspec.Struct):
    """One sequence in the step: positions [start, start + num_tokens), the last `num_drafts` of them guesses."""

    lane: str
    start: int
    num_tokens: int
    samples: bool
    num_drafts: int = 0


class LoggedStep(msgspec.Struct):
    """A line. Seconds and counts as in `StepOutlook`; `cost`: base, per row, per prefill token, as believed before.

    `memory`: operations before the rows, by kind (fork, truncate, save, restore, discard), those there are;
    `saved_tokens`, `restored_tokens`: what was copied.
    """

    step: int
    rows: list[LoggedRow]
    cost: tuple[float, float, float]
    modelled_s: float
    modelled_urgent_s: float
    objective_s: float | None
    bulk_left_out: int
    is_lifted: bool
    seconds: float
    memory: dict[str, int] = {}
    saved_tokens: int = 0
    restored_tokens: int = 0
    copy_s: float = 0.0


class StepLog:
    """The newest steps in `path`, those before in `path` with `.1` behind; each at most `max_bytes` and a line long."""

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        """Start the file anew. Raises OSError, whose message says so, where it cannot be written."""
        self._path = path
        self._max_bytes = max_bytes
        self._num_bytes = 0
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise OSError(f"the step log {path} cannot be written: {error.strerror}") from error

    def __repr__(self) -> str:
        return f"<StepLog {self._path} bytes={self._num_bytes}>"

    def write(self, record: StepRecord) -> None:
        """Append a step. Where it cannot, the log ends with a warning: steps go on without it."""
        if self._file.closed:
            return
        try:
            if self._num_bytes >= self._max_bytes:
                self._turn_over()
            self._num_bytes += self._file.write(msgspec.json.encode(_logged(record)) + b"\n")
        except OSError as error:
            self._file.close()
            logs.get().warning("step_log.ended", path=str(self._path), reason=error.strerror)

    def close(self) -> None:
        """Nothing is written any more. Harmless a second time."""
        self._file.close()

    def _turn_over(self) -> None:
        self._file.close()
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        self._file = self._path.open("wb", buffering=0)
        self._num_bytes = 0


def read_step_log(path: Path) -> list[LoggedStep]:
    """All steps of one file, oldest first."""
    return [msgspec.json.decode(line, type=LoggedStep) for line in path.read_bytes().splitlines()]


def _logged(record: StepRecord) -> LoggedStep:
    plan, outlook = record.plan, record.outlook
    cost = outlook.cost
    return LoggedStep(
        step=plan.number,
        rows=[
            LoggedRow(lane.value, row.start, len(row.tokens), row.samples, len(row.drafts))
            for row, lane in zip(plan.rows, outlook.lanes, strict=True)
        ],
        cost=(cost.base_s, cost.per_row_s, cost.per_prefill_token_s),
        modelled_s=outlook.modelled_s,
        modelled_urgent_s=outlook.modelled_urgent_s,
        objective_s=outlook.objective_s,
        bulk_left_out=outlook.bulk_left_out,
        is_lifted=outlook.is_lifted,
        seconds=record.seconds,
        memory=dict(Counter(type(operation).__name__.lower() for operation in plan.memory)),
        saved_tokens=sum(operation.num_tokens for operation in plan.memory if isinstance(operation, Save)),
        restored_tokens=sum(operation.num_tokens for operation in plan.memory if isinstance(operation, Restore)),
        copy_s=outlook.copy_s,
    )
