"""uvicorn's HTTP/1.1 protocol without upgrades: who offers one (`Upgrade: h2c`) is answered in HTTP/1.1, body and all.

The parser ends a message at the head when an upgrade is offered, and drops what follows. So it is replaced, and reads
the head again without the offer. `BoundedHttpProtocol` bounds heads too, for listeners that have no edge of their own.
"""

import asyncio

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFER = frozenset({b"upgrade", b"http2-settings"})
MAX_HEAD_BYTES = 65536  # chosen: as nginx and node allow in all
HEAD_S = 60.0  # chosen: for a head, from its first byte or from the connection on


class PlainHttpProtocol(HttpToolsProtocol):
    """A connection on which every offer of another protocol is ignored, as RFC 9110, 7.8 allows."""

    _has_offer = False  # the message being read offers an upgrade: its head will be read again

    def data_received(self, data: bytes) -> None:
        """A read. What is no HTTP is answered with 400, and not logged: any scanner can send it."""
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """A head is complete."""
        if not self.puts_off_offer():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A message is complete, unless it only seems so because of an offer."""
        if not self._has_offer:
            super().on_message_complete()

    def puts_off_offer(self) -> bool:
        """Whether this head offers an upgrade: it is nothing yet, and comes again without the offer."""
        self._has_offer = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        return self._has_offer

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if not self._has_offer:
                    return  # CONNECT: what follows is for somebody else
                data = data[offer.args[0] :]
                self._read_again()
            else:
                return

    def _read_again(self) -> None:
        version, method = self.parser.get_http_version().encode(), self.parser.get_method()
        head = [b"%b %b HTTP/%b\r\n" % (method, self.url, version)]
        head += [b"%b: %b\r\n" % header for header in _without_offer(self.headers)]
        self._has_offer = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.parser.feed_data(b"".join([*head, b"\r\n"]))


class BoundedHttpProtocol(PlainHttpProtocol):
    """Ends connections whose request's head does not end: the parser would keep all of it, and nobody else times it."""

    _quiet_bytes = 0  # since a body or a whole request came: heads, chunk extensions and trailers
    _is_in_head = True  # or before the first
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A connection, which is to say something."""
        super().connection_made(transport)
        self._follow_head()

    def data_received(self, data: bytes) -> None:
        """A read."""
        self._quiet_bytes += len(data)
        super().data_received(data)
        if self._quiet_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")
        self._follow_head()

    def on_message_begin(self) -> None:
        """A message begins."""
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is complete; the next one has its own time."""
        self._is_in_head = False
        self._stop_timing()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._quiet_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A message is complete; uvicorn times the silence before the next."""
        if not self._has_offer:
            self._quiet_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        super().connection_lost(exc)
        self._stop_timing()

    def _follow_head(self) -> None:
        """Time a head, and what is said where nothing is asked, since uvicorn waits no more when anything comes."""
        if self.transport.is_closing() or not (self._is_in_head or self._is_answered):
            self._stop_timing()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self._end_late)

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _stop_timing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end_late(self) -> None:
        self._late = None
        if not self._is_answered:
            self._follow_head()  # the head of a next request, which has to wait for this answer
        else:
            self.transport.close()


def _without_offer(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    kept = []
    for name, value in headers:
        if name == b"connection":
            rest = [token for token in value.split(b",") if token.strip().lower() not in _OFFER]
            if rest:
                kept.append((name, b",".join(rest)))
        elif name not in _OFFER:
            kept.append((name, value))
    return kept
