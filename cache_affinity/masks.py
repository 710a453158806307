"""Tables from a name to a mask with one bit for each replica that holds it: what both inverted indices are made of."""

from collections.abc import Container, Iterator


def free_bit(taken: Container[int]) -> int:
    """The lowest bit that nobody has."""
    bit = 1
    while bit in taken:
        bit <<= 1
    return bit


def unset(masks: dict[int, int], name: int, bit: int) -> None:
    """One replica holds it no longer; a name that nobody holds is not kept. Harmless when repeated."""
    mask = masks.get(name, 0) & ~bit
    if mask:
        masks[name] = mask
    else:
        masks.pop(name, None)


def bits_of(mask: int) -> Iterator[int]:
    """The bits that are set, the lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
