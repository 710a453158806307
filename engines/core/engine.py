"""The engine thread: take what was asked, schedule, execute, sample, book, deliver; over and over.

The only thread that touches runner and scheduler. Other threads meet it in an inbox and in a snapshot of its load.
It knows tokens only: no text, no JSON, no event loop. Whatever happens, each accepted request gets exactly one delta
with a finish reason.
"""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace

from engines.core.admission import Refusal, check_size
from engines.core.callbacks import Callbacks
from engines.core.decoding import Decoded, decode
from engines.core.events import KvEvent
from engines.core.fit import check_fit
from engines.core.inbox import Abortion, Deliver, Inbox
from engines.core.load import EngineLoad
from engines.core.masking import MaskFiller
from engines.core.meter import StepMeter
from engines.core.outlook import StepRecord
from engines.core.plan import Runner, StepPlan
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SequenceDelta
from engines.step_cost import StepCostFitter

OnStep = Callable[[StepRecord], None]
OnFault = Callable[[BaseException], None]
OnEvents = Callable[[tuple[KvEvent, ...]], None]

_FAULT_SENTENCE = "The engine failed while computing this request."


class Engine:
    """Runs one scheduler on one runner in its own thread. Every method is thread-safe.

    `fitter`: learns what steps cost, which the lanes' rules go by; without one no step is too long for bulk. `on_step`:
    called with the record of each step. `on_fault`: called with whatever was raised in the engine thread, for the log.
    `on_events`: called with the KV events of each step, in order; without one none are gathered. All three run in the
    engine thread. `max_faults`: faulty steps in a row that make the engine unhealthy; `step_limit_s`: so does a step
    that lasts longer. `checks_when_idle`: verify all accounting whenever nothing is open.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        fitter: StepCostFitter | None = None,
        on_step: OnStep | None = None,
        on_fault: OnFault | None = None,
        on_events: OnEvents | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_faults: int = 3,
        step_limit_s: float = 60.0,
        checks_when_idle: bool = False,
    ) -> None:
        check_fit(runner, scheduler.settings, scheduler.num_slots)
        self._runner = runner
        self._scheduler = scheduler
        self._on_step = on_step
        self._callbacks = Callbacks(on_fault)
        self._on_events = on_events
        if on_events is not None:
            scheduler.events.gather()
        self._clock = clock
        self._max_faults = max_faults
        self._step_limit_s = step_limit_s
        self._checks_when_idle = checks_when_idle
        self._inbox = Inbox(scheduler.settings.max_waiting)
        self._masks = MaskFiller(runner.vocab_size)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        # Written by the engine thread only; others read them, each in one go.
        self._meter = StepMeter(fitter, runner.host_bytes_per_token if scheduler.settings.host.max_tokens else 0)
        self._faults_in_row = 0
        self._plan: StepPlan | None = None  # while the device and the sampler are at it
        self._step_started: float | None = None

    def __repr__(self) -> str:
        return f"<Engine open={self._inbox.num_open} {self._scheduler!r}>"

    @property
    def num_open(self) -> int:
        """Requests that are still owed their last delta; 0 when quiescent."""
        return self._inbox.num_open

    def start(self) -> None:
        """Start the thread. Once, and not after `stop`."""
        assert not self._inbox.is_stopping, "a stopped engine cannot be started"
        self._thread.start()

    def submit(self, request: GenerateRequest, deliver: Deliver) -> Refusal | None:
        """Queue a request; a `Refusal`, and no delta ever, if it is not taken.

        `deliver` is called in the engine thread, at most once a step, and must not block. If it raises, its request is
        aborted.
        """
        refusal = check_size(request, self._scheduler.settings)
        if refusal is not None:
            return refusal
        return self._inbox.submit(request, deliver, self._scheduler.num_new_beside)

    def is_full(self) -> bool:
        """Whether no request of any lane would be queued now, hence one need not even be read."""
        return self._inbox.is_full(self._scheduler.num_new_beside)

    def abort(self, request_id: str) -> None:
        """Ask that a request ends; its last delta comes as usual, with ABORT unless it ended otherwise just before.

        Harmless when it is unknown or over. An id may be used again only after its last delta.
        """
        self._inbox.abort(request_id)

    def load(self) -> EngineLoad:
        """How busy the engine is; requests that the scheduler has not seen yet count as waiting."""
        load = self._meter.load
        waiting = load.waiting + self._inbox.num_unseen
        is_draining, is_paused = self._inbox.is_draining, self._inbox.is_paused
        return replace(load, waiting=waiting, is_draining=is_draining, is_paused=is_paused)

    def is_healthy(self) -> bool:
        """Whether steps are made: not after `max_faults` in a row, in a step over its limit, or without the thread."""
        started = self._step_started
        is_stuck = started is not None and self._clock() - started > self._step_limit_s
        return self._thread.is_alive() and self._faults_in_row < self._max_faults and not is_stuck

    def drain(self) -> None:
        """Refuse new requests from now on; open ones go on."""
        self._inbox.drain()

    def pause(self, timeout_s: float = 0.0) -> bool:
        """Make no steps from now on; whether none is being made any more, waiting for that for up to `timeout_s`.

        Open requests stay, keep their KV and can be aborted; new ones are queued. May be repeated.
        """
        return self._inbox.pause(timeout_s)

    def resume(self) -> None:
        """Make steps again. Harmless when not paused."""
        self._inbox.resume()

    def kv_snapshot(self, timeout_s: float = 60.0) -> tuple[KvEvent, ...]:
        """The events that make what can be hit now out of nothing, as of a moment between two steps.

        All events before that moment have been given to `on_events`, none after it. Empty when the engine is over.
        Raises TimeoutError if a step lasts longer. Not from the engine thread.
        """
        answer: Future[tuple[KvEvent, ...]] = Future()
        if not self._inbox.ask(lambda: answer.set_result(self._scheduler.events.snapshot())):
            return ()
        return answer.result(timeout_s)

    def resend_events(self) -> None:
        """Let `on_events` hear `AllBlocksCleared` and then all that can be hit, soon, in its place among the others."""
        self._inbox.ask(self._scheduler.events.resend)

    def stop(self, grace_s: float = 0.0) -> bool:
        """Drain, give open requests `grace_s` to end, abort the rest, end the thread and close the runner.

        A paused engine gives no grace: nothing would end. False if the thread is stuck in a step and had to be left
        behind. May be repeated. Not from the engine thread.
        """
        self._inbox.drain()
        if self._thread.is_alive() and not self._inbox.is_paused:
            self._inbox.await_empty(grace_s)
        is_first = not self._inbox.is_stopping
        self._inbox.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._step_limit_s)
        elif is_first:
            self._close()
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._inbox.await_work(self._has_work, self._show_load):
                self._turn()
        finally:
            self._close()

    def _has_work(self) -> bool:
        return self._scheduler.has_work or self._scheduler.has_upkeep

    def _show_load(self) -> None:
        """As the scheduler is now: when it rests, and when a step begins, which may be long."""
        self._meter.refresh(self._scheduler.statistics(), self._clock())

    def _turn(self) -> None:
        """Take the inbox, make one step unless paused, tell what became of the cache."""
        self._guarded(self._take_inbox)
        if self._inbox.may_step:
            self._guarded(self._step)
        self._guarded(self._tell_events)
        self._guarded(self._run_errands)
        if self._checks_when_idle and not self._scheduler.has_work:
            self._guarded(self._scheduler.check_integrity)

    def _take_inbox(self) -> None:
        for message in self._inbox.take():
            if isinstance(message, Abortion):
                delta = self._scheduler.abort(message.request_id)
                self._deliver([delta] if delta is not None else [])
                continue
            refusal = self._scheduler.add(message.request, self._clock())
            assert refusal is None, f"accepted, then refused: {refusal}"
            self._inbox.mark_seen(message.request)

    def _step(self) -> None:
        cost = self._meter.cost
        plan = self._scheduler.schedule(self._clock(), cost) or self._scheduler.plan_upkeep(cost)
        if plan is None:
            return
        started = self._clock()
        if self._meter.is_stale(self._scheduler.population, started):
            self._show_load()
            started = self._clock()
        self._plan, self._step_started = plan, started
        decoded = self._decode(plan)
        now = self._clock()
        self._plan, self._step_started = None, None
        record = StepRecord(plan, self._scheduler.outlook(plan), now - started)
        deltas = self._scheduler.complete(plan, decoded, now)
        self._faults_in_row = 0
        self._meter.count_step(record)
        self._deliver(deltas)
        if self._on_step is not None:
            self._callbacks.call(self._on_step, record)

    def _decode(self, plan: StepPlan) -> list[Decoded]:
        """Run a step: the tokens of each of its sampling rows."""
        rows = self._scheduler.sampling_rows(plan)
        pending = self._masks.start(rows)
        try:
            logits = self._runner.execute(plan)
        finally:
            masks = pending.wait()  # whatever happened: nobody else may touch their states until then
        return decode(logits, rows, masks, self._scheduler.settings.eos_ids)

    def _tell_events(self) -> None:
        if self._on_events is not None:
            events = self._scheduler.take_events()
            if events:
                self._callbacks.call(self._on_events, events)

    def _run_errands(self, *, is_last: bool = False) -> None:
        for errand in self._inbox.take_errands(is_last=is_last):
            self._callbacks.call(errand)
            self._tell_events()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do `work`; if it breaks, fail what the fault hit, forget all KV and go on with the rest.

        A fault of the device or the sampler hits the sequences of the step. Any other is a bug in our accounting, which
        then cannot be relied on: everything open ends.
        """
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the step loop is where faults end
            self._recover(error)

    def _recover(self, error: Exception) -> None:
        plan, self._plan, self._step_started = self._plan, None, None
        self._faults_in_row += 1
        self._meter.count_fault()
        self._callbacks.report(error)
        if plan is not None:
            self._deliver(self._scheduler.fail(plan, _FAULT_SENTENCE))
        else:
            self._deliver(self._scheduler.fail_all(_FAULT_SENTENCE))
            self._end_all(FinishReason.ERROR, _FAULT_SENTENCE)
        self._runner.clear()

    def _deliver(self, deltas: Iterable[SequenceDelta]) -> None:
        for delta in deltas:
            receiver = self._inbox.receiver(delta.request_id, is_last=delta.finish_reason is not None)
            if receiver is not None and not self._callbacks.call(receiver, delta):
                self._inbox.abort(delta.request_id)

    def _end_all(self, reason: FinishReason, error: str = "") -> None:
        """A last delta for whoever is still owed one, whether or not the scheduler has heard of it."""
        ids = self._inbox.drop_messages()
        self._deliver(SequenceDelta(id_, (), 0, 0, 0, finish_reason=reason, error=error) for id_ in ids)

    def _close(self) -> None:
        """End in the engine thread, or in the caller's if it was never started."""
        self._inbox.drain()
        try:
            if self._inbox.is_stopping:
                self._guarded(lambda: self._deliver(self._scheduler.abort_all()))
                self._end_all(FinishReason.ABORT)
            else:
                self._end_all(FinishReason.ERROR, "The engine has broken down.")
        finally:
            self._callbacks.call(self._tell_events)
            self._run_errands(is_last=True)
            self._show_load()
            self._masks.close()
            self._runner.close()
