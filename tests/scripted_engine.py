"""A fake OpenAI-compatible engine for tests: a real HTTP server in the test's own loop that does what its script says.

    async with ScriptedEngine() as engine:                      # engine.url == "http://127.0.0.1:PORT"
        gate = asyncio.Event()
        engine.script(answer("Hel", "lo", gates={2: gate}))     # for the next request; several: in order
        ...                                                     # start a request against engine.url
        request = await engine.received(1)                      # the first request: .json, .headers, .header("x")
        gate.set()                                              # let the second token go
        await request.until_aborted()                           # or .until_finished()

A script is one `Reply`, or a function from the received request to one; `answer(...)` makes the usual kind, which obeys
the request's `stream`, `stream_options` and path. A request without a script gets `engine.default` (two tokens).
A reply is a list of steps: `bytes` are written (framed), an `asyncio.Event` is waited for, a `Cut` ends the connection.
No step takes time by itself: delays are events that the test sets. Only POSTs are scripted and recorded in
`engine.requests`; `GET /health`, `/v1/models` and `/metrics` answer from attributes and are counted in `engine.probes`.

Events of a streamed chat answer, as vLLM sends them, for `gates` and `cut_before`:
index 0 the role chunk, 1..n the tokens, then the finish chunk, the usage chunk (if any) and `[DONE]`.
"""

import asyncio
import json
import socket
import struct
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, Self

import httptools

PATIENCE_S = 30.0  # the longest any helper here waits before it fails the test


class Cut(Enum):
    """How a reply ends the connection in the middle: with a FIN, or with a RST."""

    CLOSE = "close"
    RESET = "reset"


class Framing(Enum):
    """How the body's end is told. RAW: nothing is added, not even a head; the steps are the bytes on the wire."""

    CHUNKED = "chunked"
    LENGTH = "length"
    UNTIL_CLOSE = "until close"
    RAW = "raw"


Step = bytes | asyncio.Event | Cut
Header = tuple[str, str]
UsageShape = Literal["separate", "finish", "null_then_separate", "always", "none"]


