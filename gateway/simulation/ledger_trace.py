"""Our ledger's export as a trace: when requests came, how long they were, and prefixes guessed from what was cached.

The ledger has no text. What a request had cached, it shared with an earlier request of its key: with the latest that
was long enough. So the trace hits at least as much as was hit then, and what a better routing would have hit more is
not in it.
"""

import csv
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

from gateway.simulation.recording import BlockKeys, RecordedRequest, Recording
from gateway.simulation.text_blocks import BLOCK_TOKENS, chained
from gateway.simulation.trace_error import TraceError

_REMEMBERED = 256  # prompts of a key that a later one may go on from
_COLUMNS = ("started_at", "key", "project", "prompt_tokens", "cached_tokens", "completion_tokens")


class _Row:
    """One request as the ledger has it."""

    __slots__ = ("at", "cached", "key", "output", "project", "prompt")

    def __init__(self, row: dict[str, str]) -> None:
        self.at = float(row["started_at"])
        self.key, self.project = row["key"], row["project"]
        self.prompt = int(row["prompt_tokens"] or 0)
        self.cached = min(int(row["cached_tokens"] or 0), self.prompt)
        self.output = int(row["completion_tokens"] or 0)


def record(lines: Iterable[bytes]) -> Recording:
    """Requests that were answered, in order of arrival, in blocks of 16 tokens. Raises `TraceError`."""
    found = sorted(_rows(lines), key=lambda row: row.at)
    if not found:
        raise TraceError("there is no answered request in it")
    keys, prompts = BlockKeys(BLOCK_TOKENS), _Prompts()
    requests = []
    for number, row in enumerate(found):
        names = prompts.names(row, number)
        num_full = row.prompt // BLOCK_TOKENS
        key = keys.key(names, row.prompt)
        requests.append(
            RecordedRequest(number, row.project, row.at - found[0].at, row.prompt, row.output, names[:num_full], key)
        )
    return Recording(tuple(requests), BLOCK_TOKENS)


class _Prompts:
    """The latest prompts of each key, as names of blocks."""

    def __init__(self) -> None:
        self._latest: dict[str, deque[tuple[int, ...]]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))

    def names(self, row: _Row, number: int) -> tuple[int, ...]:
        """Of all its blocks, the last one too, which may not be full."""
        num_shared = -(-row.cached // BLOCK_TOKENS)
        latest = self._latest[row.key]
        before = next((names for names in reversed(latest) if len(names) >= num_shared), ()) if num_shared else ()
        names = list(before[:num_shared])
        name = names[-1] if names else chained(0, row.project.encode())
        for index in range(len(names), -(-row.prompt // BLOCK_TOKENS)):
            name = chained(name, b"%d/%d" % (number, index))
            names.append(name)
        # An answer becomes part of the next prompt, so that may go on behind this one's end.
        whole = names[: row.prompt // BLOCK_TOKENS]
        name = whole[-1] if whole else name
        for index in range(len(whole), (row.prompt + row.output) // BLOCK_TOKENS):
            name = chained(name, b"%d/answer/%d" % (number, index))
            whole.append(name)
        latest.append(tuple(whole))
        return tuple(names)


def _rows(lines: Iterable[bytes]) -> Iterator[_Row]:
    reader = csv.DictReader(line.decode("utf-8-sig", "replace") for line in lines)
    try:
        yield from _answered(reader)
    except csv.Error as error:
        raise TraceError(f"line {reader.line_num + 1}: {error}") from None


def _answered(reader: "csv.DictReader[str]") -> Iterator[_Row]:
    missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise TraceError(f"the ledger's export lacks {', '.join(missing)}")
    for number, row in enumerate(reader, start=2):
        try:
            found = _Row(row)
        except (TypeError, ValueError) as error:
            raise TraceError(f"line {number}: {error}") from None
        if found.prompt > 0 and found.output > 0:
            yield found
