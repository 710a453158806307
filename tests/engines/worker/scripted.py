"""An engine whose deltas a test delivers by hand, and an ASGI client whose connection it can cut."""

import asyncio

from engines.core.admission import Refusal
from engines.core.sequence import FinishReason, GenerateRequest, SequenceDelta
from engines.step_cost import StepCost
from engines.worker.loaded import EngineOptions


def fake_options(**changes) -> EngineOptions:
    options = {
        "engine": "fake",
        "path": None,
        "name": "fake",
        "max_seqs": 8,
        "kv_tokens": 8192,
        "max_step_tokens": 256,
        "threads": 1,
        "threads_batch": 1,
        "fake_cost": StepCost(0.0005),
    }
    return EngineOptions(**(options | changes))


class ScriptedEngine:
    """Takes requests and remembers aborts; the test delivers. `refusals`: answers of the next submits."""

    def __init__(self):
        self.receivers = {}
        self.aborted = []
        self.refusals: list[Refusal | None] = []

    def submit(self, request, deliver):
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is None:
            self.receivers[request.id] = deliver
        return refusal

    def abort(self, request_id):
        self.aborted.append(request_id)

    def deliver(self, request_id, *tokens, number=None, finish=None):
        number = len(tokens) if number is None else number
        self.receivers[request_id](SequenceDelta(request_id, tokens, 3, 1, number, finish_reason=finish))


def requests(*ids):
    return [GenerateRequest(id_, (1, 2, 3)) for id_ in ids]


LENGTH = FinishReason.LENGTH


async def eventually(claim):
    """Let the loop run until `claim()` is true, which another thread brings about; the test's timeout bounds it."""
    while not claim():  # noqa: ASYNC110
        await asyncio.sleep(0)


class AsgiConnection:
    """The server's half of one HTTP exchange: `body` arrives in pieces, `leave` cuts the connection."""

    def __init__(self, *body: bytes, headers=()):
        self.scope = {"type": "http", "method": "POST", "path": "/", "headers": list(headers)}
        self.sent = []
        self._incoming = asyncio.Queue()
        for index, part in enumerate(body):
            self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": index < len(body) - 1})

    def leave(self):
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def receive(self):
        return await self._incoming.get()

    async def send(self, message):
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)
