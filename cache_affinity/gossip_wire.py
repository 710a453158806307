"""Gossip as bytes: a header, then sections of notes of one kind, little-endian throughout.

A reader skips sections it does not know and says `UnknownVersion` of another version; whatever else it cannot read is
`Malformed`, and nothing of it counts. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from math import isfinite
from operator import sub
from struct import Struct
from typing import Any

from cache_affinity.gossip_notes import Estimate, Estimates, Header, Load, Message, Placement, Settlement

VERSION = 1
MAX_MESSAGE_BYTES = 16_384  # chosen: one or two milliseconds of a reader's time
MAX_READ_BYTES = 8 * MAX_MESSAGE_BYTES  # of a later release that tells more at once
MAX_PLACED_BORDERS = 1024  # of one prompt, its head: a MiB
MAX_BORDER_BYTES = 0xFFFF  # from one border to the next; `prefix.py` makes 1,024 at most
_MOST, _MOST_ROWS = 0xFFFFFFFF, 0xFFFF

_HEADER = Struct("<BBIQI")  # version, flags, installation, gateway, sequence
_SECTION = Struct("<BI")  # kind, bytes
_IS_LEAVING, _TELLS_ALL_LOADS = 1, 2
_LOADS, _PLACEMENTS, _SETTLEMENTS, _ESTIMATES = 1, 2, 3, 4
_LOAD = Struct("<QHHHII")
_PLACEMENT = Struct("<QIH")
_SETTLEMENT = Struct("<QBIIIIIIIfIIHf")
_ESTIMATES_NOTE = Struct("<QHfIfIfIfIfIfI")
_HAS_PROMPT, _HAS_CACHED, _HAS_EXACT, _HAS_TTFT, _IS_OF_REPLICA, _IS_BEHIND = (1 << bit for bit in range(6))

FRAME_BYTES = _HEADER.size + 4 * _SECTION.size
LOAD_BYTES, SETTLEMENT_BYTES, ESTIMATES_BYTES = _LOAD.size, _SETTLEMENT.size, _ESTIMATES_NOTE.size


class Malformed(Exception):
    """Bytes that are no message."""


class UnknownVersion(Exception):
    """A message of a version that this release does not read."""


@lru_cache(MAX_PLACED_BORDERS + 1)
def _borders(num: int) -> Struct:
    """Of so many hashes, and as many bytes from border to border."""
    return Struct(f"<{num}Q{num}H")


def load_bytes(load: Load) -> bytes:
    """A load, as it stands in its section."""
    replica, interactive, standard, bulk, tokens, bulk_tokens = load
    rows = (min(rows, _MOST_ROWS) for rows in (interactive, standard, bulk))
    return _LOAD.pack(replica, *rows, min(tokens, _MOST), min(bulk_tokens, _MOST))


def placement_bytes(replica: int, tokens: int, hashes: Sequence[int], sizes: Sequence[int]) -> bytes:
    """A placement, as it stands in its section; of a long prompt its head. Empty for a prompt without a border."""
    num = min(len(hashes), MAX_PLACED_BORDERS)
    if not num:
        return b""
    steps = [sizes[0], *map(sub, sizes[1:num], sizes[: num - 1])]
    if max(steps) > MAX_BORDER_BYTES:
        num = next(place for place, step in enumerate(steps) if step > MAX_BORDER_BYTES)
        if not num:
            return b""
        del steps[num:]
    return _PLACEMENT.pack(replica, min(tokens, _MOST), num) + _borders(num).pack(*hashes[:num], *steps)


def settlement_bytes(told: Settlement) -> bytes:
    """A settlement, as it stands in its section."""
    flags = (
        (told.prompt_tokens is not None) * _HAS_PROMPT
        | (told.cached_tokens is not None) * _HAS_CACHED
        | (told.exact_tokens is not None) * _HAS_EXACT
        | (told.ttft_s is not None) * _HAS_TTFT
        | told.is_of_replica * _IS_OF_REPLICA
        | told.is_behind * _IS_BEHIND
    )
    before = (
        told.total_bytes, told.prompt_tokens or 0, told.shadow_tokens, told.exact_tokens or 0, told.cached_tokens or 0,
        told.held, told.known,
    )  # fmt: skip
    return _SETTLEMENT.pack(
        told.replica, flags, *(min(number, _MOST) for number in before), told.age_share, min(told.read_tokens, _MOST),
        min(told.uncached_tokens, _MOST), min(told.rows, _MOST_ROWS), told.ttft_s or 0.0,
    )  # fmt: skip


def estimates_bytes(told: Estimates) -> bytes:
    """Estimates, as they stand in their section."""
    replica, age_s, *estimates = told
    numbers = (number for value, weight in estimates for number in (value, min(weight, _MOST)))
    return _ESTIMATES_NOTE.pack(replica, min(age_s, 0xFFFF), *numbers)


def message_bytes(
    header: Header, *, loads: Iterable[bytes] = (), placements: Iterable[bytes] = (),
    settlements: Iterable[bytes] = (), estimates: Iterable[bytes] = (),
) -> bytes:  # fmt: skip
    """A message of notes that are bytes already. The caller keeps it within `MAX_MESSAGE_BYTES`."""
    flags = header.is_leaving * _IS_LEAVING | header.tells_all_loads * _TELLS_ALL_LOADS
    parts = [_HEADER.pack(VERSION, flags, header.installation, header.gateway, header.seq)]
    sections = (_LOADS, loads), (_SETTLEMENTS, settlements), (_PLACEMENTS, placements), (_ESTIMATES, estimates)
    for kind, notes in sections:
        if body := b"".join(notes):
            parts += (_SECTION.pack(kind, len(body)), body)
    return b"".join(parts)


def encode(message: Message) -> bytes:
    """A whole message."""
    return message_bytes(
        message.header,
        loads=map(load_bytes, message.loads),
        placements=(placement_bytes(*one) for one in message.placements),
        settlements=map(settlement_bytes, message.settlements),
        estimates=map(estimates_bytes, message.estimates),
    )


def header_of(content: bytes) -> Header:
    """Whose message it is; cheap, so that one's own need not be read. Raises `Malformed`, `UnknownVersion`."""
    if not content or len(content) > MAX_READ_BYTES:
        raise Malformed
    if content[0] != VERSION:
        raise UnknownVersion
    if len(content) < _HEADER.size:
        raise Malformed
    _, flags, installation, gateway, seq = _HEADER.unpack_from(content)
    if not seq:
        raise Malformed
    return Header(installation, gateway, seq, bool(flags & _IS_LEAVING), bool(flags & _TELLS_ALL_LOADS))


