"""A `multipart/form-data` body read into its parts (RFC 7578), or a `ClientError` that says what is wrong. Pure.

Strict on purpose: what two readers could take differently is refused, since the engine reads what this module wrote
anew. Files are not copied: a part's content is a view of the body.
"""

import re

from engines.contract import Part
from gateway.errors import ClientError

MAX_PARTS = 64  # chosen: a transcription has about ten
MAX_HEAD_BYTES = 8192  # chosen: of one part's headers; a name and a file name
MAX_NAME_CHARS = 256

_TYPE = re.compile(rb"multipart/form-data\s*((?:;[^;]*)*)", re.IGNORECASE)
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_PARAM = re.compile(rb';[ \t]*([A-Za-z*-]+)[ \t]*=[ \t]*("(?:[^"\\\r\n]|\\.)*"|[^\s;"]*)[ \t]*')
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_MEDIA_TYPE = re.compile(rb"[0-9A-Za-z!#$&^_.+-]+/[0-9A-Za-z!#$&^_.+-]+")
_AS_IT_IS = frozenset({b"7bit", b"8bit", b"binary"})
_Params = dict[bytes, bytes]


def read_form(body: bytes, content_type: bytes) -> list[Part]:
    """The parts in order. Raises `ClientError` (400; 415 for another type of body)."""
    mark = b"--" + _boundary_of(content_type)
    if not body.startswith(mark):
        raise _wrong("the form does not begin with its boundary")
    parts: list[Part] = []
    at = _after_mark(body, len(mark))
    while at is not None:
        if len(parts) == MAX_PARTS:
            raise _wrong(f"a form may have at most {MAX_PARTS} parts")
        head_end = body.find(b"\r\n\r\n", at - 2, at + MAX_HEAD_BYTES)
        if head_end < 0:
            raise _wrong(f"a part of the form has no end of its headers within {MAX_HEAD_BYTES} bytes")
        start = head_end + 4
        end = body.find(b"\r\n" + mark, start - 2)
        if end < 0:
            raise _wrong("the form ends in the middle of a part")
        if end < start:
            raise _wrong("a part of the form has no empty line behind its headers")
        parts.append(_part(body[at:head_end], memoryview(body)[start:end]))
        at = _after_mark(body, end + 2 + len(mark))
    return parts


def text_of(part: Part) -> str:
    """What a part that is a text says. Raises `ClientError` for what is no text."""
    try:
        return bytes(part.content).decode()
    except UnicodeDecodeError:
        raise ClientError(f"{part.name} is not UTF-8", param=part.name) from None


def _boundary_of(content_type: bytes) -> bytes:
    match = _TYPE.fullmatch(content_type.strip())
    if match is None:
        message = "send the audio as multipart/form-data"
        raise ClientError(message, param="content-type", status=415, code="unsupported_content_type")
    params = _params(match.group(1).strip())
    boundary = None if params is None else params.get(b"boundary")
    if boundary is None or _BOUNDARY.fullmatch(boundary) is None:
        raise _wrong("the content-type needs a boundary of 1 to 70 characters")
    return boundary


def _after_mark(body: bytes, at: int) -> int | None:
    """Where the next part's headers begin behind a boundary that ends at `at`; None behind the last."""
    if body.startswith(b"--", at):
        if body[at + 2 :] not in (b"", b"\r\n"):
            raise _wrong("something stands behind the end of the form")
        return None
    line_end = body.find(b"\r\n", at, at + 256)
    if line_end < 0 or body[at:line_end].strip(b" \t"):
        raise _wrong("the boundary stands inside a part of the form, or is cut")
    return line_end + 2


def _part(head: bytes, content: memoryview) -> Part:
    headers: _Params = {}
    for line in head.split(b"\r\n"):
        match = _HEADER.fullmatch(line)
        if match is None or match.group(1).lower() in headers:
            raise _wrong("a part of the form has headers that cannot be read")
        headers[match.group(1).lower()] = match.group(2).strip()
    kind, semicolon, rest = headers.get(b"content-disposition", b"").partition(b";")
    params = _params(semicolon + rest)
    if kind.strip().lower() != b"form-data" or params is None or b"name" not in params:
        raise _wrong("every part of the form needs a content-disposition of form-data with a name")
    if headers.get(b"content-transfer-encoding", b"binary").lower() not in _AS_IT_IS:
        raise _wrong("a part of the form is encoded; send it as it is")
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip()
    filename = params.get(b"filename", b"audio" if b"filename*" in params else None)
    return Part(
        _word(params[b"name"]),
        content,
        None if filename is None else _word(filename),
        media_type if _MEDIA_TYPE.fullmatch(media_type) else b"",
    )


def _params(text: bytes) -> _Params | None:
    """The parameters of a header, each once; None for what cannot be read."""
    found: _Params = {}
    at = 0
    while at < len(text):
        match = _PARAM.match(text, at)
        if match is None or match.group(1).lower() in found:
            return None
        found[match.group(1).lower()] = _unquoted(match.group(2))
        at = match.end()
    return found


def _unquoted(value: bytes) -> bytes:
    if not value.startswith(b'"'):
        return value
    return re.sub(rb'\\(["\\])', rb"\1", value[1:-1])


def _word(value: bytes) -> str:
    try:
        word = value.decode()
    except UnicodeDecodeError:
        raise _wrong("a name in the form is not UTF-8") from None
    if len(word) > MAX_NAME_CHARS:
        raise _wrong(f"a name in the form has more than {MAX_NAME_CHARS} characters")
    return word


def _wrong(message: str) -> ClientError:
    return ClientError(message, code="invalid_form")
