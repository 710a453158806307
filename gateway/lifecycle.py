"""The path of a request, told in the order it happens.

Authenticate, read, classify, key, reserve, dispatch, route, stream, settle: every ending gives back what was held and
is recorded once. Knows no HTTP server: it writes to a `ClientSink`. Another replica may be tried before the first
content, after it never.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from cache_affinity.prefix import prefix_key
from engines.contract import Fault, Headers, ReplicaError, Steering, UpstreamExchange
from gateway import errors, sse
from gateway.admission import Dispatch, NoTurn, Turn
from gateway.answer import ClientAnswer, keep_alive
from gateway.auth import AuthFailure, Directory
from gateway.classify import classify, client_request_id, read_deadline, read_traceparent
from gateway.errors import ClientError, Refused
from gateway.fleet import Fleet
from gateway.models import ModelTable
from gateway.outcome import Outcome
from gateway.recorder import Recorder
from gateway.relay import Relay, Relayed, WholeRelay
from gateway.request import InferenceRequest, Surface, read
from gateway.settings import Settings
from gateway.sink import ClientSink, Incoming
from gateway.story import Story
from gateway.streaming import StreamRelay
from observability import logs
from policies.lane import Lane
from policies.quota import Quotas, Rejected, Reservation
from policies.retry import RetryBudget
from policies.tenant import Principal
from routing.query import RouteQuery
from routing.router import Router

_GONE = errors.Problem(499, "the client left", "client_closed_request", "client_gone", outcome=Outcome.CLIENT_GONE)
_RETRIABLE = frozenset({Fault.CONNECT, Fault.STALE, Fault.RESET, Fault.STATUS, Fault.PROTOCOL, Fault.BACKPRESSURE})


@dataclass(frozen=True, slots=True)
class Parts:
    """What the lifecycle works with; `app.py` makes them. `clock`: monotonic seconds, `unix`: Unix seconds."""

    settings: Settings
    directory: Directory
    models: ModelTable
    quotas: Quotas
    router: Router
    dispatch: Dispatch
    fleet: Fleet
    retries: RetryBudget
    recorder: Recorder
    clock: Callable[[], float]
    unix: Callable[[], float]


@dataclass(slots=True)
class _Call:
    """One request on its way: what came, where the answer goes, and what has happened so far."""

    incoming: Incoming
    sink: ClientSink
    answer: ClientAnswer
    headers: Headers
    story: Story
    deadline: float | None = None
    traceparent: str | None = None


class Lifecycle:
    """Serves requests. `num_in_flight` counts those whose story is not yet told, `num_relaying` open attempts."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.num_in_flight = 0
        self.num_relaying = 0

    async def serve(self, incoming: Incoming, sink: ClientSink) -> None:
        """Answer one request. Never raises but `CancelledError`; when it returns nothing is held any more."""
        call = self._begin(incoming, sink)
        story, answer = call.story, call.answer
        self.num_in_flight += 1
        try:
            await self._tell(call)
            story.outcome = Outcome.FINISHED
        except (ClientError, Refused) as error:
            story.ended_with(error.problem)
            answer.fail(error.problem)
        except ReplicaError as error:
            problem = errors.of_replica(error)
            story.ended_with(problem)
            answer.fail(problem)
            if error.fault is not Fault.CLIENT:
                logs.get().warning(
                    "replica.failed", request_id=story.request_id, fault=error.fault.value, message=error.message
                )
        except asyncio.CancelledError:
            story.ended_with(_GONE if sink.is_gone else errors.STOPPING)
            answer.fail(errors.STOPPING)
            raise
        except Exception:  # noqa: BLE001  # a bug: told to the client as one, and to the log with its trace
            story.ended_with(errors.BUG)
            answer.fail(errors.BUG)
            logs.get().exception("request.failed", request_id=story.request_id)
        finally:
            self.num_in_flight -= 1
            self._parts.recorder.add(story.record(self._parts.clock()), story.decision)

    def _begin(self, incoming: Incoming, sink: ClientSink) -> _Call:
        story = Story(incoming.path, incoming.arrived_at, self._parts.unix(), client_request_id(incoming))
        headers: Headers = [(b"x-request-id", story.request_id.encode())]
        answer = ClientAnswer(sink, headers, self._parts.settings.timeouts.keepalive_s)
        task = asyncio.current_task()
        assert task is not None, "the lifecycle runs in a task of its own"
        sink.on_gone(task.cancel)
        return _Call(incoming, sink, answer, headers, story)

    async def _tell(self, call: _Call) -> None:
        """The story in order; the attempts at the end dispatch, route, stream and settle."""
        principal = call.story.principal = self._authenticate(call.incoming)
        request = call.story.request = read(Surface(call.incoming.path), call.incoming.body)
        model = call.story.model = self._parts.models.resolve(request.model, principal.tenant)
        lane = call.story.lane = classify(call.incoming, request, principal)
        call.headers.append((b"x-warmlane-lane", lane.value.encode()))
        call.deadline = read_deadline(call.incoming)
        call.traceparent = read_traceparent(call.incoming)
        key = prefix_key(model, principal.tenant.cache_salt, request.segments, home_segments=request.home_segments)
        query = RouteQuery(model, key, lane, principal.tenant.project_id, request.max_output_tokens or 0)
        num_headers = len(call.headers)
        with self._reserve(principal, lane, call.headers) as reservation:
            if request.is_streaming:
                call.answer.admit()
            try:
                await self._attempts(call, query)
            except Refused:
                if not call.story.attempts:
                    reservation.undo()  # it never had a turn: the refusal leaves every counter as it was
                    del call.headers[num_headers:]
                    self._tell_standing(principal, call.headers)
                raise

    def _authenticate(self, incoming: Incoming) -> Principal:
        principal = self._parts.directory.authenticate(incoming.headers, self._parts.unix())
        if isinstance(principal, AuthFailure):
            raise ClientError(principal.message, status=401, code=principal.code, outcome=Outcome.UNAUTHENTICATED)
        return principal

    def _reserve(self, principal: Principal, lane: Lane, headers: Headers) -> Reservation:
        """Hold this request's share of the tenant's limits; the headers tell what is left, refused or not."""
        reservation = self._parts.quotas.reserve(principal.tenant, lane, self._parts.clock())
        self._tell_standing(principal, headers)
        if isinstance(reservation, Rejected):
            code, wait_s = reservation.reason.value, reservation.retry_after_s
            raise Refused(reservation.message, code=code, status=429, retry_after_s=wait_s)
        return reservation

    def _tell_standing(self, principal: Principal, headers: Headers) -> None:
        standing = self._parts.quotas.standing(principal.tenant, self._parts.clock())
        if standing is not None:
            headers += [
                (b"x-ratelimit-limit-requests", b"%d" % standing.limit),
                (b"x-ratelimit-remaining-requests", b"%d" % standing.remaining),
                (b"x-ratelimit-reset-requests", b"%ds" % math.ceil(standing.reset_s)),
            ]

    async def _attempts(self, call: _Call, query: RouteQuery) -> None:
        """Try one replica after another, until one answers or content has been sent. A retry takes a new turn."""
        self._parts.retries.earn()
        last: ReplicaError | None = None
        while True:
            call.answer.silence = partial(self._queue_comment, query)
            try:
                async with self._parts.dispatch.turn(query, self._max_wait_s(query.lane, call.deadline)) as turn:
                    if last is not None and not self._parts.retries.spend():
                        raise last
                    call.answer.silence = keep_alive
                    await self._attempt(call, turn)
                    return
            except Refused as refused:
                if last is not None and isinstance(refused, NoTurn):
                    raise last from None
                if self._is_past(call.deadline):
                    raise _deadline_passed() from None
                raise
            except ReplicaError as error:
                last = _sooner(last, error)
                if not self._may_retry(call, error):
                    raise last from None
                assert call.story.decision is not None, "an attempt that failed was routed"
                query = replace(query, excluded=query.excluded | {call.story.decision.chosen})

    def _may_retry(self, call: _Call, error: ReplicaError) -> bool:
        return (
            error.fault in _RETRIABLE
            and not call.answer.has_content
            and call.story.attempts < self._parts.settings.retries.max_attempts
            and self._parts.retries.can_spend()
        )

    async def _attempt(self, call: _Call, turn: Turn) -> None:
        """Send the request to the turn's replica, relay its answer, learn from it."""
        parts, story = self._parts, call.story
        assert story.request is not None, "attempts are made for requests that were read"
        story.attempts += 1
        story.decision = turn.decision
        story.queued_s = (story.queued_s or 0.0) + turn.queued_s
        relay = self._relay(call, story.request, turn)
        story.relayed = relay.relayed
        story.sent_at = sent_at = parts.clock()
        self.num_relaying += 1
        try:
            relayed = await relay.run(self._send(call, story.request, turn, relay))
        except ReplicaError as error:
            if error.fault is Fault.TIMEOUT and relay.relayed.first_content_at is None and self._is_past(call.deadline):
                raise _deadline_passed() from None  # the client's own haste says nothing of the replica
            parts.router.observe_failure(turn.lease, error.fault, parts.clock(), retry_after_s=error.retry_after_s)
            raise
        finally:
            self.num_relaying -= 1
        self._settle(turn, relayed, sent_at)

    def _send(self, call: _Call, request: InferenceRequest, turn: Turn, relay: Relay) -> UpstreamExchange:
        replica = self._parts.fleet.connection(turn.decision.chosen)
        assert call.story.principal is not None, "only authenticated requests are sent"
        steering = Steering(
            model=replica.upstream_model,
            lane=turn.decision.lane,
            cache_salt=call.story.principal.tenant.cache_salt,
            attempt_id=f"{call.story.request_id}-{call.story.attempts}",
            is_streaming=request.is_streaming,
            traceparent=call.traceparent,
        )
        body = replica.adapter.body(request.fields, steering)
        headers = replica.adapter.headers(steering, replica.api_key)
        return replica.upstream.send(request.surface.value, headers, body, relay)

    def _relay(self, call: _Call, request: InferenceRequest, turn: Turn) -> Relay:
        timeouts = self._parts.settings.timeouts
        first_token_s = timeouts.first_token_s if request.is_streaming else timeouts.total_s
        if call.deadline is not None:
            first_token_s = min(first_token_s, max(0.001, call.deadline - self._parts.clock()))
        if not request.is_streaming:
            return WholeRelay(call.answer, call.sink, timeouts, first_token_s)
        return StreamRelay(
            call.answer,
            call.sink,
            timeouts,
            first_token_s,
            on_first=turn.lease.prefilled,
            wants_usage=request.wants_usage,
            num_choices=request.num_choices,
        )

    def _settle(self, turn: Turn, relayed: Relayed, sent_at: float) -> None:
        usage, first = relayed.usage, relayed.first_content_at
        self._parts.router.settled(
            turn.decision,
            turn.lease,
            now=self._parts.clock(),
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            ttft_s=first - sent_at if first is not None and relayed.num_chunks else None,
        )

    def _max_wait_s(self, lane: Lane, deadline: float | None) -> float:
        wait_s = self._parts.settings.lanes.of(lane).max_wait_s
        if deadline is None:
            return wait_s
        left_s = deadline - self._parts.clock()
        if left_s <= 0:
            raise _deadline_passed()
        return min(wait_s, left_s)

    def _is_past(self, deadline: float | None) -> bool:
        """Timers may fire a little early: what is as good as past is past."""
        return deadline is not None and self._parts.clock() >= deadline - 0.005

    def _queue_comment(self, query: RouteQuery) -> bytes:
        place = self._parts.dispatch.place_of(query)
        if place is None:
            return keep_alive()
        return sse.comment(f"queued position={place[0]} eta_ms={round(place[1] * 1000)}")


def _deadline_passed() -> Refused:
    message = "the deadline has passed"
    return Refused(message, code="deadline", status=504, retry_after_s=None, outcome=Outcome.TIMED_OUT)


def _sooner(last: ReplicaError | None, error: ReplicaError) -> ReplicaError:
    """Which failure to tell: of several busy replicas the one that asks for the shortest wait, else the latest."""
    if last is None or last.fault is not Fault.BACKPRESSURE or error.fault is not Fault.BACKPRESSURE:
        return error
    return min(last, error, key=lambda one: one.retry_after_s or 0.0)
