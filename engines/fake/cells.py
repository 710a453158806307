"""Simulated KV cells that tell the truth: a slot sees exactly the tokens that steps put where it looks.

Two forms, as real engines have them: cells shared by slot (llama.cpp) and pages found by a block table (vLLM). Reading
what was never written, writing past what is there, using more cells than there are, and handles that are used twice or
never given raise `CellError`: each is a bug in a plan.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engines.core.plan import Discard, EngineFault, Fork, MemoryOperation, Restore, Row, Save, Truncate

Ints = npt.NDArray[np.int32]


class CellError(EngineFault):
    """A plan asked for what no device could do."""


class Cells(Protocol):
    """KV of all slots."""

    @property
    def host(self) -> "HostCells":
        """What was saved."""
        ...

    def apply(self, operation: MemoryOperation) -> None:
        """Do a memory operation."""
        ...

    def write(self, row: Row) -> None:
        """Put the row's tokens at its positions."""
        ...

    def visible(self, row: Row) -> Ints:
        """Tokens at positions [0, end of row), as this row sees them: (n,) int32."""
        ...

    def contents(self) -> list[tuple[int, ...]]:
        """All of it, for comparing two devices."""
        ...


class HostCells:
    """Copies in host memory by handle: (n,) int32 tokens each."""

    def __init__(self) -> None:
        self._tokens: dict[int, Ints] = {}

    @property
    def num_tokens(self) -> int:
        """Tokens in all copies."""
        return sum(map(len, self._tokens.values()))

    def contents(self) -> dict[int, tuple[int, ...]]:
        """Tokens by handle."""
        return {handle: tuple(tokens.tolist()) for handle, tokens in self._tokens.items()}

    def put(self, handle: int, tokens: Ints) -> None:
        """Keep a copy under a handle that is not in use."""
        if handle in self._tokens:
            raise CellError(f"handle {handle} is saved twice")
        self._tokens[handle] = tokens.copy()

    def get(self, handle: int, num_tokens: int) -> Ints:
        """The whole copy, which has at least so many tokens."""
        if handle not in self._tokens or num_tokens > len(self._tokens[handle]):
            raise CellError(f"{num_tokens} tokens of handle {handle} are restored, but were not saved")
        return self._tokens[handle]

    def discard(self, handle: int) -> None:
        """Give a copy back."""
        if self._tokens.pop(handle, None) is None:
            raise CellError(f"handle {handle} is discarded, but not saved")


