"""Relays the answers of surfaces that generate no text: whole, read and written anew before the client sees any of it.

So another replica may be tried until the very end. A large answer is read beside the event loop.
"""

import asyncio

import msgspec

from engines.contract import Fault, Headers, ReplicaError, UpstreamExchange
from gateway import token_answers, vector_answers
from gateway.answer import ClientAnswer
from gateway.chunks import Usage
from gateway.fields import LARGE_BYTES
from gateway.refusals import refusal
from gateway.relay import MAX_ANSWER_BYTES, Relayed, WholeRelay
from gateway.settings import TimeoutSection
from gateway.sink import ClientSink
from gateway.vector_answers import AnswerHead
from gateway.wanted import Inputs, Ranking, Scores, Text, TokenCount, TokenList, Transcript, Vectors

# An engine that has no such endpoint, or was started without what it needs (llama-server: 501; providers: 403).
UNSERVED = frozenset({403, 404, 405, 501})
Shaped = tuple[bytes, Usage | None]


class InputRelay(WholeRelay):
    """One attempt. What an engine answers is believed only in the shape of what was asked."""

    def __init__(
        self,
        answer: ClientAnswer,
        sink: ClientSink,
        timeouts: TimeoutSection,
        first_token_s: float,
        *,
        inputs: Inputs,
        head: AnswerHead,
    ) -> None:
        super().__init__(answer, sink, timeouts, first_token_s)
        self._inputs = inputs
        self._head = head

    def _take(self, data: bytes) -> None:
        if self._size + len(data) > MAX_ANSWER_BYTES:
            self.relayed.was_asked_too_much = True
            raise _too_large()
        super()._take(data)

    def _refused(self, status: int, headers: Headers, body: bytes) -> ReplicaError:
        if status in UNSERVED:
            return ReplicaError(Fault.UNSERVED, f"the engine answered {status}", status=status, body=body)
        return refusal(status, headers, body)

    def _complete(self) -> None:
        """Nothing is told to the client before it is read."""

    async def run(self, exchange: UpstreamExchange) -> Relayed:
        """As any relay's; the client has its answer when this returns."""
        await super().run(exchange)
        body, inputs, head = b"".join(self._parts), self._inputs, self._head
        self._parts = []
        is_small = len(body) <= LARGE_BYTES
        try:
            found = shaped(body, inputs, head) if is_small else await asyncio.to_thread(shaped, body, inputs, head)
        except ReplicaError as error:
            self.relayed.was_asked_too_much = error.fault is Fault.CLIENT
            raise
        shown, self.relayed.usage = found
        self._answer.has_content = True
        self._answer.whole(200, shown, [])
        return self.relayed


def shaped(body: bytes, inputs: Inputs, head: AnswerHead) -> Shaped:
    """The client's answer, and the usage that the engine reports. Raises `ReplicaError`."""
    try:
        match inputs.wanted:
            case Vectors() as wanted:
                return vector_answers.embeddings(body, wanted, head)
            case Ranking() as wanted:
                return vector_answers.ranking(body, wanted, head)
            case Scores() as wanted:
                return vector_answers.scores(body, wanted, head)
            case TokenCount(kind):
                return token_answers.count(body, kind), None
            case TokenList():
                return token_answers.tokens(body), None
            case Text():
                return token_answers.text(body), None
            case Transcript():
                raise AssertionError("transcripts have relays of their own")
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise ReplicaError(Fault.PROTOCOL, f"the engine's answer is not one: {error}") from None


def _too_large() -> ReplicaError:
    """The client's to change; another replica would answer as much."""
    message = f"the answer is larger than {MAX_ANSWER_BYTES} bytes: ask for less at once, or for encoding_format base64"
    error = {"message": message, "type": "invalid_request_error", "param": "input", "code": "answer_too_large"}
    return ReplicaError(Fault.CLIENT, message, status=413, body=msgspec.json.encode({"error": error}))
