"""The answers that are kept: bounded in bytes overall and for each project, the longest unused go first. Pure.

An answer is kept in the form in which it came, as a stream or whole; where one form cannot be made of the other, both
may be kept side by side. Every key belongs to one project, which is drawn into it (key.py).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

OVERHEAD_BYTES = 512  # of an entry beside its answer: key, object, places in two orders; measured, rounded up


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """In bytes, and in seconds how long an answer is good. `max_bytes` 0: nothing is kept."""

    max_bytes: int
    max_project_bytes: int
    max_entry_bytes: int
    ttl_s: float


@dataclass(slots=True)
class KeptAnswer:
    """`stream`: the events with their end marker; `whole`: a body; either may be missing. `kept_at`: monotonic s."""

    project: str
    kept_at: float
    stream: bytes | None = None
    whole: bytes | None = None

    @property
    def num_bytes(self) -> int:
        """What it takes of the bounds."""
        return OVERHEAD_BYTES + len(self.stream or b"") + len(self.whole or b"")


class KeptAnswers:
    """By key. `counts`: what happened, by a closed set of words."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, KeptAnswer] = OrderedDict()  # the longest unused first
        self._of_project: dict[str, OrderedDict[bytes, None]] = {}  # in the same order
        self._project_bytes: Counter[str] = Counter()
        self.num_bytes = 0
        self.counts = dict.fromkeys(("hit", "miss", "kept", "unfit", "evicted", "expired"), 0)

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"<KeptAnswers answers={len(self)} bytes={self.num_bytes} projects={len(self._of_project)}>"

    def get(self, key: bytes, max_age_s: float, now: float) -> KeptAnswer | None:
        """An answer that is no older, which counts as used now; None: there is none."""
        found = self._answers.get(key)
        if found is None or now - found.kept_at >= max_age_s:
            return None
        self._answers.move_to_end(key)
        self._of_project[found.project].move_to_end(key)
        return found

    def put(self, key: bytes, answer: KeptAnswer, bounds: CacheBounds) -> bool:
        """Keep it in the place of what was there. False if it is larger than anything may be."""
        self.drop(key)
        size, project = answer.num_bytes, answer.project
        if size > min(bounds.max_entry_bytes + OVERHEAD_BYTES, bounds.max_project_bytes, bounds.max_bytes):
            return False
        self._answers[key] = answer
        self._of_project.setdefault(project, OrderedDict())[key] = None
        self._project_bytes[project] += size
        self.num_bytes += size
        self._shrink(bounds, (project,))
        return True

    def drop(self, key: bytes) -> bool:
        """Forget one; whether there was one."""
        found = self._answers.pop(key, None)
        if found is None:
            return False
        keys = self._of_project[found.project]
        del keys[key]
        self._project_bytes[found.project] -= found.num_bytes
        self.num_bytes -= found.num_bytes
        if not keys:
            del self._of_project[found.project], self._project_bytes[found.project]
        return True

    def forget(self, projects: AbstractSet[str]) -> None:
        """Drop all that belongs to projects that are gone."""
        for project in projects & self._of_project.keys():
            for key in [*self._of_project[project]]:
                self.drop(key)

    def expire(self, bounds: CacheBounds, now: float) -> None:
        """Drop what is too old, and what other bounds than before have no room for."""
        old = [key for key, one in self._answers.items() if now - one.kept_at >= bounds.ttl_s]
        for key in old:
            self.drop(key)
        self.counts["expired"] += len(old)
        self._shrink(bounds, [*self._of_project])

    def gauges(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """For `/metrics`."""
        for result, count in self.counts.items():
            yield "warmlane_response_cache_total", {"result": result}, count
        yield "warmlane_response_cache_bytes", {}, self.num_bytes
        yield "warmlane_response_cache_answers", {}, len(self)

    def _shrink(self, bounds: CacheBounds, projects: tuple[str, ...] | list[str]) -> None:
        for project in projects:
            while self._project_bytes[project] > bounds.max_project_bytes:
                self._evict(next(iter(self._of_project[project])))
        while self.num_bytes > bounds.max_bytes:
            self._evict(next(iter(self._answers)))

    def _evict(self, key: bytes) -> None:
        self.drop(key)
        self.counts["evicted"] += 1
