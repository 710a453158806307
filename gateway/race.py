"""Two attempts of one request: whichever says something first has the client, the other is out at that moment.

Everything happens in one thread, so between the first content of one and the end of the other nothing can be sent.
"""

import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace

from engines.contract import Headers
from gateway.answer import ClientAnswer
from gateway.parts import Call
from gateway.relay import Preempted, Relay
from gateway.sink import ClientSink, SinkWatcher
from gateway.turn import Turn


class Outrun(Preempted):
    """The attempt was cancelled because the other one answers. Nothing of it was sent, and its tenant pays nothing."""


class Racer:
    """One attempt with a turn, a story and a way to the client of its own. Times are monotonic seconds.

    `error`: what ended it, None if it answered. `outrun_at`: when the other one won, None if that did not happen.
    """

    __slots__ = ("call", "error", "is_over", "outrun_at", "relay", "turn")

    def __init__(self, race: "Race", turn: Turn, like: Call) -> None:
        self.turn = turn
        self.relay: Relay | None = None
        self.is_over = False
        self.error: Exception | None = None
        self.outrun_at: float | None = None
        sink = _RacerSink(race, self)
        self.call = replace(like, story=copy(like.story), sink=sink, answer=_RacerAnswer(race, self))

    @property
    def is_outrun(self) -> bool:
        """Whether the other one answers."""
        return self.outrun_at is not None

    @property
    def was_for_nothing(self) -> bool:
        """Whether it was cancelled, and no failure of its own says what was lost."""
        return self.call.story.relayed is not None and (self.error is None or isinstance(self.error, Outrun))

    def outrun(self) -> None:
        """The other one answers: end this one, now or as soon as it is sent."""
        self.outrun_at = time.monotonic()
        if self.relay is not None:
            self.relay.preempt(Outrun())


class Race:
    """The attempts of a call. `winner`: who has begun to answer."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.winner: Racer | None = None
        self.racers: list[Racer] = []
        self._lost = (call.story.lost_attempts, call.story.lost_tokens)

    def add(self, turn: Turn) -> Racer:
        """Another attempt; its story goes on from where the one before stands."""
        like = self.racers[-1].call if self.racers else self.call
        racer = Racer(self, turn, like)
        racer.call.story.lost_attempts, racer.call.story.lost_tokens = self._lost
        self.racers.append(racer)
        return racer

    def claim(self, racer: Racer) -> None:
        """It says something: it has the client, the other is out."""
        if self.winner is not None:
            return
        self.winner = racer
        self.call.sink.watch(racer.relay)
        self.call.answer.failure = racer.call.answer.failure
        for other in self.racers:
            if other is not racer and not other.is_over:
                other.outrun()

    def end(self) -> Exception | None:
        """What the request ends with: how the one that answered did, else the first. Nobody knows of the others now."""
        error = (self.winner or self.racers[0]).error
        for racer in self.racers:
            racer.error = racer.relay = None
            racer.call.sink, racer.call.answer = self.call.sink, self.call.answer
        self.racers.clear()
        self.winner = None
        return error

    def tell(self) -> None:
        """Put what came of it into the request's own story: the answer's, and what was lost beside it."""
        answered = self.winner or self.racers[0]
        story, told = self.call.story, answered.call.story
        story.intended, story.decision, story.relayed, story.owed = (
            told.intended, told.decision, told.relayed, told.owed,
        )  # fmt: skip
        story.sent_at, story.unseen_tokens = told.sent_at, told.unseen_tokens
        story.queued_s = self.racers[0].call.story.queued_s
        story.attempts = max(racer.call.story.attempts for racer in self.racers)
        attempts, tokens = self._lost
        for racer in self.racers:
            mine, is_out = racer.call.story, racer is not answered and racer.was_for_nothing
            attempts += mine.lost_attempts - self._lost[0] + is_out
            tokens += mine.lost_tokens - self._lost[1] + racer.turn.decision.prompt_tokens * is_out
        story.lost_attempts, story.lost_tokens = attempts, tokens
        if self.winner is not None and len(self.racers) > 1:
            story.hedge = "won" if self.winner is self.racers[1] else "lost" if self.racers[1].is_outrun else "failed"


class _RacerAnswer(ClientAnswer):
    """The client's answer as the relay of a stream sees it: to say something is to win."""

    __slots__ = ("_has_content", "_race", "_racer")

    def __init__(self, race: Race, racer: Racer) -> None:
        self._race = race
        self._racer = racer
        self._has_content = False
        self.failure = race.call.answer.failure

    @property
    def has_content(self) -> bool:
        """Whether this attempt has said something."""
        return self._has_content

    @has_content.setter
    def has_content(self, value: bool) -> None:
        self._has_content = value
        if value:
            self._race.claim(self._racer)
            self._race.call.answer.has_content = True

    def write(self, events: bytes) -> None:
        """See `ClientAnswer`."""
        self._race.call.answer.write(events)

    def end_stream(self) -> None:
        """See `ClientAnswer`."""
        self._race.call.answer.end_stream()


class _RacerSink:
    """The client's sink as one of the attempts sees it: who is slow to read is told to the one that answers."""

    __slots__ = ("_race", "_racer")

    def __init__(self, race: Race, racer: Racer) -> None:
        self._race = race
        self._racer = racer

    @property
    def is_gone(self) -> bool:
        """See `ClientSink`."""
        return self._sink.is_gone

    @property
    def _sink(self) -> ClientSink:
        return self._race.call.sink

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """See `ClientSink`."""
        self._sink.start(status, headers, length)

    def write(self, data: bytes) -> None:
        """See `ClientSink`."""
        self._sink.write(data)

    def end(self) -> None:
        """See `ClientSink`."""
        self._sink.end()

    def abort(self) -> None:
        """See `ClientSink`."""
        self._sink.abort()

    def on_gone(self, callback: Callable[[], object]) -> None:
        """See `ClientSink`."""
        self._sink.on_gone(callback)

    def watch(self, watcher: SinkWatcher | None) -> None:
        """The attempt begins, or ends with None. Only the winner's is passed on."""
        self._racer.relay = watcher if isinstance(watcher, Relay) else None
        if self._race.winner is self._racer:
            self._sink.watch(watcher)
        elif self._racer.relay is not None and self._racer.is_outrun:
            self._racer.outrun()
