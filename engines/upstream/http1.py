"""HTTP/1.1 as one client needs it: the bytes of a request, and the reading of an answer out of any pieces.

No I/O here, and no pool: a reader is fed what the socket gave and calls the sink of the answer it is reading.
httptools (llhttp, strict) does the parsing; this module adds what it leaves to its user: limits, interim answers,
hop-by-hop headers, bodies that end with the connection, and whether the connection may be used again.
"""

import re

import httptools

from engines.contract import Fault, Headers, ReplicaError, UpstreamSink

# RFC 9110, 7.6.1, and the two that proxies invented.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# What `request_head` writes by itself: a caller who set one of these would contradict the framing.
_OURS = frozenset({b"host", b"content-length"}) | HOP_BY_HOP

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"/[\x21-\x7e]*")
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})


def request_head(method: str, target: bytes, host: bytes, headers: Headers, content_length: int) -> bytes:
    """The head of a request with a body of `content_length` bytes (none for a GET).

    Raises ValueError for anything that could end a line early or contradict the framing: header injection stops here.
    A plain answer is asked for (`accept-encoding: identity`) unless the caller says otherwise, because usage is read
    out of the answer's bytes; the body is JSON unless the caller says otherwise.
    """
    if method not in _METHODS:
        raise ValueError(f"method {method!r} is not one of {sorted(_METHODS)}")
    if _TARGET.fullmatch(target) is None:
        raise ValueError(f"request target {target!r} is not an absolute path of visible ASCII")
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), target, host)]
    has_encoding = has_type = False
    for name, value in headers:
        if _TOKEN.fullmatch(name) is None or _FIELD_VALUE.fullmatch(value) is None:
            raise ValueError(f"header {name!r} has a name or value that HTTP does not allow")
        lower = name.lower()
        if lower in _OURS:
            raise ValueError(f"header {name!r} is set by the client itself")
        has_encoding |= lower == b"accept-encoding"
        has_type |= lower == b"content-type"
        lines.append(b"%b: %b\r\n" % (name, value))
    if not has_encoding:
        lines.append(b"accept-encoding: identity\r\n")
    if method == "GET" and content_length == 0:
        lines.append(b"\r\n")
    elif has_type:
        lines.append(b"content-length: %d\r\n\r\n" % content_length)
    else:
        lines.append(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % content_length)
    return b"".join(lines)


class _Deaf:
    """The sink of an answer nobody wants any more."""

    def on_head(self, status: int, headers: Headers) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_flush(self) -> None: ...
    def on_end(self) -> None: ...
    def on_fail(self, error: ReplicaError) -> None: ...


DEAF: UpstreamSink = _Deaf()


class AnswerReader:
    """Reads the answers of one connection, one after the other. `begin`, then `feed` until it returns True.

    Calls `on_head` and `on_data` of the sink while it is fed; flush, end and failure are told by its owner.
    After any error the connection is done for.
    """

    __slots__ = (
        "_body_ends_with_connection",
        "_has_head",
        "_head_bytes",
        "_headers",
        "_is_interim",
        "_max_head_bytes",
        "_parser",
        "_quiet_bytes",
        "can_reuse",
        "has_begun",
        "is_complete",
        "sink",
    )

    def __init__(self, max_head_bytes: int) -> None:
        self._max_head_bytes = max_head_bytes
        self._parser = httptools.HttpResponseParser(self)
        self.begin(DEAF)

    def begin(self, sink: UpstreamSink) -> None:
        """Expect a new answer, for `sink`."""
        self.sink = sink
        self.has_begun = False  # a byte of the answer has come
        self.is_complete = False
        self.can_reuse = False  # known once complete
        self._headers: Headers = []
        self._head_bytes = 0  # names and values, of all heads (interim ones too) and trailers of this answer
        self._quiet_bytes = 0  # received since the last byte of body
        self._has_head = False
        self._is_interim = False
        self._body_ends_with_connection = False

    def feed(self, data: bytes) -> bool:
        """Take what was received; True once the answer is complete. Raises ReplicaError for what is not HTTP.

        What a sink's callback raises comes out as it is.
        """
        self.has_begun = True
        self._quiet_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.can_reuse = False
            if not self.is_complete:
                raise ReplicaError(Fault.PROTOCOL, f"the engine's answer is not HTTP/1.1: {error}") from error
        if self._quiet_bytes > self._max_head_bytes and not self.is_complete:
            raise self._too_long()
        return self.is_complete

    def end_of_stream(self) -> bool:
        """The engine closed its side cleanly: True if that is where this answer ends."""
        self.can_reuse = False
        self.is_complete = self.is_complete or (self._has_head and self._body_ends_with_connection)
        return self.is_complete

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A status line begins."""
        # A second answer to one request: what was asked for is complete, the rest is nobody's.
        if self.is_complete:
            self.can_reuse = False
            self.sink = DEAF

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or a trailer; trailers are counted and dropped."""
        if self.is_complete:
            return
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._max_head_bytes:
            raise self._too_long()
        if not self._has_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A head is complete: an interim one is dropped."""
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            # 101 raises in the parser: nobody asked for another protocol.
            self._is_interim = True
            self._headers = []
            return
        headers, self._headers = self._headers, []
        self._has_head = True
        self._learn_framing(headers, status)
        self.sink.on_head(status, without_hop_by_hop(headers))

    def on_body(self, data: bytes) -> None:
        """A piece of the body, unframed."""
        self._quiet_bytes = 0
        self.sink.on_data(data)

    def on_message_complete(self) -> None:
        """The body is complete, or an interim answer, which has none."""
        if self._is_interim:
            self._is_interim = False
        elif not self.is_complete:
            self.is_complete = True
            self.can_reuse = self._parser.should_keep_alive()

    def _learn_framing(self, headers: Headers, status: int) -> None:
        is_chunked = has_length = False
        for name, value in headers:
            if name == b"content-length":
                has_length = True
            elif name == b"transfer-encoding":
                if value.strip().lower() != b"chunked":
                    raise ReplicaError(
                        Fault.PROTOCOL, f"transfer coding {value[:40]!r} was not asked for", status=status
                    )
                is_chunked = True
        self._body_ends_with_connection = not (is_chunked or has_length)

    def _too_long(self) -> ReplicaError:
        return ReplicaError(Fault.PROTOCOL, f"the engine sent more than {self._max_head_bytes} bytes without a body")


def without_hop_by_hop(headers: Headers) -> Headers:
    """The headers (names lower case) that concern more than one connection, in their order."""
    named = [value for name, value in headers if name == b"connection"]
    if not named:
        return [header for header in headers if header[0] not in HOP_BY_HOP]
    hop = HOP_BY_HOP.union(token.strip().lower() for value in named for token in value.split(b","))
    return [header for header in headers if header[0] not in hop]
