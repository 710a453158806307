"""From an admitted request to its answer: a turn, a replica, a relay; another turn while nothing has been sent.

Before the first content another replica may be tried, after it never. What an attempt teaches and costs is settled
before its turn ends.
"""

import asyncio
from dataclasses import replace
from functools import partial

from msgspec import structs

from engines.contract import Fault, ReplicaError, Steering, UpstreamExchange
from gateway import sse
from gateway.admission import TurnHolder
from gateway.errors import Refused
from gateway.hedging import Hedges
from gateway.language import keep_alive
from gateway.ledger_intent import intent_of
from gateway.owed import Owed
from gateway.parts import Call, Parts
from gateway.prefills import Prefills, can_be_handed_over
from gateway.relay import Preempted, Relay, Relayed
from gateway.relays import relay_for
from gateway.replica_connection import ReplicaConnection
from gateway.request import InferenceRequest
from gateway.retrying import UNREAD, may_retry, sooner
from gateway.story import Story
from gateway.turn import NO_CAPS, Turn, Waiting
from gateway.turned_away import NoTurn, deadline_passed
from gateway.wanted import Inputs
from policies.caps import CapLimits
from policies.entry import FOREVER, Entry
from policies.lane import Lane
from policies.tenant import Tenant
from routing.query import RouteQuery
from routing.step_model import Gaps

_UNCHARGED = UNREAD | {Fault.CLIENT}  # no prompt was read
_NO_ENDPOINT = frozenset({404, 405})  # statuses that no client can bring about by what it asks


