"""What `warmlane calibrate` found of an engine, as a file that `simulate` and `plan` read."""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engines.step_cost import StepCost
from gateway.simulation.trace_run import TraceEngine

Seconds = Annotated[float, Meta(ge=0)]


class EngineNumbers(msgspec.Struct, frozen=True):
    """The engine's part of the file. Batch: None where it was not told; then the simulator's default."""

    base_s: Seconds
    per_row_s: Seconds
    per_prefill_token_s: Seconds
    max_seqs: Annotated[int, Meta(ge=1)] | None = None
    max_step_tokens: Annotated[int, Meta(ge=1)] | None = None


class _File(msgspec.Struct):
    engine: EngineNumbers


def read_engine(file: Path) -> TraceEngine:
    """The engine of a file. Raises ValueError, with the file's name."""
    try:
        numbers = msgspec.json.decode(file.read_bytes(), type=_File).engine
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is no output of `warmlane calibrate --json`: {error}") from None
    cost = StepCost(numbers.base_s, numbers.per_row_s, numbers.per_prefill_token_s)
    if not cost.seconds(1, 1) > 0:
        raise ValueError(f"{file} tells of an engine whose steps take no time")
    usual = TraceEngine()
    return TraceEngine(cost, numbers.max_seqs or usual.max_seqs, numbers.max_step_tokens or usual.max_step_tokens)
