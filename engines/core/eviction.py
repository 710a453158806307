"""In which order cached things are given up: what only bulk has used before what people have, then as a policy says.

One order for blocks, slots and what lies in host memory. It knows numbers only; whose they are and how often they were
used is said by those who add them. Numbers stand in *lines*; a policy is the function that names a number's line. Lower
lines go first, and inside a line the least recently used.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain

_PROTECTED_SHARE = 0.8  # chosen as in the paper on segmented LRU (Karedla et al. 1994: 60 to 80%)


class EvictionPolicy(Enum):
    """LRU: by last use. SLRU: what was used once goes before what was hit again, so that a scan pushes out itself."""

    LRU = "lru"
    SLRU = "slru"


def line_of(policy: EvictionPolicy, num_uses: int, *, is_urgent: bool) -> int:
    """The key of the order, 0 to 3. Odd lines are protected: of bounded length.

    It never falls as uses grow. NOTE: blocks rely on it: a parent has at least its children's uses and outlives them.
    """
    is_protected = policy is EvictionPolicy.SLRU and num_uses > 1
    return 2 * is_urgent + is_protected


class EvictionOrder:
    """Numbers in the order in which they go, each at most once; every operation is O(1) but iterating.

    A protected line has no more than its share of `capacity`, how many numbers there may be, or of those there are; its
    oldest are then as if used once.
    """

    def __init__(
        self, policy: EvictionPolicy = EvictionPolicy.LRU, first: Iterable[int] = (), *, capacity: int = 0
    ) -> None:
        # OrderedDicts remove from the middle in O(1).
        self._lines: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(4)]
        self._lines[0].update(dict.fromkeys(first))
        self._policy = policy
        self._capacity = capacity

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def __contains__(self, number: int) -> bool:
        return any(number in line for line in self._lines)

    def __iter__(self) -> Iterator[int]:
        """The next to go first."""
        return chain(*self._lines)

    def add(self, number: int, num_uses: int = 1, *, is_urgent: bool) -> None:
        """Put a number that is not in the order last in its line."""
        index = line_of(self._policy, num_uses, is_urgent=is_urgent)
        line = self._lines[index]
        line[number] = None
        if index % 2 and len(line) > max(1, _PROTECTED_SHARE * max(self._capacity, len(self))):
            oldest, _ = line.popitem(last=False)
            self._lines[index - 1][oldest] = None

    def add_first(self, number: int) -> None:
        """Let a number that is not in the order be the next to go: there is nothing in it worth keeping."""
        self._lines[0][number] = None
        self._lines[0].move_to_end(number, last=False)

    def remove(self, number: int) -> None:
        """Take a number out; it must be in."""
        for line in self._lines:
            if number in line:
                del line[number]
                return
        raise KeyError(number)

    def pop(self) -> int:
        """Take out the next to go; there must be one."""
        number, _ = next(line for line in self._lines if line).popitem(last=False)
        return number
