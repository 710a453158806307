"""The right to one seat on one replica for one lane. Held by `with`, ended exactly once, whatever happened."""

from types import TracebackType
from typing import Protocol, Self

from cache_affinity.shadow import Insertion
from policies.lane import Lane
from routing.replica import Replica
from routing.step_model import RowMark


class SeatOwner(Protocol):
    """Whoever counts seats and takes them back (the pool)."""

    def take_back_tokens(self, lease: "Lease") -> None:
        """The lease's uncached prompt tokens are no longer outstanding; called at most once a lease."""
        ...

    def take_back_seat(self, lease: "Lease") -> None:
        """The lease is over; called exactly once a lease."""
        ...


class Lease:
    """One seat, until ended. `uncached_tokens`: prompt tokens the replica is expected to compute for it.

    `tokens_ahead`: tokens the replica had to work off before this request's own when the seat was given; `rows_ahead`:
    requests it held then, `unread_ahead`: their prompt tokens not read. `reading_s`: how long until its prompt is read,
    as predicted then. `probe`: the breaker's number for this attempt, 0 for an ordinary one. `given_mark`, `row_mark`:
    where the replica's rows stood when it was given and when it began to decode; None before, or if nobody watches.
    `insertion`: its prompt's in the replica's shadow. `is_hidden`: interactive and standard requests do not feel it.
    The replica may leave the pool meanwhile; ending stays harmless.
    """

    __slots__ = (
        "_owner", "begun_at", "breaker", "given_mark", "insertion", "is_hidden", "is_over", "is_prefilled", "lane",
        "probe", "reading_s", "replica", "row_mark", "rows_ahead", "tokens_ahead", "uncached_tokens", "unread_ahead",
    )  # fmt: skip

    def __init__(
        self, owner: SeatOwner, replica: Replica, lane: Lane, *, uncached_tokens: int, tokens_ahead: int, probe: int,
        rows_ahead: int, unread_ahead: int, reading_s: float, now: float,
    ) -> None:  # fmt: skip
        self._owner = owner
        self.replica = replica
        self.breaker = replica.breaker  # of this run of the replica: a restart brings a new one
        self.lane = lane
        self.uncached_tokens = uncached_tokens
        self.tokens_ahead = tokens_ahead
        self.rows_ahead = rows_ahead
        self.unread_ahead = unread_ahead
        self.reading_s = reading_s
        self.insertion: Insertion | None = None
        self.given_mark: RowMark | None = None
        self.row_mark: RowMark | None = None
        self.probe = probe
        self.begun_at = now
        self.is_hidden = lane is Lane.BULK and replica.spec.capabilities.leaves_bulk_out
        self.is_prefilled = False
        self.is_over = False

    def __repr__(self) -> str:
        phase = "over" if self.is_over else "decoding" if self.is_prefilled else "reading"
        return f"<Lease {self.replica.name} {self.lane.value} {phase} uncached_tokens={self.uncached_tokens}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def is_current(self) -> bool:
        """Whether the replica is still the process the seat was given on; if not, the attempt teaches nothing."""
        return self.breaker is self.replica.breaker

    def prefilled(self) -> None:
        """The first token came: the prompt is read, its tokens are no longer outstanding. Harmless when repeated."""
        if not self.is_prefilled:
            self.is_prefilled = True
            self._owner.take_back_tokens(self)

    def end(self) -> bool:
        """Give the seat and what is outstanding back; whether it was this call that did."""
        if self.is_over:
            return False
        self.prefilled()
        self.is_over = True
        self._owner.take_back_seat(self)
        return True
