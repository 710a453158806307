"""Which replicas are predicted to hold a border, for all shadows of a pool at once.

Inverted like the exact index: a border leads to a mask with one bit for each replica, so that one look-up a border
answers for the whole fleet. It says the same as the shadows' own lists and is changed by them alone.
"""

from cache_affinity.masks import bits_of, free_bit, unset
from cache_affinity.prefix import PrefixKey

_STRIDE = 8  # borders looked at by their last one: where nobody's prefix ends there is nothing to see in between
_MOST_STRIDES = 64  # of a prompt, about: one with thousands of borders takes longer ones


class Holders:
    """Masks by border. `bit_of` a name before its shadow is made, `leave` after it has forgotten everything."""

    __slots__ = ("_by_bit", "masks")

    def __init__(self) -> None:
        self.masks: dict[int, int] = {}
        self._by_bit: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<Holders {len(self.masks)} borders, {len(self._by_bit)} replicas>"

    def __len__(self) -> int:
        return len(self.masks)

    def bit_of(self, name: str) -> int:
        """A free bit for a replica that comes."""
        bit = free_bit(self._by_bit)
        self._by_bit[bit] = name
        return bit

    def leave(self, bit: int) -> None:
        """The replica is gone, and no mask has its bit any more. Harmless when repeated."""
        self._by_bit.pop(bit, None)

    def drop(self, border: int, bit: int) -> None:
        """One replica holds the border no longer."""
        unset(self.masks, border, bit)

    def trim(self) -> None:
        """Give memory back after many borders were dropped: a table never shrinks by itself."""
        self.masks = dict(self.masks)

    def depths(self, key: PrefixKey) -> dict[str, int]:
        """Leading borders of the prompt that each replica holds, by name; those that hold none are left out.

        A shadow has no holes, so who holds a border holds all before it.
        """
        hashes, masks = key.hashes, self.masks.get
        alive = masks(hashes[0], 0) if hashes else 0
        if not alive:
            return {}
        found: dict[str, int] = {}
        num, alone = len(hashes), self._by_bit.get
        stride = max(_STRIDE, num // _MOST_STRIDES)
        for start in range(0, num, stride):
            end = min(start + stride, num)
            if masks(hashes[end - 1], 0) & alive == alive:
                continue
            for depth in range(start, end):
                still = alive & masks(hashes[depth], 0)
                if still != alive:
                    name = alone(alive ^ still)  # most often one replica
                    if name is not None:
                        found[name] = depth
                    else:
                        self._note(alive ^ still, depth, found)
                    alive = still
                    if not alive:
                        return found
        self._note(alive, num, found)
        return found

    def _note(self, bits: int, depth: int, found: dict[str, int]) -> None:
        for bit in bits_of(bits):
            found[self._by_bit[bit]] = depth
