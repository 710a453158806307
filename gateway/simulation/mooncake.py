"""Mooncake's trace format: one JSON object a line, prompts as numbers of 512-token blocks.

The file itself is opened by whoever runs a simulation.
"""

from collections.abc import Iterable, Iterator

import msgspec

from gateway.simulation.json_lines import decoded
from gateway.simulation.prompts import Passage
from gateway.simulation.recording import BlockKeys, RecordedRequest, Recording
from gateway.simulation.trace_error import TraceError
from gateway.simulation.workload import SimulatedRequest
from policies.lane import Lane

BLOCK_TOKENS = 512
_ANSWERS = 1 << 64  # contents from here on are answers: no prompt block has such a number


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def read(
    lines: Iterable[bytes], *, tenant: str = "trace", lane: Lane = Lane.INTERACTIVE, speed: float = 1.0, scale: int = 1
) -> Iterator[SimulatedRequest]:
    """The requests of a trace. `speed`: so many times faster. `scale`: lengths divided by it, block sharing kept.

    A request's last block holds what is left of its length. Raises `TraceError` for a line that is not of the format.
    """
    for number, line in _lines(lines):
        yield SimulatedRequest(
            id=f"{tenant}/{number}",
            tenant=tenant,
            lane=lane,
            arrival_s=line.timestamp / 1000 / speed,
            prompt=_passages(line, scale),
            answer=Passage(_ANSWERS + number, max(1, line.output_length // scale)),
        )


def record(lines: Iterable[bytes], tenant: str = "trace") -> Recording:
    """The same as blocks, in order of arrival. Raises `TraceError`, also for a trace without a request."""
    keys = BlockKeys(BLOCK_TOKENS)
    found = sorted((line for _, line in _lines(lines)), key=lambda line: line.timestamp)
    if not found:
        raise TraceError("there is no request in it")
    start = found[0].timestamp
    return Recording(
        tuple(
            RecordedRequest(
                number=number,
                tenant=tenant,
                arrival_s=(line.timestamp - start) / 1000,
                prompt_tokens=line.input_length,
                output_tokens=max(1, line.output_length),
                blocks=tuple(line.hash_ids[: line.input_length // BLOCK_TOKENS]),
                key=keys.key(line.hash_ids, line.input_length),
            )
            for number, line in enumerate(found)
        ),
        BLOCK_TOKENS,
    )


def _lines(lines: Iterable[bytes]) -> Iterator[tuple[int, _Line]]:
    for number, line in decoded(lines, _Line):
        if line.input_length < 1 or not line.hash_ids or min(line.hash_ids) < 0 or line.timestamp < 0:
            raise TraceError(f"line {number}: a request has a prompt, block numbers from 0 on and a time from 0 on")
        yield number, line


def _passages(line: _Line, scale: int) -> tuple[Passage, ...]:
    size = max(1, BLOCK_TOKENS // scale)
    length = max(1, line.input_length // scale)
    last = max(1, min(size, length - (len(line.hash_ids) - 1) * size))
    return (*(Passage(block, size) for block in line.hash_ids[:-1]), Passage(line.hash_ids[-1], last))
