"""A multipart form as engines are sent it: parts of one shape, written anew, so that no two readers differ about them.

What a client named strangely, or twice, or hid in a header of a part, has been refused or left out before.
"""

from collections.abc import Sequence

from engines.contract import Part


def text_part(name: str, text: str) -> Part:
    """A field that is a text."""
    return Part(name, text.encode())


def form_body(parts: Sequence[Part], boundary: bytes) -> bytes:
    """The body of these parts. `boundary`: stands in none of them; nobody can have guessed it."""
    pieces: list[bytes | memoryview] = []
    for part in parts:
        pieces += (_head(part, boundary), part.content, b"\r\n")
    return b"".join([*pieces, b"--%b--\r\n" % boundary])


def _head(part: Part, boundary: bytes) -> bytes:
    lines = [b'--%b\r\ncontent-disposition: form-data; name="%b"' % (boundary, _quoted(part.name))]
    if part.filename is not None:
        lines.append(b'; filename="%b"' % _quoted(part.filename))
        lines.append(b"\r\ncontent-type: %b" % (part.content_type or b"application/octet-stream"))
    return b"".join([*lines, b"\r\n\r\n"])


def _quoted(word: str) -> bytes:
    """As browsers write it: what would end the word, or the line, is percent-encoded."""
    return word.encode().replace(b"\r", b"%0D").replace(b"\n", b"%0A").replace(b'"', b"%22")
