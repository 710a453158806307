"""A client over a raw socket that knows exactly what it sent and got, and its own reader of event streams.

Shares no code with the gateway: HTTP/1.1 framing and server-sent events are read here by the letter of their standards.
"""

import asyncio
import contextlib
import json
import re
import socket
import struct
from dataclasses import dataclass

from tests.scripted_engine import within_patience

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def events_of(body):
    """(data payloads, comments) of an event stream; an event that the end left open is dropped, as the standard says."""
    payloads, comments, data = [], [], []
    lines = re.split(rb"\r\n|\n|\r", body.removeprefix(b"\xef\xbb\xbf"))
    for line in lines[:-1]:
        if not line:
            if data:
                payloads.append(b"\n".join(data).decode())
            data = []
        elif line.startswith(b":"):
            comments.append(line[1:].strip().decode())
        else:
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
    return payloads, comments


@dataclass
class Answer:
    """One whole answer. `is_complete` False: the connection ended before the body did."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_complete: bool = True

    def header(self, name):
        """The value of a header that must not come twice, None if it did not come."""
        values = [value for key, value in self.headers if key == name]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    @property
    def json(self):
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def is_stream(self):
        """Whether it is an event stream."""
        return (self.header("content-type") or "").startswith("text/event-stream")

    @property
    def payloads(self):
        """Data of all events."""
        return events_of(self.body)[0]

    @property
    def comments(self):
        """All comments of the stream."""
        return events_of(self.body)[1]

    @property
    def is_done(self):
        """Whether the stream ended with exactly one end marker."""
        return self.payloads.count("[DONE]") == 1 and self.payloads[-1] == "[DONE]"

    @property
    def chunks(self):
        """The events that are JSON."""
        return [json.loads(payload) for payload in self.payloads if payload != "[DONE]"]

    @property
    def error(self):
        """The error: of the body, or the last event of the stream; None without one."""
        return (self.chunks[-1] if self.is_stream else self.json).get("error")

    @property
    def code(self):
        """The machine-readable reason of the error."""
        return self.error["reason"] if self.is_stream else self.error["code"]

    @property
    def text(self):
        """All that the first choice says."""
        if not self.is_stream:
            choice = self.json["choices"][0]
            return choice["text"] if "text" in choice else choice["message"]["content"]
        choices = [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]
        return "".join((choice.get("delta", choice).get("content") or choice.get("text") or "") for choice in choices)

    @property
    def roles(self):
        """How often a role was announced."""
        choices = [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]
        return sum(bool(choice.get("delta", {}).get("role")) for choice in choices)

    @property
    def usage(self):
        """The usage told to the client, None without one."""
        if not self.is_stream:
            return self.json.get("usage")
        found = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        assert len(found) <= 1, "usage came more than once"
        return found[0] if found else None


class Client:
    """One connection."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        self._head = None
        self._body = b""

    @classmethod
    async def open(cls, port, **options):
        """Connected."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**20, **options))

    def send(self, body, *, path=CHAT, key=None, headers=(), method="POST", close=False):
        """Write one request. `body`: an object, bytes as they are, or None."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "host: gateway"]
        lines += [f"authorization: Bearer {key}"] if key else []
        lines += [f"content-length: {len(raw)}"] if body is not None else []
        lines += ["connection: close"] if close else []
        lines += [f"{name}: {value}" for name, value in headers]
        self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    def write(self, raw):
        """Exactly these bytes."""
        self.writer.write(raw)

    async def head(self):
        """(status, headers) of the answer."""
        if self._head is None:
            raw = await within_patience(self.reader.readuntil(b"\r\n\r\n"))
            first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
            pairs = [line.split(":", 1) for line in lines]
            headers = [(name.lower(), value.strip()) for name, value in pairs]
            self._head = (int(first.split()[1]), headers)
            self._fields = dict(headers)
            self._left = int(self._fields.get("content-length", 0))
        return self._head

    async def piece(self):
        """The next piece of the body, None at its end. Raises IncompleteReadError if it is cut."""
        await self.head()
        if self._fields.get("transfer-encoding") == "chunked":
            line = await within_patience(self.reader.readuntil(b"\r\n"))
            size = int(line, 16)
            data = await within_patience(self.reader.readexactly(size + 2))
            assert data.endswith(b"\r\n"), "a chunk that is longer than it says"
            data = data[:-2]
        else:
            data = await within_patience(self.reader.readexactly(self._left))
            self._left = 0
        self._body += data
        return data or None

    async def until(self, text):
        """The body so far, once it holds the text."""
        wanted = text.encode()
        while wanted not in self._body:
            assert await self.piece() is not None, f"ended without {text!r}: {self._body!r}"
        return self._body

    async def answer(self):
        """The whole answer; the client may then send its next request."""
        status, headers = await self.head()
        is_complete = True
        try:
            while await self.piece() is not None:
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            is_complete = False
        answer = Answer(status, headers, self._body, is_complete)
        self._head, self._body = None, b""
        return answer

    async def until_closed(self):
        """What still came before the gateway closed the connection."""
        with contextlib.suppress(ConnectionError):
            return await within_patience(self.reader.read())
        return b""

    def close(self):
        """Close both directions."""
        self.writer.close()

    def reset(self):
        """End with a RST."""
        linger = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.writer.transport.abort()

    def half_close(self):
        """Close the sending direction."""
        self.writer.write_eof()
