"""Where other threads meet the engine thread: what they ask for, and who is owed deltas. All of it under one lock."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from engines.core.admission import Refusal, RefusalReason, queue_full
from engines.core.sequence import GenerateRequest, SequenceDelta
from policies.lane import Lane

Deliver = Callable[[SequenceDelta], None]


@dataclass(frozen=True, slots=True)
class Submission:
    """A request was accepted and goes to the scheduler."""

    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Abortion:
    """An open request shall end."""

    request_id: str


class Inbox:
    """Messages in order, and a receiver for each open request. Bounded by twice `max_waiting` and the seats.

    Besides errands: calls that the engine thread makes for others between steps.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._messages: list[Submission | Abortion] = []
        self._receivers: dict[str, Deliver] = {}
        self._unseen: Counter[Lane] = Counter()
        self._errands: list[Callable[[], None]] = []
        self._is_draining = False
        self._is_stopping = False
        self._is_paused = False
        self._is_over = False
        self._may_step = False  # the engine thread is, or may be, in a turn that makes a step

    @property
    def num_open(self) -> int:
        """Requests that are still owed their last delta."""
        return len(self._receivers)

    @property
    def num_unseen(self) -> int:
        """Accepted requests that the scheduler does not have yet."""
        return self._unseen.total()

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._is_draining

    @property
    def is_stopping(self) -> bool:
        """Whether the engine thread is to end."""
        return self._is_stopping

    @property
    def is_paused(self) -> bool:
        """Whether no steps are to be made."""
        return self._is_paused

    @property
    def may_step(self) -> bool:
        """Whether the turn for which `await_work` returned may make a step."""
        return self._may_step

    def submit(self, request: GenerateRequest, deliver: Deliver, num_new: Callable[[Lane], int]) -> Refusal | None:
        """Accept a request, or say why not.

        `num_new`: how many wait in the scheduler for a first seat, urgent or bulk as the lane is.
        """
        with self._changed:
            if self._is_draining:
                return Refusal(RefusalReason.STOPPING, "This worker takes no new requests.")
            if request.id in self._receivers:
                return Refusal(RefusalReason.DUPLICATE_ID, f"Request {request.id} is already open.")
            # Only submissions make `num_new` grow, and they are counted here: what is accepted is not refused later.
            num_waiting = self._num_waiting(request.lane, num_new)
            if num_waiting >= self._max_waiting:
                return queue_full(num_waiting, request.lane)
            self._receivers[request.id] = deliver
            self._unseen[request.lane] += 1
            self._messages.append(Submission(request))
            self._changed.notify_all()
            return None

    def is_full(self, num_new: Callable[[Lane], int]) -> bool:
        """Whether `submit` would refuse a request of any lane for want of room."""
        with self._changed:
            return all(self._num_waiting(lane, num_new) >= self._max_waiting for lane in Lane)

    def abort(self, request_id: str) -> None:
        """Ask that an open request ends; nothing happens if it is not open."""
        with self._changed:
            if request_id in self._receivers:
                self._messages.append(Abortion(request_id))
                self._changed.notify_all()

    def take(self) -> list[Submission | Abortion]:
        """All messages, in order. The engine calls `mark_seen` for each submission it has passed on."""
        if not self._messages:  # in every step; a message that comes now is for the next turn
            return []
        with self._changed:
            messages, self._messages = self._messages, []
            return messages

    def mark_seen(self, request: GenerateRequest) -> None:
        """The scheduler has this one of the accepted requests."""
        with self._changed:
            self._unseen[request.lane] -= 1

    def receiver(self, request_id: str, *, is_last: bool) -> Deliver | None:
        """Who gets this delta, or None if the request is not open; `is_last` closes it."""
        if not is_last:
            return self._receivers.get(request_id)  # only the engine thread takes any out
        with self._changed:
            deliver = self._receivers.pop(request_id, None)
            self._changed.notify_all()
            return deliver

    def drop_messages(self) -> list[str]:
        """Forget what was asked; returns the ids of all that are open, seen or not."""
        with self._changed:
            self._messages.clear()
            self._unseen.clear()
            return list(self._receivers)

    def await_work(self, has_work: Callable[[], bool], on_rest: Callable[[], None] = lambda: None) -> bool:
        """Wait, without spinning, for a message, work or the end; False when the engine is to stop.

        While paused, work alone does not count, and the turn that follows makes no step. `on_rest`: called before
        there is anything to wait for.
        """

        def is_wanted() -> bool:
            return self._is_asked or (not self._is_paused and has_work())

        with self._changed:
            self._may_step = False
            if not is_wanted():
                on_rest()
                self._changed.notify_all()
                self._changed.wait_for(is_wanted)
            elif self._is_paused:
                self._changed.notify_all()  # whoever paused waits for the end of the step
            self._may_step = not self._is_paused
            return not self._is_stopping

    def ask(self, errand: Callable[[], None]) -> bool:
        """Let the engine thread call this between steps, soon; False if it is over."""
        with self._changed:
            if self._is_over:
                return False
            self._errands.append(errand)
            self._changed.notify_all()
            return True

    def take_errands(self, *, is_last: bool = False) -> list[Callable[[], None]]:
        """What is to be called, in order. `is_last`: nobody will take any more."""
        if not self._errands and not is_last:
            return []
        with self._changed:
            errands, self._errands = self._errands, []
            self._is_over |= is_last
            return errands

    def pause(self, timeout_s: float) -> bool:
        """No steps from now on; whether none is being made any more, waiting for that for `timeout_s`."""
        with self._changed:
            self._is_paused = True
            return self._changed.wait_for(lambda: not self._may_step, timeout=timeout_s)

    def resume(self) -> None:
        """Steps again."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def drain(self) -> None:
        """Refuse new requests from now on."""
        with self._changed:
            self._is_draining = True

    def await_empty(self, timeout_s: float) -> bool:
        """Wait until nothing is open; False if something still is after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._receivers, timeout=timeout_s)

    def stop(self) -> None:
        """Drain, and let the engine thread end before its next step."""
        with self._changed:
            self._is_draining = True
            self._is_stopping = True
            self._changed.notify_all()

    @property
    def _is_asked(self) -> bool:
        return bool(self._messages) or bool(self._errands) or self._is_stopping

    def _num_waiting(self, lane: Lane, num_new: Callable[[Lane], int]) -> int:
        """Requests for a first seat, seen or not, that share the bound with this lane."""
        unseen = self._unseen[Lane.BULK] if lane is Lane.BULK else self._unseen.total() - self._unseen[Lane.BULK]
        return num_new(lane) + unseen
