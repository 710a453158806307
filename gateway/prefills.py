"""Prompts that one replica reads for another to answer, of engines that hand their KV over (vLLM with a KV connector).

The one that answers has its seat already. Who reads is chosen by prefix and load among the model's prefill replicas, a
pool of their own (`prefill_name`). They have no seats: what comes there is bounded by the seats of those that answer.
Nobody to read: the one that answers reads the prompt itself, as any server of this engine can.
"""

from dataclasses import replace

import msgspec
from msgspec import Raw

from engines.contract import Fault, ReplicaError, Steering, UpstreamExchange
from gateway.answer import ClientAnswer
from gateway.chunks import read_answer
from gateway.parts import Call, Parts
from gateway.relay import Relay
from gateway.replica_connection import ReplicaConnection
from gateway.request import InferenceRequest
from gateway.settings import TimeoutSection
from gateway.sink import ClientSink
from gateway.turn import Prefilled, Turn, Waiting
from routing.decision import RouteDecision
from routing.lease import Lease
from routing.replica import prefill_name

_MAX_ANSWER_BYTES = 1 << 20  # chosen: of one token and where the KV lies
# Fields about an answer that is not read: one token is made, and none is told.
_OF_ANSWERS = frozenset(
    {
        "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "echo",
        "logprobs", "top_logprobs", "prompt_logprobs",
    }
)  # fmt: skip
_OF_PROMPTS = ("echo", "prompt_logprobs")
_NOT_ASKED = (b"null", b"false")


def can_be_handed_over(request: InferenceRequest) -> bool:
    """Whether what one replica reads is all that another needs: the KV of one prompt, for one answer to it.

    Several answers would each fetch the same blocks, which their reader frees after the first; and what is said of
    the prompt's own tokens can be said only by who reads it.
    """
    fields = request.fields
    return (
        request.inputs is None
        and request.num_choices == 1
        and all(bytes(fields.get(name, b"null")) in _NOT_ASKED for name in _OF_PROMPTS)
        and bytes(fields.get("best_of", b"null")) in (b"null", b"1")
    )


class Prefills:
    """Has prompts read."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def read(self, call: Call, turn: Turn) -> Prefilled | None:
        """Have the turn's prompt read elsewhere; None if nobody can. Raises `ReplicaError` of the one that should."""
        waiting: Waiting = turn.entry.request
        query, now = waiting.query, self._parts.clock()
        query = replace(query, model=prefill_name(query.model), needs="", barred=frozenset())
        decision = self._parts.router.route(query, now)
        if not isinstance(decision, RouteDecision):
            return None
        lease = self._parts.router.pool.lease(decision, now)
        if lease is None:
            return None
        call.story.decision = decision  # if this fails, it is the one that is not tried again
        with lease:
            return await self._read(call, decision, lease)

    async def _read(self, call: Call, decision: RouteDecision, lease: Lease) -> Prefilled:
        parts, replica = self._parts, self._parts.fleet.connection(decision.chosen)
        sent_at = parts.clock()
        first_token_s = parts.settings.timeouts.first_token_s
        if call.deadline is not None:
            first_token_s = min(first_token_s, max(0.001, call.deadline - sent_at))
        relay = _PrefillRelay(call.answer, call.sink, parts.settings.timeouts, first_token_s)
        replica.relays.add(relay)
        try:
            relayed = await relay.run(self._send(call, decision, relay, replica))
        except ReplicaError as error:
            # The client's own haste says nothing of the replica.
            if error.fault is not Fault.TIMEOUT or not _is_past(call.deadline, parts.clock()):
                parts.router.observe_failure(lease, error.fault, parts.clock(), retry_after_s=error.retry_after_s)
            raise
        finally:
            replica.ended(relay)
        usage, now = relayed.usage, parts.clock()
        prompt, cached = (usage.prompt_tokens, usage.cached_tokens) if usage is not None else (None, None)
        parts.router.settled(
            decision, lease, now=now, prompt_tokens=prompt, cached_tokens=cached, ttft_s=now - sent_at
        )  # fmt: skip
        return Prefilled(decision, relay.transfer, cached)

    def _send(
        self, call: Call, decision: RouteDecision, relay: "_PrefillRelay", replica: ReplicaConnection
    ) -> UpstreamExchange:
        story = call.story
        assert story.request is not None, "only what was read is sent"
        assert story.principal is not None, "only authenticated requests are sent"
        steering = Steering(
            model=replica.upstream_model,
            lane=decision.lane,
            cache_salt=story.principal.tenant.cache_salt,
            attempt_id=f"{story.request_id}-{story.attempts}p",
            is_streaming=False,
            traceparent=call.traceparent,
            reads_only=True,
        )
        fields = {name: value for name, value in story.request.fields.items() if name not in _OF_ANSWERS}
        adapter = replica.adapter
        body = adapter.body(fields, steering)
        headers = adapter.headers(steering, replica.api_key)
        return replica.upstream.send(story.request.surface.value, headers, body, relay)


def _is_past(deadline: float | None, now: float) -> bool:
    """Timers may fire a little early: what is as good as past is past."""
    return deadline is not None and now >= deadline - 0.005


class _Told(msgspec.Struct):
    kv_transfer_params: Raw = Raw()


_decode = msgspec.json.Decoder(_Told).decode


class _PrefillRelay(Relay):
    """Collects the answer of who read a prompt, of which the client is told nothing. `transfer`: the engine's JSON."""

    def __init__(self, answer: ClientAnswer, sink: ClientSink, timeouts: TimeoutSection, first_token_s: float) -> None:
        super().__init__(answer, sink, timeouts, first_token_s)
        self._body = bytearray()
        self.transfer = b""

    def on_flush(self) -> None:
        """Nobody is told."""

    def _take(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > _MAX_ANSWER_BYTES:
            raise ReplicaError(Fault.PROTOCOL, f"the engine's answer passed {_MAX_ANSWER_BYTES} bytes")

    def _complete(self) -> None:
        body = bytes(self._body)
        try:
            self.relayed.usage = read_answer(body)
            self.transfer = bytes(_decode(body).kv_transfer_params)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ReplicaError(Fault.PROTOCOL, f"the engine's answer is not one: {error}") from None
        if self.transfer in (b"", b"null"):
            raise ReplicaError(Fault.PROTOCOL, "the engine told no kv_transfer_params: it runs without a KV connector")
        if not self.transfer.startswith(b"{"):
            raise ReplicaError(Fault.PROTOCOL, "the engine's kv_transfer_params are no object")
