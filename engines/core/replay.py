"""Steps that were made, written down and made again: to find on another day what a device did on this one.

NOTE: a written plan holds people's tokens. It is a debugging aid, never an everyday log.
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from engines.core.plan import Discard, Fork, Logits, Restore, Row, Runner, Save, StepPlan, Truncate

_OPERATIONS = {operation.__name__: operation for operation in (Fork, Truncate, Save, Restore, Discard)}


def replay(runner: Runner, plans: Iterable[StepPlan | None]) -> list[Logits]:
    """Make these steps on an empty runner; the logits of each. None stands for a `clear`, after a fault.

    Leave a plan out that failed: nothing of it may be relied on.
    """
    logits = []
    for plan in plans:
        if plan is None:
            runner.clear()
        else:
            logits.append(runner.execute(plan).copy())
    return logits


def encode_plan(plan: StepPlan) -> bytes:
    """One line of JSON, without the line's end."""
    memory = [{"operation": type(operation).__name__} | dataclasses.asdict(operation) for operation in plan.memory]
    rows = [dataclasses.asdict(row) for row in plan.rows]
    return json.dumps({"number": plan.number, "memory": memory, "rows": rows}, separators=(",", ":")).encode()


def decode_plan(line: bytes) -> StepPlan:
    """What `encode_plan` wrote. Raises ValueError for anything else."""
    try:
        written = json.loads(line)
        memory = tuple(
            _OPERATIONS[fields.pop("operation")](**_with_tuples(fields)) for fields in map(dict, written["memory"])
        )
        rows = tuple(Row(**_with_tuples(fields)) for fields in written["rows"])
        return StepPlan(written["number"], memory, rows)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this is no step plan: {error}") from error


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
