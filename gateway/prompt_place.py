"""Which message, role and part of a prompt a byte lies in: `prompt.py`'s canonical bytes read backwards.

Used for prefix diagnosis alone, and only when a place is seen for the first time.
"""

import re
from collections.abc import Sequence

from cache_affinity.places import PartName
from gateway.prompt import MAX_PARTS

_END = b"\x1f"
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})  # others may say anything
_LENGTHS = re.compile(rb"[0-9]{1,10}[rm]?(,[0-9]{1,10}[rm]?)+")
_MOST_LENGTHS = MAX_PARTS + 3  # what was thought and refused, and tool calls
_CHAR_BYTES = 4  # at most, in UTF-8
_FIELDS = frozenset({b"tools", b"functions", b"documents", b"chat_template_kwargs", b"suffix"})


def part_of_chat(segments: Sequence[bytes], segment: int, byte: int) -> PartName:
    """The part of a chat's prompt that has this byte of a segment; of a completion's, where it is no message."""
    content = segments[segment]
    field = _field(content)
    if field is not None:
        return PartName(field.decode(), starts_at=len(field) + 1)
    head = _head(content)
    if head is None:
        return PartName("prompt")
    role, starts_at = head
    message = segment - sum(_field(one) is not None for one in segments[:segment])
    part, starts_at = _part(content, starts_at, byte)
    return PartName("message", message, role, part, starts_at)


def _field(content: bytes) -> bytes | None:
    """The field that a segment is, None for a message."""
    name = content[: content.find(_END, 0, 32)] if _END in content[:32] else b""
    return name if name in _FIELDS else None


def _head(content: bytes) -> tuple[str, int] | None:
    """(role, byte at which what is said begins) of a message, None for what is none."""
    end = content.find(_END)
    lengths = content[: max(end, 0)].split(b",")
    if len(lengths) != 3 or not all(one.isdigit() and len(one) < 10 for one in lengths):
        return None
    num_role, num_all = int(lengths[0]), sum(map(int, lengths))
    role = content[end + 1 : end + 1 + _CHAR_BYTES * num_role].decode("utf-8", "replace")[:num_role]
    return role if role in _ROLES else "other", _chars_end(content, end + 1, num_all)


def _part(content: bytes, starts_at: int, byte: int) -> tuple[int | None, int]:
    """(number of the content part, byte at which it begins); no number where there is one part alone.

    Lengths at the end count the characters of texts, and the bytes of what was taken as it came. A completion's prompt
    may look like a message and end with anything.
    """
    told = content[content.rfind(_END) + 1 :]
    if told.count(b",") >= _MOST_LENGTHS or not _LENGTHS.fullmatch(told):
        return None, starts_at
    lengths = told.split(b",")
    for part, length in enumerate(lengths):
        num = int(length.rstrip(b"rm"))
        end = starts_at + num if length[-1:] in b"rm" else _chars_end(content, starts_at, num)
        if byte < end or part == len(lengths) - 1:
            break
        starts_at = end
    return part, starts_at


def _chars_end(content: bytes, start: int, num_chars: int) -> int:
    """Where so many characters end. Reads no more than they can be: thousands of texts may stand before a large one."""
    said = content[start : start + _CHAR_BYTES * num_chars].decode("utf-8", "replace")
    return start + len(said[:num_chars].encode())
