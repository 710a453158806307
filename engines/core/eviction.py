"""In which order cached things are given up: what only bulk has used before what people have, each by last use.

One order for blocks and one for slots. It knows numbers only; whose they are is said by those who add them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain


class EvictionOrder:
    """Numbers in the order in which they go, each at most once; every operation is O(1)."""

    def __init__(self, first: Iterable[int] = ()) -> None:
        # Two lines: an OrderedDict removes from the middle in O(1).
        self._bulk: OrderedDict[int, None] = OrderedDict.fromkeys(first)
        self._urgent: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bulk) + len(self._urgent)

    def __contains__(self, number: int) -> bool:
        return number in self._bulk or number in self._urgent

    def __iter__(self) -> Iterator[int]:
        """The next to go first."""
        return chain(self._bulk, self._urgent)

    def add(self, number: int, *, is_urgent: bool) -> None:
        """Put a number that is not in the order last among its kind."""
        (self._urgent if is_urgent else self._bulk)[number] = None

    def add_first(self, number: int) -> None:
        """Let a number that is not in the order be the next to go: there is nothing in it worth keeping."""
        self._bulk[number] = None
        self._bulk.move_to_end(number, last=False)

    def remove(self, number: int) -> None:
        """Take a number out; it must be in."""
        if number in self._bulk:
            del self._bulk[number]
        else:
            del self._urgent[number]

    def pop(self) -> int:
        """Take out the next to go; there must be one."""
        number, _ = (self._bulk or self._urgent).popitem(last=False)
        return number
