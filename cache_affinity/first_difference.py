"""Where two prompts first differ, told from hashes and lengths: at a border of their keys, then at a byte behind it.

A border tells a difference within 1 KiB at most. To tell the byte, both prompts need digests of the same finer pieces
behind the same border; so a *watch* says where to take them. Each difference that it sees makes it finer by eight, down
to a byte: from then on two digests of each prompt say whether it differs there again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from cache_affinity.prefix import BLOCK_BYTES

PIECES = (
    8  # digests a watch takes of each prompt: of 1 KiB, 128, 16 and 2 bytes, so four pairs more tell the byte; chosen
)
_TAIL = slice(-80, -16)  # of a segment, without the lengths at its end
_TAIL_BYTES = 64
_NO_DIGESTS: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Watch:
    """Where finer digests are taken: behind `num_shared` borders of which the last has the hash `before`.

    `segment`, `offset`: where the piece behind that border begins. `places`: bytes of that segment, increasing; one
    digest ends at each.
    """

    num_shared: int
    before: int
    segment: int
    offset: int
    places: tuple[int, ...]

    @property
    def is_exact(self) -> bool:
        """Whether the byte is known: there is nothing finer to look for."""
        return len(self.places) <= 2

    def confirms(self, num_shared: int, before: Sequence[int], now: Sequence[int]) -> bool:
        """Whether two prompts differ first at the byte that is known. `before`, `now`: their digests by this watch."""
        if self.num_shared != num_shared or len(self.places) > 2 or not before or not now:
            return False
        return before[0] == now[0] and before[1] != now[1]

    def digests(self, hashes: Sequence[int], segments: Sequence[bytes]) -> tuple[int, ...]:
        """Of one prompt, each standing for all before it; none where it does not come past the border."""
        num = self.num_shared
        if len(hashes) <= num or len(segments) <= self.segment:
            return _NO_DIGESTS
        if num and hashes[num - 1] != self.before:
            return _NO_DIGESTS
        segment, start, digest, found = segments[self.segment], self.offset, self.before, []
        for end in self.places:
            digest = xxh3_64_intdigest(segment[start:end], digest)
            found.append(digest)
            start = end
        return tuple(found)

    def within(self, first: int, end: int) -> "Watch":
        """The same border, and the bytes `[first, end)` in pieces."""
        return Watch(self.num_shared, self.before, self.segment, self.offset, pieces_of(first, end))


class Known(NamedTuple):
    """A prompt as the next one is held against it. `tail`: digest of how the watched segment ends."""

    hashes: tuple[int, ...]
    sizes: tuple[int, ...]
    num_segments: int
    watch: Watch | None
    digests: tuple[int, ...]
    tail_of: int
    tail: int


def pieces_of(first: int, end: int) -> tuple[int, ...]:
    """The borders of at most `PIECES` equal pieces of the bytes `[first, end)`, `first` itself included."""
    step = max(1, -(-(end - first) // PIECES))
    return (*range(first, end, step), end)


def num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading hashes of two chains are equal. As each stands for all before it, halving finds that."""
    least, most = 0, min(len(one), len(other))
    if most and one[most - 1] == other[most - 1]:
        return most
    while least < most:
        middle = (least + most) // 2
        if one[middle] == other[middle]:
            least = middle + 1
        else:
            most = middle
    return least


def place_of(size: int, segments: Sequence[bytes]) -> tuple[int, int]:
    """(segment, byte in it) of the byte at `size` of the prompt. Raises IndexError for one behind its end."""
    for index, segment in enumerate(segments):
        if size < len(segment):
            return index, size
        size -= len(segment)
    raise IndexError("the prompt ends before this byte")


def tail_of(segments: Sequence[bytes], index: int) -> int:
    """A digest of how a segment ends, 0 for one that is too short for it to say anything."""
    if index >= len(segments):
        return 0
    ending = segments[index][_TAIL]
    return xxh3_64_intdigest(ending) if len(ending) == _TAIL_BYTES else 0


def range_of(before: Sequence[int], now: Sequence[int], watch: Watch, segment_bytes: int) -> tuple[int, int]:
    """The bytes `[first, end)` of the watched segment among which two prompts first differ, by a watch's digests."""
    places = watch.places
    for index, (one, other) in enumerate(zip(before, now, strict=True)):
        if one != other:
            return (places[index - 1] if index else watch.offset), places[index]
    return places[-1], max(places[-1] + 1, min(watch.offset + BLOCK_BYTES, segment_bytes))
