"""What is to be compiled, and by whom asked: everybody's turn comes, and what nobody waits for any more is left out.

Knows no grammars; used on one event loop.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MadeT = TypeVar("MadeT")


@dataclass(slots=True, eq=False)
class Job(Generic[MadeT]):
    """One piece of work. `num_askers`: who wait for it now; `is_begun`: a thread has it."""

    owner: str
    key: bytes
    work: Callable[[], MadeT]
    made: Future[MadeT] = field(default_factory=Future)
    num_askers: int = 0
    is_begun: bool = False


class FairQueue(Generic[MadeT]):
    """Jobs that wait, by owner; owners take turns, each by its oldest job. `max_waiting`, `max_of_one`: at most."""

    def __init__(self, max_waiting: int, max_of_one: int) -> None:
        self._max_waiting = max_waiting
        self._max_of_one = max_of_one
        self._waiting: OrderedDict[str, deque[Job[MadeT]]] = OrderedDict()  # in the order of their turns
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def has_room(self, owner: str) -> bool:
        """Whether one more job of this owner may wait."""
        return self._num_waiting < self._max_waiting and len(self._waiting.get(owner, ())) < self._max_of_one

    def add(self, job: Job[MadeT]) -> None:
        """Queue a job for which there is room."""
        assert self.has_room(job.owner), "asked before"
        self._waiting.setdefault(job.owner, deque()).append(job)
        self._num_waiting += 1

    def next(self) -> Job[MadeT] | None:
        """Take the next job whose turn it is, None if there is none."""
        if not self._waiting:
            return None
        owner, jobs = self._waiting.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._waiting[owner] = jobs  # behind the others
        self._num_waiting -= 1
        return job

    def leave(self, job: Job[MadeT]) -> None:
        """Take out a job that waits."""
        jobs = self._waiting[job.owner]
        jobs.remove(job)
        if not jobs:
            del self._waiting[job.owner]
        self._num_waiting -= 1


class OwnedCache(Generic[MadeT]):
    """What was made, by owner, at most `max_kept`. Without room the owner of most loses what it has not used longest.

    So nobody finds what another had made, and who has much made does not push out what others have.
    """

    def __init__(self, max_kept: int) -> None:
        self._max_kept = max_kept
        self._kept: dict[str, OrderedDict[bytes, MadeT]] = {}
        self._num_kept = 0

    def __len__(self) -> int:
        return self._num_kept

    def get(self, owner: str, key: bytes) -> MadeT | None:
        """What is kept, as the last used."""
        own = self._kept.get(owner)
        if own is None or key not in own:
            return None
        own.move_to_end(key)
        return own[key]

    def keep(self, owner: str, key: bytes, made: MadeT) -> None:
        """Keep it."""
        own = self._kept.setdefault(owner, OrderedDict())
        self._num_kept += key not in own
        own[key] = made
        own.move_to_end(key)
        while self._num_kept > self._max_kept:
            fullest = max(self._kept, key=lambda name: len(self._kept[name]))
            self._kept[fullest].popitem(last=False)
            self._num_kept -= 1
            if not self._kept[fullest]:
                del self._kept[fullest]
