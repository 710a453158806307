"""Simulated KV cells that tell the truth: a slot sees exactly the tokens that steps put where it looks.

Two forms, as real engines have them: cells shared by slot (llama.cpp) and pages found by a block table (vLLM). Reading
what was never written, writing past what is there, and using more cells than there are raise `CellError`: each is a bug
in a plan.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from engines.core.plan import EngineFault, Fork, Row, Truncate

Ints = npt.NDArray[np.int32]


class CellError(EngineFault):
    """A plan asked for what no device could do."""


class Cells(Protocol):
    """KV of all slots."""

    def apply(self, operation: Fork | Truncate) -> None:
        """Do a memory operation."""
        ...

    def write(self, row: Row) -> None:
        """Put the row's tokens at its positions."""
        ...

    def visible(self, row: Row) -> Ints:
        """Tokens at positions [0, end of row), as this row sees them: (n,) int32."""
        ...


class SlotCells:
    """`num_cells` cells, each held by one or more slots; a fork shares them. Ignores block tables."""

    def __init__(self, num_slots: int, num_cells: int) -> None:
        self._tokens = np.zeros(num_cells, dtype=np.int32)
        self._positions = np.full(num_cells, -1, dtype=np.int32)
        self._holders = np.zeros(num_cells, dtype=np.int32)
        self._free = list(reversed(range(num_cells)))
        self._cells: list[Ints] = [np.zeros(0, dtype=np.int32) for _ in range(num_slots)]

    @property
    def num_used(self) -> int:
        """Distinct cells that any slot holds."""
        return len(self._holders) - len(self._free)

    def apply(self, operation: Fork | Truncate) -> None:
        """Share the source's cells with an empty slot, or let go of a tail."""
        if isinstance(operation, Truncate):
            self._truncate(operation.slot, operation.length)
            return
        source, target = self._cells[operation.source], self._cells[operation.target]
        if len(target) or operation.source == operation.target:
            raise CellError(f"fork into slot {operation.target}, which is not empty")
        if operation.num_tokens > len(source):
            raise CellError(f"fork of {operation.num_tokens} tokens from slot {operation.source} with {len(source)}")
        shared = source[: operation.num_tokens]
        self._holders[shared] += 1
        self._cells[operation.target] = shared.copy()

    def write(self, row: Row) -> None:
        """Append the row's tokens; they must continue what the slot holds."""
        held = self._cells[row.slot]
        if row.start != len(held):
            raise CellError(f"slot {row.slot} holds {len(held)} tokens and is written at {row.start}")
        if len(row.tokens) > len(self._free):
            raise CellError("out of cells")
        new = np.array([self._free.pop() for _ in row.tokens], dtype=np.int32)
        self._tokens[new] = row.tokens
        self._positions[new] = np.arange(row.start, row.start + len(new))
        self._holders[new] = 1
        self._cells[row.slot] = np.concatenate((held, new))

    def visible(self, row: Row) -> Ints:
        """What the slot's cells hold."""
        cells = self._cells[row.slot]
        if not np.array_equal(self._positions[cells], np.arange(row.start + len(row.tokens))):
            raise CellError(f"slot {row.slot} sees cells of wrong positions")
        return self._tokens[cells]

    def _truncate(self, slot: int, length: int) -> None:
        if length > len(self._cells[slot]):
            raise CellError(f"slot {slot} is truncated to {length} tokens, but holds {len(self._cells[slot])}")
        gone = self._cells[slot][length:]
        self._holders[gone] -= 1
        free = gone[self._holders[gone] == 0]
        self._positions[free] = -1
        self._free.extend(free.tolist())
        self._cells[slot] = self._cells[slot][:length]


class PagedCells:
    """Pages of `block_size` cells, found by a row's block table. Knows no memory operations."""

    def __init__(self, num_cells: int, block_size: int) -> None:
        self._block_size = block_size
        num_cells -= num_cells % block_size
        self._tokens = np.zeros(num_cells, dtype=np.int32)
        self._positions = np.full(num_cells, -1, dtype=np.int32)

    def apply(self, operation: Fork | Truncate) -> None:
        """Raise: a paged engine shares by block table."""
        raise CellError(f"{operation} for an engine that pages by block table")

    def write(self, row: Row) -> None:
        """Put the row's tokens into its blocks."""
        cells = self._cells_of(row)[row.start :]
        self._tokens[cells] = row.tokens
        self._positions[cells] = np.arange(row.start, row.start + len(row.tokens))

    def visible(self, row: Row) -> Ints:
        """What the row's blocks hold."""
        cells = self._cells_of(row)
        if not np.array_equal(self._positions[cells], np.arange(len(cells))):
            raise CellError(f"slot {row.slot} reads cells that were not written for these positions")
        return self._tokens[cells]

    def _cells_of(self, row: Row) -> npt.NDArray[np.int64]:
        positions = np.arange(row.start + len(row.tokens))
        if len(positions) > len(row.blocks) * self._block_size:
            raise CellError(f"slot {row.slot}: {len(row.blocks)} blocks do not hold {len(positions)} tokens")
        blocks = np.array(row.blocks, dtype=np.int64)
        return blocks[positions // self._block_size] * self._block_size + positions % self._block_size
