"""uvicorn's HTTP/1.1 protocol without upgrades: who offers one (`Upgrade: h2c`) is answered in HTTP/1.1, body and all.

The parser ends a message at the head when an upgrade is offered, and drops what follows. So it is replaced, and reads
the head again without the offer.
"""

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFER = frozenset({b"upgrade", b"http2-settings"})


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