def decode(content: bytes) -> Message:
    """The message. Raises `Malformed`, `UnknownVersion`."""
    header = header_of(content)
    bodies: dict[int, bytes] = {}
    at = _HEADER.size
    while at < len(content):
        if at + _SECTION.size > len(content):
            raise Malformed
        kind, length = _SECTION.unpack_from(content, at)
        at += _SECTION.size
        if at + length > len(content) or kind in bodies:
            raise Malformed
        bodies[kind] = content[at : at + length]
        at += length
    return Message(
        header,
        tuple(map(Load._make, _equal(_LOAD, bodies.get(_LOADS, b"")))),
        tuple(_placements(bodies.get(_PLACEMENTS, b""))),
        tuple(map(_settlement, _equal(_SETTLEMENT, bodies.get(_SETTLEMENTS, b"")))),
        tuple(map(_estimates, _equal(_ESTIMATES_NOTE, bodies.get(_ESTIMATES, b"")))),
    )


def _equal(note: Struct, body: bytes) -> Iterator[tuple[Any, ...]]:
    """Notes that all have the same length."""
    if len(body) % note.size:
        raise Malformed
    return note.iter_unpack(body)


def _placements(body: bytes) -> Iterator[Placement]:
    at = 0
    while at < len(body):
        if at + _PLACEMENT.size > len(body):
            raise Malformed
        replica, tokens, num = _PLACEMENT.unpack_from(body, at)
        at += _PLACEMENT.size
        if not 0 < num <= MAX_PLACED_BORDERS or at + 10 * num > len(body):
            raise Malformed
        numbers = _borders(num).unpack_from(body, at)
        at += 10 * num
        hashes, steps = numbers[:num], numbers[num:]
        if not min(steps) or len(set(hashes)) != num:  # a chain comes to no border twice: a shadow counts on it
            raise Malformed
        yield Placement(replica, tokens, hashes, tuple(accumulate(steps)))


def _settlement(numbers: tuple[Any, ...]) -> Settlement:
    replica, flags, total, prompt, shadow, exact, cached, held, known, age_share, read, uncached, rows, ttft_s = numbers
    if not 0.0 <= age_share <= 1.0 or not isfinite(ttft_s) or ttft_s < 0.0:
        raise Malformed
    return Settlement(
        replica, total, prompt if flags & _HAS_PROMPT else None, shadow, exact if flags & _HAS_EXACT else None,
        cached if flags & _HAS_CACHED else None, held, known, age_share, read, uncached, rows,
        ttft_s if flags & _HAS_TTFT else None, bool(flags & _IS_BEHIND), bool(flags & _IS_OF_REPLICA),
    )  # fmt: skip


def _estimates(numbers: tuple[Any, ...]) -> Estimates:
    replica, age_s, *rest = numbers
    if not all(map(isfinite, rest[::2])):
        raise Malformed
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return Estimates(replica, age_s, *(Estimate(value, weight) for value, weight in pairs))