class SlotCells:
    """`num_cells` cells, each held by one or more slots; a fork shares them. Ignores block tables."""

    def __init__(self, num_slots: int, num_cells: int) -> None:
        self._tokens = np.zeros(num_cells, dtype=np.int32)
        self._positions = np.full(num_cells, -1, dtype=np.int32)
        self._holders = np.zeros(num_cells, dtype=np.int32)
        self._free = list(reversed(range(num_cells)))
        self._cells: list[Ints] = [np.zeros(0, dtype=np.int32) for _ in range(num_slots)]
        self.host = HostCells()

    @property
    def num_used(self) -> int:
        """Distinct cells that any slot holds."""
        return len(self._holders) - len(self._free)

    def contents(self) -> list[tuple[int, ...]]:
        """Tokens that each slot sees."""
        return [tuple(self._tokens[cells].tolist()) for cells in self._cells]

    def apply(self, operation: MemoryOperation) -> None:
        """Share the source's cells with an empty slot, let go of a tail, or copy to or from the host."""
        match operation:
            case Fork():
                self._fork(operation)
            case Truncate():
                self._truncate(operation.slot, operation.length)
            case Save():
                self._save(operation)
            case Restore():
                self._restore(operation)
            case Discard():
                self.host.discard(operation.handle)

    def write(self, row: Row) -> None:
        """Append the row's tokens; they must continue what the slot holds."""
        held = self._cells[row.slot]
        if row.start != len(held):
            raise CellError(f"slot {row.slot} holds {len(held)} tokens and is written at {row.start}")
        self._append(row.slot, np.array(row.tokens, dtype=np.int32))

    def visible(self, row: Row) -> Ints:
        """What the slot's cells hold."""
        cells = self._cells[row.slot]
        if not np.array_equal(self._positions[cells], np.arange(row.start + len(row.tokens))):
            raise CellError(f"slot {row.slot} sees cells of wrong positions")
        return self._tokens[cells]

    def _append(self, slot: int, tokens: Ints) -> None:
        if len(tokens) > len(self._free):
            raise CellError("out of cells")
        held = self._cells[slot]
        new = np.array([self._free.pop() for _ in range(len(tokens))], dtype=np.int32)
        self._tokens[new] = tokens
        self._positions[new] = np.arange(len(held), len(held) + len(new))
        self._holders[new] = 1
        self._cells[slot] = np.concatenate((held, new))

    def _fork(self, fork: Fork) -> None:
        source, target = self._cells[fork.source], self._cells[fork.target]
        if len(target) or fork.source == fork.target:
            raise CellError(f"fork into slot {fork.target}, which is not empty")
        if fork.num_tokens > len(source):
            raise CellError(f"fork of {fork.num_tokens} tokens from slot {fork.source} with {len(source)}")
        shared = source[: fork.num_tokens]
        self._holders[shared] += 1
        self._cells[fork.target] = shared.copy()

    def _save(self, save: Save) -> None:
        cells = self._cells[save.slot]
        if save.num_tokens > len(cells):
            raise CellError(f"{save.num_tokens} tokens of slot {save.slot} are saved, but it holds {len(cells)}")
        self.host.put(save.handle, self._tokens[cells[: save.num_tokens]])

    def _restore(self, restore: Restore) -> None:
        """Like llama.cpp: all that was saved at once, then the rest is cut off."""
        if len(self._cells[restore.slot]):
            raise CellError(f"slot {restore.slot} is restored into, but is not empty")
        self._append(restore.slot, self.host.get(restore.handle, restore.num_tokens))
        self._truncate(restore.slot, restore.num_tokens)

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
    """Pages of `block_size` cells, found by a block table. Of the memory operations it knows those with the host."""

    def __init__(self, num_cells: int, block_size: int) -> None:
        self._block_size = block_size
        num_cells -= num_cells % block_size
        self._tokens = np.zeros(num_cells, dtype=np.int32)
        self._positions = np.full(num_cells, -1, dtype=np.int32)
        self.host = HostCells()

    def apply(self, operation: MemoryOperation) -> None:
        """Copy to or from the host. Raise for the others: a paged engine shares by block table."""
        match operation:
            case Save():
                self.host.put(operation.handle, self._read(operation.blocks, operation.num_tokens))
            case Restore():
                saved = self.host.get(operation.handle, operation.num_tokens)
                self._put(operation.blocks, 0, saved[: operation.num_tokens])
            case Discard():
                self.host.discard(operation.handle)
            case _:
                raise CellError(f"{operation} for an engine that pages by block table")

    def write(self, row: Row) -> None:
        """Put the row's tokens into its blocks."""
        self._put(row.blocks, row.start, np.array(row.tokens, dtype=np.int32))

    def visible(self, row: Row) -> Ints:
        """What the row's blocks hold."""
        return self._read(row.blocks, row.start + len(row.tokens))

    def contents(self) -> list[tuple[int, ...]]:
        """Token and position of each cell."""
        return list(zip(self._tokens.tolist(), self._positions.tolist(), strict=True))

    def _put(self, blocks: Sequence[int], start: int, tokens: Ints) -> None:
        cells = self._cells_of(blocks, start + len(tokens))[start:]
        self._tokens[cells] = tokens
        self._positions[cells] = np.arange(start, start + len(tokens))

    def _read(self, blocks: Sequence[int], num_tokens: int) -> Ints:
        cells = self._cells_of(blocks, num_tokens)
        if not np.array_equal(self._positions[cells], np.arange(num_tokens)):
            raise CellError(f"blocks {list(blocks)} are read, but were not written for these positions")
        return self._tokens[cells]

    def _cells_of(self, blocks: Sequence[int], num_tokens: int) -> npt.NDArray[np.int64]:
        positions = np.arange(num_tokens)
        if num_tokens > len(blocks) * self._block_size:
            raise CellError(f"{len(blocks)} blocks do not hold {num_tokens} tokens")
        table = np.array(blocks, dtype=np.int64)
        return table[positions // self._block_size] * self._block_size + positions % self._block_size
