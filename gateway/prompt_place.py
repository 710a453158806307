"""Which message, role and part of a prompt a byte lies in: `prompt.py`'s canonical bytes read backwards.

Used for prefix diagnosis alone, and only when a place is seen for the first time.
"""

from collections.abc import Sequence

from cache_affinity.places import PartName

_END = b"\x1f"
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})  # others may say anything
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
    said = content[end + 1 :].decode("utf-8", "replace")
    num_role, num_all = int(lengths[0]), sum(map(int, lengths))
    role = said[:num_role]
    return role if role in _ROLES else "other", end + 1 + len(said[:num_all].encode())


def _part(content: bytes, starts_at: int, byte: int) -> tuple[int | None, int]:
    """(number of the content part, byte at which it begins); no number where there is one part alone.

    Lengths at the end count the characters of texts, and the bytes of what was taken as it came.
    """
    lengths = content[content.rfind(_END) + 1 :].split(b",")
    if len(lengths) < 2:
        return None, starts_at
    for part, length in enumerate(lengths):
        num = int(length.rstrip(b"rm"))
        end = starts_at + (num if length[-1:] in b"rm" else _chars_end(content[starts_at:], num))
        if byte < end or part == len(lengths) - 1:
            break
        starts_at = end
    return part, starts_at


def _chars_end(content: bytes, num_chars: int) -> int:
    return len(content.decode("utf-8", "replace")[:num_chars].encode())
