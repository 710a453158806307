"""A second attempt for a stream that is slow to begin: whichever sends content first answers, the other is cancelled.

Each attempt has a story of its own while they race; what came of them is told in the request's. Its tenant pays for the
one that answered, the other's work is the operator's. Only for streams of the interactive lane, and only where a
replica has seats to spare.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from engines.contract import ReplicaError
from gateway.errors import Refused
from gateway.parts import Call, Parts
from gateway.race import Race, Racer
from gateway.relay import Preempted
from gateway.turn import Turn, Waiting
from observability import logs
from policies.entry import Entry
from policies.lane import Lane
from routing.decision import RouteDecision
from routing.hedge import HedgeBudget, Patience, has_spare_seat
from routing.outliers import LATE_FACTOR, LATE_S
from routing.query import RouteQuery

Attempt = Callable[[Call, Turn], Awaitable[None]]
MakeEntry = Callable[[Call, RouteQuery, float], Entry]

_PAID_BY_PIECE = "openai"  # a hosted provider is paid for what is cancelled, too


class Hedges:
    """Runs attempts that may get a second one. Learns for each model how long is unusually long."""

    def __init__(self, parts: Parts, attempt: Attempt, entry: MakeEntry) -> None:
        """`attempt`: makes one, as if it were the only one. `entry`: a place in the queue for one."""
        self._parts = parts
        self._attempt = attempt
        self._entry = entry
        self._patience: dict[str, Patience] = {}
        self._budget = HedgeBudget()

    def takes(self, call: Call, turn: Turn) -> bool:
        """Whether this attempt may get a second one beside it: nothing but time is spent if it is made twice."""
        if not self._parts.settings.hedging.max_share:
            return False
        request, story, spec = call.story.request, call.story, turn.lease.replica.spec
        return (
            turn.decision.lane is Lane.INTERACTIVE
            and request is not None
            and request.is_streaming
            and request.inputs is None
            and not story.hedge
            and not spec.is_decoder
            and spec.engine != _PAID_BY_PIECE
            and bytes(request.fields.get("store", b"")) != b"true"
        )

    async def run(self, call: Call, turn: Turn) -> None:
        """One attempt, and a second one if it is slow. Raises what the first would; its turn is over afterwards."""
        patience = self._patience_of(turn.decision.model)
        wait_s = patience.wait_s(turn.decision.ttft_s)
        self._budget.earn(self._parts.settings.hedging.max_share)
        race = Race(call)
        first = race.add(turn)
        running = {self._begin(first)}
        try:
            await asyncio.wait(running, timeout=wait_s)
            if not first.is_over and race.winner is None:
                second = self._second(race, call, turn)
                if second is not None:
                    running.add(self._begin(second))
            await asyncio.wait(running)
        except BaseException:  # the client left, or a bug: nothing goes on without its request
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            raise
        finally:
            for racer in race.racers:
                self._parts.dispatch.end(racer.turn)  # of one that was cancelled before it began, too
            self._learn(first, patience)
            race.tell()
            error = race.end()
        if error is not None:
            try:
                raise error
            finally:
                del error, first, running  # they and its traceback hold each other

    def _begin(self, racer: Racer) -> "asyncio.Task[None]":
        return asyncio.create_task(self._run_one(racer), name="attempt")

    async def _run_one(self, racer: Racer) -> None:
        """One of the attempts to its end; how it ended is the racer's to tell. Its seat is free at once."""
        try:
            await self._attempt(racer.call, racer.turn)
        except Exception as error:  # noqa: BLE001  # whoever waits for the race raises it
            if not isinstance(error, (ReplicaError, Refused, Preempted)):
                logs.get().exception("attempt.failed", request_id=racer.call.story.request_id)
            racer.error = error.with_traceback(None)  # which holds the relay, that holds the error
        finally:
            racer.is_over = True
            self._parts.dispatch.end(racer.turn)

    def _second(self, race: Race, call: Call, turn: Turn) -> Racer | None:
        """The second attempt, with its seat; None where there is no room for one, or no use in it."""
        granted = self._granted(call, turn)
        if granted is None:
            return None
        self._budget.spend()
        call.story.hedge, call.story.hedge_replica = "failed", granted.decision.chosen
        logs.get().info(
            "request.hedged", request_id=call.story.request_id, slow=turn.decision.chosen, also=granted.decision.chosen
        )
        return race.add(granted)

    def _granted(self, call: Call, turn: Turn) -> Turn | None:
        """A turn on another replica, if there is one this instant that nobody else has use for."""
        parts, now = self._parts, self._parts.clock()
        waiting: Waiting = turn.entry.request
        query = replace(waiting.query, excluded=waiting.query.excluded | {turn.decision.chosen}, barred=frozenset())
        if not self._budget.can_spend() or any(model == query.model for model, _, _ in parts.dispatch.depths()):
            return None
        decision = parts.router.route(query, now)
        if not isinstance(decision, RouteDecision) or not self._is_of_use(decision, call, now):
            return None
        try:
            entry = self._entry(call, query, now)
            granted = parts.dispatch.enter(entry)
        except Refused:
            return None
        if not granted.done():
            parts.dispatch.leave(entry, granted)
            return None
        entry.request.ticket = None  # it holds the turn, a ring that only the collector would free
        try:
            return granted.result()
        except Refused:
            return None

    def _is_of_use(self, decision: RouteDecision, call: Call, now: float) -> bool:
        """Whether the second replica has room to spare, does not cost by the piece, and can begin before it is late."""
        replica = self._parts.router.pool.get(decision.chosen)
        if replica is None or replica.spec.engine == _PAID_BY_PIECE or not has_spare_seat(replica, decision.lane):
            return False
        return call.deadline is None or now + decision.ttft_s < call.deadline

    def _learn(self, first: Racer, patience: Patience) -> None:
        """How long the first took to begin, or how long it had not when it was outrun."""
        sent_at, relayed = first.call.story.sent_at, first.call.story.relayed
        until = first.outrun_at if relayed is None else relayed.first_content_at or first.outrun_at
        if sent_at is None or until is None:
            return
        took_s, predicted_s = until - sent_at, first.turn.decision.ttft_s
        patience.observe(predicted_s, took_s, self._parts.settings.hedging.quantile)
        if first.is_outrun and took_s > LATE_S + LATE_FACTOR * predicted_s:
            self._parts.router.pool.note_late(first.turn.lease, self._parts.clock())

    def _patience_of(self, model: str) -> Patience:
        """The model's; those of models that are gone are forgotten when another comes."""
        found = self._patience.get(model)
        if found is None:
            served = self._parts.fleet.models()
            self._patience = {name: one for name, one in self._patience.items() if name in served}
            found = self._patience[model] = Patience()
        return found
