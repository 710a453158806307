"""A real HTTP server of one file on this machine, which can be told to break in the ways that servers do."""

import contextlib
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """What the server does; tests change it while it runs. `requests`: the headers of each request, in order.

    `cuts`: for each request to come, after how many body bytes the connection is cut; none left means never.
    `stall_after`: so many bytes are sent, then `stalled` is set and nothing comes until `go_on` is.
    """

    def __init__(self, content):
        self.content = content
        self.etag = '"v1"'
        self.last_modified = ""
        self.has_ranges = True
        self.has_length = True
        self.content_type = "application/octet-stream"
        self.surplus_bytes = 0  # sent behind the content, in chunks, whatever the length says
        self.said_length = ""  # in place of the content's length
        self.cuts = []
        self.stall_after = None
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self.statuses = []
        self.redirects = {}
        self.requests = []
        self.url = ""

    def cut_after(self):
        """The next request's cut, if any."""
        return self.cuts.pop(0) if self.cuts else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        """Answer one request as the test has scripted it."""
        file = self.server.file
        file.requests.append((self.path, self.headers))
        self.close_connection = True
        if self.path in file.redirects:
            return self._head(302, {"Location": file.redirects[self.path], "Content-Length": "0"})
        if file.statuses:
            return self._head(file.statuses.pop(0), {"Content-Length": "0"})
        content, total = file.content, len(file.content)
        start = self._start(file)
        headers = {"Content-Type": file.content_type}
        if file.etag:
            headers["ETag"] = file.etag
        if file.last_modified:
            headers["Last-Modified"] = file.last_modified
        if start is not None and start >= total:
            return self._head(416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
        if start is not None:
            headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        body = content[start or 0 :]
        if file.has_length:
            headers["Content-Length"] = file.said_length or str(len(body))
        if file.surplus_bytes:
            return self._surplus(start, headers, body, file)
        self._head(206 if start is not None else 200, headers)
        if file.stall_after is not None:
            return self._stall(body, file)
        cut = file.cut_after()
        self.wfile.write(body if cut is None else body[:cut])
        return None

    def _surplus(self, start, headers, body, file):
        self._head(206 if start is not None else 200, {**headers, "Transfer-Encoding": "chunked"})
        left = len(body) + file.surplus_bytes
        with contextlib.suppress(ConnectionError):
            while left:
                piece = (body or bytes(1 << 16))[: 1 << 16][:left]
                body, left = body[len(piece) :], left - len(piece)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    def _stall(self, body, file):
        self.wfile.write(body[: file.stall_after])
        file.stalled.set()
        file.go_on.wait(30)
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[file.stall_after :])

    def _start(self, file):
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        validator = self.headers.get("If-Range")
        if wanted is None or not file.has_ranges or (validator and validator not in (file.etag, file.last_modified)):
            return None
        return int(wanted[1])

    def _head(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()


@contextmanager
def serving(content):
    """The server of this content, at `.url`, until the block is left."""
    file = FileServer(content)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.file = file
        file.url = f"http://127.0.0.1:{server.server_address[1]}/m.gguf"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield file
        finally:
            file.go_on.set()
            server.shutdown()
            thread.join()