class Attempts:
    """Runs requests that hold their reservation. `num_relaying`: attempts under way."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._prefills = Prefills(parts)
        self._hedges = Hedges(parts, self._attempt, self._entry)
        self.num_relaying = 0

    async def run(self, call: Call, query: RouteQuery) -> None:
        """Try one replica after another, until one answers or content has been sent. A retry takes a new turn.

        Whoever comes back to the queue, from a replica that failed or because it gave way, has its old place there.
        """
        if not call.story.has_earned:  # once a request, whichever models are tried for it
            self._parts.retries.earn()
            call.story.has_earned = True
        last: ReplicaError | None = None
        since = FOREVER
        while True:
            await self._parts.isolation.ensure_place(query)
            entry = self._entry(call, query, since)
            holder = self._parts.dispatch.turn(entry)
            call.answer.silence = partial(_queue_comment, holder)
            try:
                async with holder as turn:
                    since = entry.since
                    if last is not None and not self._parts.retries.spend():
                        raise last
                    call.answer.keep_alive()
                    if self._hedges.takes(call, turn):
                        await self._hedges.run(call, turn)
                    else:
                        await self._attempt(call, turn)
                    return
            except Preempted:
                call.story.preemptions += 1
            except Refused as refused:
                if last is not None and isinstance(refused, NoTurn):
                    raise last from None
                if self._is_past(call.deadline):
                    raise deadline_passed() from None
                raise
            except ReplicaError as error:
                last = sooner(last, error)
                if not may_retry(self._parts, call, error):
                    raise last from None
                assert call.story.decision is not None, "an attempt that failed was routed"
                tried = {call.story.decision.chosen, call.story.hedge_replica}
                query = replace(query, excluded=query.excluded | tried)

    def _entry(self, call: Call, query: RouteQuery, since: float) -> Entry:
        """The request as the queue sees it: its flow, weight, caps, how long it may wait, and when it first came."""
        assert call.story.principal is not None, "only authenticated requests are dispatched"
        known, lane = call.story.principal.tenant, query.lane
        tenant = self._parts.directory.tenant(known.project_id) or known  # limits may have changed since the last try
        now = self._parts.clock()
        generates = call.story.request is None or call.story.request.inputs is None
        output = self._parts.outputs.expected(tenant.project_id, lane, query.max_output_tokens, query.model)
        deadline = now + self._parts.settings.lanes.of(lane).max_wait_s
        if call.deadline is not None:
            if call.deadline <= now:
                raise deadline_passed()
            deadline = min(deadline, call.deadline)
        return Entry(
            tenant.project_id,
            lane,
            Waiting(query, caps_of(tenant, lane), has_deadline=deadline == call.deadline),
            weight=tenant.limits.weight,
            output_tokens=output if generates else 0,
            deadline=deadline,
            since=since,
        )

    async def _attempt(self, call: Call, turn: Turn) -> None:
        """Send the request to the turn's replica, relay its answer, learn from it."""
        parts, story = self._parts, call.story
        assert story.request is not None, "attempts are made for requests that were read"
        if story.intended != story.model:
            parts.journal.intend(intent_of(story, turn.decision))  # what is not written down is not sent
            story.intended = story.model
        story.attempts += 1
        story.decision = turn.decision
        story.queued_s = (story.queued_s or 0.0) + turn.queued_s
        if turn.lease.replica.spec.is_decoder and can_be_handed_over(story.request):
            await self._prefill(call, turn)
        relay = relay_for(call, story.request, turn, parts.settings.timeouts, parts.clock())
        story.relayed, story.owed = relay.relayed, Owed.ALL
        story.sent_at = sent_at = parts.clock()
        self.num_relaying += 1
        turn.cost = self._parts.dispatch.cost(turn.decision.uncached_tokens, 0)
        try:
            with parts.bulk_runs.watched(turn, relay, call.answer, story):
                replica = self._parts.fleet.connection(turn.decision.chosen)
                replica.relays.add(relay)
                try:
                    relayed = await relay.run(self._send(call, story.request, turn, relay, replica))
                finally:
                    replica.ended(relay)
        except Preempted:
            turn.cost = 0.0  # the work was thrown away for others: not at this tenant's cost
            story.owed = Owed.NOTHING
            raise
        except ReplicaError as error:
            self._note_endpoint(call, turn, error)
            is_done = relay.relayed.was_asked_too_much
            turn.cost = 0.0 if error.fault in _UNCHARGED and not is_done else self._cost(turn, relay.relayed)
            if error.fault is Fault.TIMEOUT and relay.relayed.first_content_at is None and self._is_past(call.deadline):
                raise deadline_passed() from None  # the client's own haste says nothing of the replica
            story.owed = Owed.ALL if is_done else Owed.DELIVERED
            _note_loss(story, turn, relay.relayed, error.fault)
            parts.router.observe_failure(turn.lease, error.fault, parts.clock(), retry_after_s=error.retry_after_s)
            raise
        except asyncio.CancelledError:
            turn.cost = self._cost(turn, relay.relayed)  # leaving early is no discount
            computed = parts.seats.computed_tokens(turn.lease, relay.relayed.num_chunks or None, parts.clock())
            story.unseen_tokens = computed - turn.lease.uncached_tokens
            raise
        else:
            self._settle(turn, relayed, sent_at, story.request.inputs)
        finally:
            self.num_relaying -= 1

    async def _prefill(self, call: Call, turn: Turn) -> None:
        """Have another replica read the prompt for this one, which reads it itself where nobody can."""
        story = call.story
        story.relayed, story.owed, turn.cost = None, Owed.NOTHING, 0.0
        self.num_relaying += 1
        try:
            turn.prefilled = await self._prefills.read(call, turn)
        except ReplicaError as error:
            if error.fault is Fault.TIMEOUT and self._is_past(call.deadline):
                raise deadline_passed() from None
            story.lost_attempts += error.fault not in _UNCHARGED
            raise
        finally:
            self.num_relaying -= 1
        if turn.prefilled is not None:
            story.decision = structs.replace(turn.decision, prefill=turn.prefilled.decision)

    def _note_endpoint(self, call: Call, turn: Turn, error: ReplicaError) -> None:
        """Learn of an endpoint that an engine has not. One that embeds and has no chat is not at fault for that."""
        story, fleet, chosen = call.story, self._parts.fleet, turn.decision.chosen
        if error.status not in _NO_ENDPOINT or story.request is None:
            return
        inputs = story.request.inputs
        if inputs is None and error.fault is Fault.STATUS and fleet.has_embedded(chosen):
            error.fault = Fault.UNSERVED
        if error.fault is Fault.UNSERVED:
            fleet.note_lack(chosen, story.request.surface.value if inputs is None else inputs.surface)

    def _send(
        self, call: Call, request: InferenceRequest, turn: Turn, relay: Relay, replica: ReplicaConnection
    ) -> UpstreamExchange:
        assert call.story.principal is not None, "only authenticated requests are sent"
        steering = Steering(
            model=replica.upstream_model,
            lane=turn.decision.lane,
            cache_salt=call.story.principal.tenant.cache_salt,
            attempt_id=f"{call.story.request_id}-{call.story.attempts}",
            is_streaming=request.is_streaming,
            traceparent=call.traceparent,
            surface="" if request.inputs is None else request.inputs.surface,
            transfer=b"" if turn.prefilled is None else turn.prefilled.transfer,
        )
        adapter = replica.adapter
        path = request.surface.value if request.inputs is None else adapter.paths.get(request.inputs.surface)
        if path is None:
            raise ReplicaError(Fault.UNSERVED, "this kind of engine has no such endpoint")
        body = adapter.body(request.fields, steering) if request.form is None else adapter.form(request.form, steering)
        sink = relay if call.recording is None else call.recording.of(relay)
        return replica.upstream.send(path, adapter.headers(steering, replica.api_key), body, sink)

    def _cost(self, turn: Turn, relayed: Relayed) -> float:
        """What the request has cost its tenant so far: as reported, else the predicted rest and the chunks counted."""
        usage = relayed.usage
        uncached, output = turn.decision.uncached_tokens, relayed.num_chunks
        if usage is not None:
            cached = turn.decision.hit_tokens if usage.cached_tokens is None else usage.cached_tokens
            uncached, output = max(0, usage.prompt_tokens - cached), usage.completion_tokens
        return self._parts.dispatch.cost(uncached, output)

    def _settle(self, turn: Turn, relayed: Relayed, sent_at: float, inputs: Inputs | None) -> None:
        if turn.prefilled is not None and relayed.usage is not None:  # what came over counts as cached where it came to
            relayed.usage = relayed.usage.with_cached(turn.prefilled.cached_tokens)
        teaches = inputs is None or inputs.teaches
        usage, first = relayed.usage if teaches else None, relayed.first_content_at if teaches else None
        turn.cost = self._cost(turn, relayed)
        self._learn_steps(turn, relayed, generates=inputs is None)
        if inputs is not None:
            if not inputs.is_free:
                self._parts.fleet.note_embedded(turn.decision.chosen)
        elif usage is not None:
            self._parts.outputs.observe(
                turn.entry.tenant, turn.entry.lane, usage.completion_tokens, turn.decision.model
            )
        self._parts.router.settled(
            turn.decision,
            turn.lease,
            now=self._parts.clock(),
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage and turn.prefilled is None else None,
            ttft_s=first - sent_at if first is not None and relayed.num_chunks else None,
        )

    def _learn_steps(self, turn: Turn, relayed: Relayed, *, generates: bool) -> None:
        """Teach the seats of this replica what its steps cost."""
        seats, now, lease = self._parts.seats, self._parts.clock(), turn.lease
        tokens = relayed.usage.completion_tokens if relayed.usage is not None else None
        if turn.decision.lane is Lane.BULK:
            seats.budget.earn(turn.decision.uncached_tokens + (tokens or relayed.num_chunks))
        if not generates:
            return
        if not relayed.num_chunks:
            seats.observe_whole(lease, tokens, now)
        elif not relayed.was_slow:
            first, last = relayed.first_content_at, relayed.last_content_at
            seats.observe(lease, Gaps.between(first, last, relayed.num_chunks, relayed.gap_sample), now)

    def _is_past(self, deadline: float | None) -> bool:
        """Timers may fire a little early: what is as good as past is past."""
        return deadline is not None and self._parts.clock() >= deadline - 0.005


def _note_loss(story: Story, turn: Turn, relayed: Relayed, fault: Fault) -> None:
    """What an engine did for nothing is the operator's to know: its tenant pays for what was delivered."""
    if relayed.first_content_at is not None or fault in (Fault.CLIENT, Fault.UNSERVED):
        return
    story.lost_attempts += 1
    if relayed.usage is not None:
        story.lost_tokens += relayed.usage.prompt_tokens + relayed.usage.completion_tokens
    elif fault not in _UNCHARGED:
        story.lost_tokens += turn.decision.prompt_tokens


def _queue_comment(holder: TurnHolder) -> bytes:
    place = holder.place()
    if place is None:
        return keep_alive()
    return sse.comment(f"queued position={place[0]} eta_ms={round(place[1] * 1000)}")


def caps_of(tenant: Tenant, lane: Lane) -> CapLimits:
    """What the tenant's limits say of its seats in the lane."""
    cap = tenant.limits.batch_cap
    per_replica = None if cap is None else cap.get(lane)
    return NO_CAPS if per_replica is None else CapLimits(per_replica=per_replica)
