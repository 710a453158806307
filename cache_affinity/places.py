"""Places in which prompts differ: what they are called, and which of two are the same.

A place is a range of bytes behind a border. Ranges that meet may be the same byte, which the finer one tells; those
that do not are different places, such as the digits of a clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Where = tuple[int, int]  # (segment, byte at which the piece behind the last common border begins)
Key = tuple[int, int, int]  # the same, and the how-manieth place in that piece
_MOST_IN_PIECE = 3  # places; more are counted as the last; chosen


@dataclass(frozen=True, slots=True)
class PartName:
    """Which part of a prompt a byte lies in. `kind`: a message, or what stands before and behind them, by its field.

    `message`, `part`: numbers from 0 where there are some. `starts_at`: the byte of the segment where its text begins.
    """

    kind: str
    message: int | None = None
    role: str | None = None
    part: int | None = None
    starts_at: int = 0


Name = Callable[[Sequence[bytes], int, int], PartName]  # (segments, which of them, byte in it); keeps nothing of them


def by_number(_segments: Sequence[bytes], segment: int, _byte: int) -> PartName:
    """For who does not know what segments are."""
    return PartName("segment", segment)


@dataclass(slots=True)
class Place:
    """Somewhere that prompts first differed.

    `[first, end)`: bytes of the segment, as narrow as they are known. `lost_bytes`: what came behind the difference
    as it had come before, of all these prompts.
    """

    first: int
    end: int
    name: PartName
    num_prompts: int = 0
    lost_bytes: int = 0


def key_of(places: dict[Key, Place], where: Where, first: int, end: int) -> Key:
    """Of the place in this piece that these bytes meet, or of a new one."""
    for number in range(_MOST_IN_PIECE):
        place = places.get((*where, number))
        if place is None or (first < place.end and place.first < end):
            return (*where, number)
    return (*where, _MOST_IN_PIECE - 1)


def merged(*tables: dict[Key, Place]) -> tuple[tuple[Key, Place], ...]:
    """Both windows' places, copied; what lost most first, then what came most often."""
    found: dict[Key, Place] = {}
    for (*where, _), place in (item for table in tables for item in table.items()):
        key = key_of(found, (where[0], where[1]), place.first, place.end)
        known = found.setdefault(key, Place(place.first, place.end, place.name))
        if (place.end - place.first) < (known.end - known.first):
            known.first, known.end, known.name = place.first, place.end, place.name
        known.num_prompts += place.num_prompts
        known.lost_bytes += place.lost_bytes
    return tuple(sorted(found.items(), key=lambda one: (-one[1].lost_bytes, -one[1].num_prompts)))