@dataclass
class Reply:
    """One answer. With LENGTH the steps' bytes are counted first; `declared_length` overrides the count (a lie).

    `hold_head`: waited for before anything is sent. `keep_alive` False: `connection: close` and closed at the end.
    """

    steps: list[Step]
    status: int = 200
    headers: list[Header] = field(default_factory=list)
    framing: Framing = Framing.CHUNKED
    hold_head: asyncio.Event | None = None
    keep_alive: bool = True
    declared_length: int | None = None

    def head(self) -> bytes:
        """Status line and headers."""
        lines = [f"HTTP/1.1 {self.status} Scripted"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.framing is Framing.CHUNKED:
            lines.append("transfer-encoding: chunked")
        elif self.framing is Framing.LENGTH:
            length = self.declared_length
            if length is None:
                length = sum(len(step) for step in self.steps if isinstance(step, bytes))
            lines.append(f"content-length: {length}")
        if not self.keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


@dataclass
class ReceivedRequest:
    """What the engine was asked. Exactly one of `finished` and `aborted` is set in the end."""

    method: str
    path: str
    headers: list[tuple[str, str]]  # names lower case, duplicates kept
    body: bytes
    connection: int  # number of the connection it came on, from 1
    finished: asyncio.Event = field(default_factory=asyncio.Event)  # the reply was carried out to its last step
    aborted: asyncio.Event = field(default_factory=asyncio.Event)  # the client closed before that

    @property
    def json(self) -> dict[str, Any]:
        """The body as an object."""
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed

    def header(self, name: str) -> str | None:
        """The value of a header that must not come twice."""
        values = [value for key, value in self.headers if key == name.lower()]
        assert len(values) <= 1, f"{name} came {len(values)} times"
        return values[0] if values else None

    async def until_finished(self) -> None:
        """Wait until the reply is out."""
        await within_patience(self.finished.wait())

    async def until_aborted(self) -> None:
        """Wait until the client has left."""
        await within_patience(self.aborted.wait())


Script = Reply | Callable[[ReceivedRequest], Reply]


async def within_patience(awaitable: Any) -> Any:
    """What `awaitable` gives; a TimeoutError rather than a hung test."""
    async with asyncio.timeout(PATIENCE_S):
        return await awaitable


# Replies


def sse(data: bytes | str, *, line_end: bytes = b"\n", prefix: bytes = b"data: ") -> bytes:
    """One server-sent event."""
    raw = data.encode() if isinstance(data, str) else data
    return prefix + raw + line_end + line_end


def status(code: int, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
    """A whole answer with that status. `body`: bytes as they are, None for vLLM's error shape, anything else as JSON."""
    if body is None:
        body = {"error": {"message": f"scripted {code}", "type": "ScriptedError", "param": None, "code": code}}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = {"content-type": "application/json", **(headers or {})}
    return Reply([raw], status=code, headers=list(extra.items()), framing=Framing.LENGTH)


def garbage(raw: bytes = b"\x16\x03\x01 this is not HTTP\r\n\r\n") -> Reply:
    """Bytes that are no HTTP answer, then nothing."""
    return Reply([raw], framing=Framing.RAW)


def dropped(cut: Cut = Cut.CLOSE) -> Reply:
    """The connection ends before a byte of an answer."""
    return Reply([cut], framing=Framing.RAW)


def answer(*tokens: str, **options: Any) -> "ModelAnswer":
    """A model's answer of these tokens; the options are the fields of `ModelAnswer`."""
    return ModelAnswer(tokens=tokens, **options)


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """An answer in the form the request asks for. Called with the request, gives the reply.

    `usage`: "separate" (an extra chunk with no choices: vLLM), "finish" (on the finish chunk), "null_then_separate" (also
    `usage: null` on every chunk before), "always" (on every chunk), "none"; sent only if the request asked for it, or if
    `volunteers_usage`. `cached`: cached tokens reported, None for no details at all.
    `gates`: event index to what is waited for before it (unary answers: 0). `cut_before`: event index at which the
    connection ends by `cut` (a unary answer is cut in half). `gzip`: "offered" packs if the client accepts it, "always"
    regardless. `piece_bytes`: written in pieces of that size. `line_end`, `prefix`: how an SSE line looks.
    """

    tokens: tuple[str, ...]
    prompt_tokens: int = 10
    cached: int | None = 0
    finish_reason: str = "stop"
    usage: UsageShape = "separate"
    volunteers_usage: bool = False
    gates: Mapping[int, asyncio.Event] = field(default_factory=dict)
    hold_head: asyncio.Event | None = None
    cut_before: int | None = None
    cut: Cut = Cut.CLOSE
    has_finish: bool = True
    has_done: bool = True
    line_end: bytes = b"\n"
    prefix: bytes = b"data: "
    gzip: Literal["offered", "always"] | None = None
    piece_bytes: int | None = None
    headers: tuple[Header, ...] = ()

    def __call__(self, request: ReceivedRequest) -> Reply:
        asked = request.json
        reply = self._streamed(request.path, asked) if asked.get("stream") else self._unary(request.path, asked)
        reply.headers += self.headers
        reply.hold_head = self.hold_head
        accepts = request.header("accept-encoding") or ""
        if self.gzip == "always" or (self.gzip == "offered" and "gzip" in accepts):
            _pack(reply)
        if self.piece_bytes is not None:
            reply.steps = [piece for step in reply.steps for piece in _pieces(step, self.piece_bytes)]
        return reply

    def usage_object(self) -> dict[str, Any]:
        """The usage this answer reports."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.tokens),
            "total_tokens": self.prompt_tokens + len(self.tokens),
        }
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        return usage

    def _unary(self, path: str, asked: dict[str, Any]) -> Reply:
        text = "".join(self.tokens)
        is_chat = path.endswith("/chat/completions")
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self.finish_reason}
        choice |= {"message": {"role": "assistant", "content": text, "refusal": None}} if is_chat else {"text": text}
        body = _envelope(asked, is_chat=is_chat, is_chunk=False) | {"choices": [choice]}
        if self.usage != "none":
            body["usage"] = self.usage_object()
        steps: list[Step] = [self.gates[0]] if 0 in self.gates else []
        if self.cut_before is not None:
            raw = json.dumps(body).encode()
            return Reply(
                [*steps, raw[: len(raw) // 2], self.cut],
                headers=[("content-type", "application/json")],
                framing=Framing.LENGTH,
                declared_length=len(raw),
            )
        steps.append(json.dumps(body).encode())
        return Reply(steps, headers=[("content-type", "application/json")], framing=Framing.LENGTH)

    def _streamed(self, path: str, asked: dict[str, Any]) -> Reply:
        steps: list[Step] = []
        is_cut = False
        for index, event in enumerate(self._events(path, asked)):
            if index in self.gates:
                steps.append(self.gates[index])
            if index == self.cut_before:
                steps.append(self.cut)
                is_cut = True
                break
            steps.append(sse(event, line_end=self.line_end, prefix=self.prefix))
        assert is_cut or self.cut_before is None, f"there is no event {self.cut_before} to cut before"
        return Reply(steps, headers=[("content-type", "text/event-stream; charset=utf-8")])

    def _events(self, path: str, asked: dict[str, Any]) -> Iterator[str]:
        is_chat = path.endswith("/chat/completions")
        envelope = _envelope(asked, is_chat=is_chat, is_chunk=True)
        wants_usage = self.volunteers_usage or bool((asked.get("stream_options") or {}).get("include_usage"))
        shape = self.usage if wants_usage else "none"

        def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
            content = {"delta": delta} if is_chat else {"text": delta.get("content", ""), "logprobs": None}
            body = envelope | {"choices": [{"index": 0, **content, "finish_reason": finish_reason}]}
            if shape == "always" or (shape == "finish" and finish_reason is not None):
                body["usage"] = self.usage_object()
            elif shape == "null_then_separate":
                body["usage"] = None
            return json.dumps(body)

        if is_chat:
            yield chunk({"role": "assistant", "content": ""})
        for token in self.tokens:
            yield chunk({"content": token})
        if self.has_finish:
            yield chunk({}, self.finish_reason)
        if shape in {"separate", "null_then_separate", "always"}:
            yield json.dumps(envelope | {"choices": [], "usage": self.usage_object()})
        if self.has_done:
            yield "[DONE]"


def _envelope(asked: dict[str, Any], *, is_chat: bool, is_chunk: bool) -> dict[str, Any]:
    kind = ("chat.completion.chunk" if is_chunk else "chat.completion") if is_chat else "text_completion"
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1_700_000_000, "model": asked.get("model", "?")}


def _pack(reply: Reply) -> None:
    """Gzip the reply's bytes, flushed at every step so that events still arrive one by one."""
    packer = zlib.compressobj(wbits=31)
    steps = [_packed(packer, step) for step in reply.steps]
    reply.steps = [*steps, packer.flush()] if not isinstance(steps[-1], Cut) else steps
    reply.headers.append(("content-encoding", "gzip"))


def _packed(packer: Any, step: Step) -> Step:
    return packer.compress(step) + packer.flush(zlib.Z_SYNC_FLUSH) if isinstance(step, bytes) else step


def _pieces(step: Step, size: int) -> list[Step]:
    if not isinstance(step, bytes):
        return [step]
    return [step[start : start + size] for start in range(0, len(step), size)]


# The server


class ScriptedEngine:
    """The engine itself. `health` and `metrics` are what the probes answer; change them at any time.

    `kill()` is a crash (port closed, connections reset), `restart()` listens on the same port again.
    """

    def __init__(self, *scripts: Script, model: str = "scripted-model") -> None:
        self.model = model
        self.card: dict[str, Any] = {}  # more of what `/v1/models` says of it, such as `tasks`
        self.default: Script = answer("Hello", " world")
        self.health: Reply = Reply([b"{}"], framing=Framing.LENGTH)
        self.health_gate: asyncio.Event | None = None  # set one to make probes hang until it is set
        self.metrics: bytes = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
        self.requests: list[ReceivedRequest] = []
        self.probes: Counter[str] = Counter()
        self.num_connections = 0  # ever accepted
        self.port = 0
        self._scripts: deque[Script] = deque(scripts)
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base URL, without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def num_open_connections(self) -> int:
        """Client connections open now."""
        return len(self._connections)

    @property
    def num_running(self) -> int:
        """Requests neither finished nor aborted."""
        return sum(not (request.finished.is_set() or request.aborted.is_set()) for request in self.requests)

    def script(self, *scripts: Script) -> Self:
        """Queue what the next requests get, in order."""
        self._scripts.extend(scripts)
        return self

    async def received(self, count: int = 1) -> ReceivedRequest:
        """The `count`-th request (from 1), once it has come."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def until_idle(self) -> None:
        """Wait until every request is finished or aborted."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: self.num_running == 0)

    async def until_connections(self, count: int) -> None:
        """Wait until exactly `count` client connections are open."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(self._connections) == count)

    async def restart(self) -> None:
        """Listen: on a free port the first time, on the same one after `kill`."""
        assert self._server is None, "already listening"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Stop listening and reset every connection, as a crash does. Twice is harmless."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in [*self._connections]:
            connection.reset()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: not self._connections)

    async def __aenter__(self) -> Self:
        await self.restart()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.kill()

    def _take_up(self, request: ReceivedRequest) -> Reply:
        if request.method == "GET":
            return self._probe(request.path)
        self.requests.append(request)
        self._tell()
        script = self._scripts.popleft() if self._scripts else self.default
        return script(request) if callable(script) else script

    def _probe(self, path: str) -> Reply:
        self.probes[path] += 1
        if path in {"/health", "/v1/health"}:
            gates: list[Step] = [] if self.health_gate is None else [self.health_gate]
            return Reply([*gates, *self.health.steps], self.health.status, self.health.headers, self.health.framing)
        if path == "/metrics":
            return Reply([self.metrics], headers=[("content-type", "text/plain")], framing=Framing.LENGTH)
        if path == "/v1/models":
            card = {"id": self.model, "object": "model", "owned_by": "scripted", **self.card}
            return status(200, {"object": "list", "data": [card]})
        return status(404)

    def _tell(self) -> None:
        self._spawn(self._notify())

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Connection(asyncio.Protocol):
    """One client connection: parses requests, carries out one reply at a time."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._current: ReceivedRequest | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport  # uvloop's is no asyncio.Transport
        self._engine._connections.add(self)
        self._engine.num_connections += 1
        self._number = self._engine.num_connections
        self._engine._tell()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        request = ReceivedRequest(method, self._path, self._headers, b"".join(self._body), self._number)
        self._headers, self._body = [], []
        self._current = request
        reply = self._engine._take_up(request)
        self._task = self._engine._spawn(self._carry_out(request, reply))

    async def _carry_out(self, request: ReceivedRequest, reply: Reply) -> None:
        if reply.hold_head is not None:
            await reply.hold_head.wait()
        if reply.framing is not Framing.RAW:
            self._transport.write(reply.head())
        for step in reply.steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Cut):
                self._end(request)
                self.reset() if step is Cut.RESET else self._transport.close()
                return
            else:
                is_chunk = reply.framing is Framing.CHUNKED
                self._transport.write(b"%x\r\n%b\r\n" % (len(step), step) if is_chunk else step)
                await asyncio.sleep(0)  # each step in a loop turn, and a send, of its own
        if reply.framing is Framing.CHUNKED:
            self._transport.write(b"0\r\n\r\n")
        self._end(request)
        if reply.framing is Framing.UNTIL_CLOSE or not reply.keep_alive:
            self._transport.close()

    def _end(self, request: ReceivedRequest) -> None:
        self._current = None
        request.finished.set()
        self._engine._tell()

    def reset(self) -> None:
        """End with a RST."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self._transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine._connections.discard(self)
        if self._current is not None:
            self._current.aborted.set()
            self._current = None
            if self._task is not None:
                self._task.cancel()
        self._engine._tell()
