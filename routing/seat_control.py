"""Sets how many seats standard and bulk may hold of each replica: joins the pool, what is learned, and the rules.

Called by the pool at every lease's begin, first content and end, by the process some times a second (`refresh`), and
at the end of a streamed answer (`observe`). The seats of replicas that leave bulk out by themselves are never touched.
Decides nothing: `policies/bulk_controller.py` and `policies/preemption.py` do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from policies.bulk_controller import BulkController, BulkSettings, ReplicaLoad, SeatPlan
from policies.itl_correction import SeenGaps
from policies.lane import Lane
from policies.preemption import BulkRun, PreemptionSettings, WasteBudget
from routing.lease import Lease
from routing.pool import ReplicaPool
from routing.replica import Replica
from routing.step_model import Gaps, StepModel

REFRESH_EVERY_S = 0.05  # for the caller's timer; chosen: about what an unstreamed bulk prompt takes to be read
# An unstreamed answer never says when its prompt was read: it is taken for read after so many predicted times; chosen.
_PATIENCE = {Lane.INTERACTIVE: 3.0, Lane.STANDARD: 3.0, Lane.BULK: 1.0}


@dataclass(slots=True)
class _Controlled:
    """One replica in one life of its process. `unread`: leases whose prompt is not known to be read.

    `urgent_reading`: how many of them are not bulk; `bulk_unread_tokens`: the prompt tokens of those that are. Counted
    as they come and go: three events a request would look through all of them.
    """

    steps: StepModel
    controller: BulkController
    plan: SeatPlan | None = None
    unread: set[Lease] = field(default_factory=set)
    urgent_reading: int = 0
    bulk_unread_tokens: int = 0

    def reads(self, lease: Lease) -> None:
        """The replica was given its prompt."""
        self.unread.add(lease)
        self._count(lease, 1)

    def has_read(self, lease: Lease) -> None:
        """Its prompt is read, or will not be. Nothing happens if it was not known."""
        if lease in self.unread:
            self.unread.discard(lease)
            self._count(lease, -1)

    def _count(self, lease: Lease, num: int) -> None:
        if lease.lane is Lane.BULK:
            self.bulk_unread_tokens += num * lease.uncached_tokens
        else:
            self.urgent_reading += num


@dataclass(frozen=True, slots=True)
class SeatStatistics:
    """One replica under control. `room`, `p95_beside`, `p95_alone`: see `ItlCorrection`."""

    name: str
    plan: SeatPlan
    room: float
    p95_beside: float | None
    p95_alone: float | None
    steps: str


class SeatControl:
    """The seats of all replicas of one pool; makes itself the pool's watcher.

    `clock`: monotonic seconds, the one that `now` is of. `on_open`: called when somebody who waits may have a seat
    without another having ended: on `refresh` and on first contents (also that of a lease that is just ending).
    """

    def __init__(
        self,
        pool: ReplicaPool,
        clock: Callable[[], float],
        settings: BulkSettings | None = None,
        preemption: PreemptionSettings | None = None,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self.budget = WasteBudget(preemption or PreemptionSettings())
        self._pool = pool
        self._clock = clock
        self._settings = settings or BulkSettings()
        self._on_open = on_open
        self._controlled: dict[str, _Controlled] = {}
        pool.watcher = self

    def __repr__(self) -> str:
        return f"<SeatControl {self.budget!r} {self.statistics()}>"

    def began(self, lease: Lease) -> None:
        """A seat was given."""
        if lease.replica.spec.capabilities.leaves_bulk_out and lease.lane is not Lane.BULK:
            self._note_people(lease)
            return
        controlled = self._of(lease)
        if controlled is None:
            return
        controlled.reads(lease)
        if lease.replica.spec.capabilities.leaves_bulk_out:
            return
        now = self._clock()
        load = _load(lease.replica, controlled)
        if lease.lane is Lane.BULK:
            controlled.controller.started(load, lease.uncached_tokens, controlled.steps.cost)
        self._set(lease.replica, controlled, load, now)
        lease.given_mark = controlled.steps.mark()

    def decoding(self, lease: Lease) -> None:
        """The first content came, or the lease ends without."""
        if lease.replica.spec.capabilities.leaves_bulk_out and lease.lane is not Lane.BULK:
            if lease.is_current:
                self._note_people(lease)
                lease.row_mark = lease.replica.steps.mark()
            return
        controlled = self._of(lease)
        if controlled is None:
            return
        controlled.has_read(lease)
        if lease.replica.spec.capabilities.leaves_bulk_out:
            return
        now = self._clock()
        is_open = self._set(lease.replica, controlled, _load(lease.replica, controlled), now)
        lease.row_mark = controlled.steps.mark()
        if is_open:
            self._on_open()

    def ended(self, lease: Lease) -> None:
        """The seat came back; also that of a process that is gone was one less to give."""
        replica = lease.replica
        if replica.spec.capabilities.leaves_bulk_out:
            self._note_people(lease)
        elif self._pool.get(replica.name) is replica:
            controlled = self._control(replica)
            self._set(replica, controlled, _load(replica, controlled), self._clock())

    def observe(self, lease: Lease, gaps: Gaps | None, now: float) -> None:
        """Learn from a streamed answer that came to its end; call before the lease ends. None: too short an answer."""
        if gaps is None:
            return
        if lease.replica.spec.capabilities.leaves_bulk_out:  # nothing is controlled; the router wants to know a row
            self._note_people(lease)
            self._pool.learn_gaps(lease, gaps, now)
            return
        controlled = self._of(lease)
        if controlled is None:
            return
        self._note_rows(lease.replica, now)
        rows = self._pool.learn_gaps(lease, gaps, now)
        if rows is not None and lease.row_mark is not None and lease.lane is Lane.INTERACTIVE:
            seen = SeenGaps(lease.row_mark.at, now, gaps.sample, rows.urgent, rows.bulk)
            controlled.controller.observe(seen, controlled.steps.cost)

    def observe_whole(self, lease: Lease, answer_tokens: int | None, now: float) -> None:
        """Learn from an unstreamed answer that came to its end, as the above. None: the engine did not count it."""
        controlled = self._of(lease)
        if controlled is None or lease.given_mark is None or lease.replica.spec.capabilities.leaves_bulk_out:
            return
        if answer_tokens is not None:
            self._note_rows(lease.replica, now)
            controlled.steps.learn_whole(lease.given_mark, lease.uncached_tokens, answer_tokens, now)

    def refresh(self) -> None:
        """Look at every replica: time passes (hold-off, prompts read) without anybody saying so."""
        now = self._clock()
        is_open = False
        for replica in self._pool:
            controlled = self._control(replica)
            for lease in [lease for lease in controlled.unread if _must_be_read(lease, now)]:
                lease.prefilled()
            if not replica.spec.capabilities.leaves_bulk_out:
                is_open |= self._set(replica, controlled, _load(replica, controlled), now)
        if len(self._controlled) > len(self._pool):
            self._controlled = {name: one for name, one in self._controlled.items() if self._pool.get(name)}
        if is_open:
            self._on_open()

    def excess(self, name: str) -> int:
        """Bulk requests more than people on the replica bear, 0 if it has nobody or sees to it by itself."""
        replica, controlled = self._pool.get(name), self._controlled.get(name)
        if replica is None or controlled is None or controlled.plan is None:
            return 0
        if replica.spec.capabilities.priority or not replica.in_flight[Lane.INTERACTIVE.rank]:
            return 0
        return max(0, replica.in_flight[Lane.BULK.rank] - controlled.plan.bulk)

    def preempt(self, name: str, runs: Iterable[BulkRun]) -> tuple[BulkRun, ...]:
        """Those of the replica's bulk requests to cancel and queue again now. The budget is spent on them."""
        num = self.excess(name)
        return self.budget.preempt(runs, num) if num else ()

    def computed_tokens(self, lease: Lease, num_answer_tokens: int | None, now: float) -> int:
        """Tokens computed for a request so far, as far as can be known. None: an unstreamed answer, which is guessed.

        A guess errs high: it takes the prompt for read and each step for one of this replica's, as learned.
        """
        if num_answer_tokens is None:
            step_s = lease.replica.steps.cost.seconds(1, 0)
            num_answer_tokens = int(max(0.0, now - lease.begun_at - lease.reading_s) / max(step_s, 1e-4))
        return lease.uncached_tokens + num_answer_tokens

    def statistics(self) -> tuple[SeatStatistics, ...]:
        """What is set and why, by replica."""
        return tuple(
            SeatStatistics(
                name,
                one.plan,
                one.controller.correction.room,
                one.controller.correction.p95_beside,
                one.controller.correction.p95_alone,
                repr(one.steps),
            )
            for name, one in self._controlled.items()
            if one.plan is not None
        )

    def _of(self, lease: Lease) -> _Controlled | None:
        """The control of the lease's replica; None if that has left or is another process now."""
        replica = lease.replica
        return self._control(replica) if lease.is_current and self._pool.get(replica.name) is replica else None

    def _control(self, replica: Replica) -> _Controlled:
        controlled = self._controlled.get(replica.name)
        if controlled is None or controlled.steps is not replica.steps:
            controlled = _Controlled(replica.steps, BulkController(self._settings))
            self._controlled[replica.name] = controlled
        return controlled

    def _set(self, replica: Replica, controlled: _Controlled, load: ReplicaLoad, now: float) -> bool:
        self._note_rows(replica, now)
        plan = controlled.plan = controlled.controller.plan(load, controlled.steps.cost, now)
        return self._pool.set_lane_seats(
            replica.name, standard=plan.standard, bulk=plan.bulk, may_start_bulk=plan.may_start_bulk
        )

    def _note_people(self, lease: Lease) -> None:
        """The rows that share steps where the engine leaves bulk out of them: all but bulk."""
        if lease.is_current and lease.lane is not Lane.BULK:
            interactive, standard, _ = lease.replica.in_flight
            lease.replica.steps.note_rows(interactive + standard, 0, self._clock())

    def _note_rows(self, replica: Replica, now: float) -> None:
        interactive, standard, bulk = replica.in_flight
        replica.steps.note_rows(interactive + standard, bulk, now)


def _load(replica: Replica, controlled: _Controlled) -> ReplicaLoad:
    bulk_tokens = controlled.bulk_unread_tokens
    interactive, standard, bulk = replica.in_flight
    capabilities = replica.spec.capabilities
    return ReplicaLoad(
        replica.spec.seats,
        interactive,
        standard,
        bulk,
        urgent_reading=controlled.urgent_reading,
        bulk_unread_tokens=bulk_tokens,
        bulk_reading_s=replica.steps.reading_s(bulk_tokens, bulk) if bulk_tokens else 0.0,
        leaves_bulk_out=capabilities.leaves_bulk_out,
        has_priority=capabilities.priority,
    )


def _must_be_read(lease: Lease, now: float) -> bool:
    return now - lease.begun_at >= _PATIENCE[lease.lane] * lease.reading_s
