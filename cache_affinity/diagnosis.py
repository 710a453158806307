"""Prefix diagnosis: where the successive prompts of a project first differ, and how much lies behind that in vain.

A prompt is held against the one before of its conversation, else against the latest of its project whose first message
was as long, else against the latest. Kept are hashes and lengths, never text: of few prompts, for few projects, of the
last prompts alone. Knows nothing of roles.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cache_affinity.first_difference import Known, Watch, num_shared, pieces_of, place_of, range_of, tail_of
from cache_affinity.places import Key, Name, Place, Where, by_number, key_of, merged
from cache_affinity.prefix import BLOCK_BYTES, PrefixKey

MAX_PROJECTS = 256  # of projects and models the latest; with all else at its bound 23 MB; all chosen
MAX_CONVERSATIONS = 8  # of each: those that a next turn is still looked for of
MAX_LENGTHS = 8  # of the first message: prompts of one application, with a date in it, have the same
MAX_BORDERS = 128  # of each prompt: a difference behind 128 KiB, or 128 short messages, is not seen
MAX_PLACES = 16  # of each window; where there are more, the one with the fewest prompts makes room
WINDOW = 512  # prompts; told are those of this window and of the one before
EXPIRES_S = 24 * 3600.0  # a project that asked nothing for so long is forgotten
PATIENCE = 2  # differences elsewhere until the watch follows them


@dataclass(slots=True)
class Window:
    """Counts of at most `WINDOW` prompts. `num_grew`: those that began with all of the one before."""

    num_prompts: int = 0
    num_repeated: int = 0
    num_grew: int = 0
    places: dict[Key, Place] = field(default_factory=dict)


@dataclass(slots=True)
class _Project:
    organization_id: str
    seen_at: float
    latest: Known | None = None
    conversations: OrderedDict[int, Known] = field(default_factory=OrderedDict)
    lengths: OrderedDict[int, Known] = field(default_factory=OrderedDict)
    watch: Watch | None = None
    settled: Place | None = None  # the place of an exact watch
    num_elsewhere: int = 0
    now: Window = field(default_factory=Window)
    before: Window = field(default_factory=Window)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Of one project's prompts to one model, over the last `WINDOW` to twice as many. `seen_at`: as `now` was.

    `places`: what lost most first.
    """

    project_id: str
    organization_id: str
    model: str
    seen_at: float
    num_prompts: int
    num_repeated: int
    num_grew: int
    places: tuple[tuple[Key, Place], ...]


class PrefixDiagnosis:
    """Takes each prompt once, in order of arrival. All bounds are stated above; `now` is in monotonic seconds."""

    def __init__(self, name: Name = by_number) -> None:
        self._name = name
        self._projects: OrderedDict[tuple[str, str], _Project] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PrefixDiagnosis {len(self._projects)} projects>"

    def __len__(self) -> int:
        """Projects and models that are known."""
        return len(self._projects)

    def note(
        self,
        project_id: str,
        organization_id: str,
        model: str,
        key: PrefixKey,
        segments: Sequence[bytes],
        *,
        now: float,
    ) -> None:
        """A prompt has come. `segments`: what the key was made of; nothing of it is kept."""
        name = (project_id, model)
        project = self._projects.get(name)
        if project is None or now - project.seen_at > EXPIRES_S:
            project = self._begin(name, organization_id, now)
        else:
            self._projects.move_to_end(name)
            project.seen_at = now
        hashes, sizes = key.hashes, key.sizes
        if len(hashes) > MAX_BORDERS:
            hashes, sizes = hashes[:MAX_BORDERS], sizes[:MAX_BORDERS]
        conversations, lengths, length = project.conversations, project.lengths, len(segments[0]) if segments else 0
        alike = lengths.pop(length, None)
        before = conversations.pop(key.home, None) or alike or project.latest
        known = _known(hashes, sizes, segments, project.watch)
        if before is not None:
            known = self._compare(project, before, known, segments)
        conversations[key.home] = lengths[length] = project.latest = known
        if len(lengths) > MAX_LENGTHS:
            lengths.popitem(last=False)
        if len(conversations) > MAX_CONVERSATIONS:
            conversations.popitem(last=False)

    def told(self, now: float) -> Iterator[Diagnosis]:
        """All that is known, expired projects left out."""
        self._expire(now)
        for (project_id, model), project in self._projects.items():
            windows = (project.before, project.now)
            yield Diagnosis(
                project_id, project.organization_id, model, project.seen_at,
                sum(one.num_prompts for one in windows),
                sum(one.num_repeated for one in windows),
                sum(one.num_grew for one in windows),
                merged(project.before.places, project.now.places),
            )  # fmt: skip

    def forget(self, projects: frozenset[str]) -> int:
        """Drop projects that are gone; of how many models there were prompts."""
        gone = [name for name in self._projects if name[0] in projects]
        for name in gone:
            del self._projects[name]
        return len(gone)

    def _begin(self, name: tuple[str, str], organization_id: str, now: float) -> _Project:
        self._expire(now)
        project = self._projects[name] = _Project(organization_id, now)
        if len(self._projects) > MAX_PROJECTS:
            self._projects.popitem(last=False)
        return project

    def _expire(self, now: float) -> None:
        while self._projects:
            oldest = next(iter(self._projects))
            if now - self._projects[oldest].seen_at <= EXPIRES_S:
                return
            del self._projects[oldest]

    def _compare(self, project: _Project, before: Known, known: Known, segments: Sequence[bytes]) -> Known:
        """Count how a prompt differs from the one before; the prompt again, with digests of what is watched now."""
        window = project.now
        if window.num_prompts >= WINDOW:
            window = _next_window(project)
        window.num_prompts += 1
        num = num_shared(before.hashes, known.hashes)
        if num == len(before.hashes) or num == len(known.hashes):
            if len(before.hashes) == len(known.hashes):
                window.num_repeated += 1
            else:
                window.num_grew += 1
            return known
        watch, settled = known.watch, project.settled
        if settled is None or watch is None or watch is not before.watch:
            return self._differs(project, before, known, num, segments)
        if watch.confirms(num, before.digests, known.digests):
            where = (watch.segment, watch.offset)
            settled.num_prompts += 1
            settled.lost_bytes += _lost_bytes(before, known, num, where, segments, first=settled.first)
            project.num_elsewhere = 0
            return known
        return self._differs(project, before, known, num, segments)

    def _differs(
        self, project: _Project, before: Known, known: Known, num: int, segments: Sequence[bytes]
    ) -> Known:  # fmt: skip
        """The same where the byte is to be found yet, or is another than the one that is known."""
        where = place_of(known.sizes[num - 1] if num else 0, segments)
        seen = _seen(before, known, num, where, len(segments[where[0]]))
        place = self._place(project, where, seen, segments)
        place.num_prompts += 1
        place.lost_bytes += _lost_bytes(before, known, num, where, segments, first=place.first)
        watch = _next_watch(project, num, known, where, seen)
        if watch is known.watch:
            return known
        project.watch = watch
        project.settled = place if watch.is_exact and place.first == watch.places[0] else None
        return _known(known.hashes, known.sizes, segments, watch)

    def _place(self, project: _Project, where: Where, seen: "_Seen", segments: Sequence[bytes]) -> Place:
        """The place in this window's table, as narrow as it is known by now."""
        places, first, end = project.now.places, seen.first, seen.end
        key = key_of(places, where, first, end)
        place = places.get(key)
        if place is None:
            if len(places) >= MAX_PLACES:
                gone = places.pop(min(places, key=lambda one: places[one].num_prompts))
                project.settled = None if gone is project.settled else project.settled
            place = places[key] = Place(first, end, self._name(segments, where[0], first))
        elif (end - first, first) < (place.end - place.first, place.first):
            place.first, place.end = first, end
            place.name = self._name(segments, where[0], first)
        return place


def _next_window(project: _Project) -> Window:
    """An empty one; what is known to the byte is looked for again, it may be elsewhere by now."""
    project.before, project.now = project.now, Window()
    watch = project.watch
    if watch is not None and watch.is_exact:
        project.watch = watch.within(watch.offset, watch.offset + BLOCK_BYTES)
    return project.now


def _known(hashes: tuple[int, ...], sizes: tuple[int, ...], segments: Sequence[bytes], watch: Watch | None) -> Known:
    if watch is None:
        return Known(hashes, sizes, len(segments), None, (), 0, tail_of(segments, 0))
    digests = watch.digests(hashes, segments)
    return Known(hashes, sizes, len(segments), watch, digests, watch.segment, tail_of(segments, watch.segment))


class _Seen(NamedTuple):
    """The bytes of the segment among which two prompts first differ. `is_fine`: the watch told them."""

    first: int
    end: int
    is_fine: bool


def _seen(before: Known, known: Known, num: int, where: Where, segment_bytes: int) -> _Seen:
    watch = known.watch
    if watch is not None and watch is before.watch and watch.num_shared == num and before.digests and known.digests:
        return _Seen(*range_of(before.digests, known.digests, watch, segment_bytes), is_fine=True)
    return _Seen(where[1], min(where[1] + BLOCK_BYTES, segment_bytes), is_fine=False)


def _lost_bytes(
    before: Known, known: Known, num: int, where: Where, segments: Sequence[bytes], *, first: int
) -> int:  # fmt: skip
    """What lies behind the difference and, by all signs, came before: else only one question followed another.

    All to the end of the one before, if its messages behind this one are as long as here; else the rest of this
    message, if it ends as it did.
    """
    segment, last = where[0], len(before.hashes) - 1
    at = (known.sizes[num - 1] if num else 0) + first - where[1]
    if segment < before.num_segments - 1 and last < len(known.sizes):
        shift = known.sizes[num] - before.sizes[num]
        if num < last and known.sizes[last] - before.sizes[last] == shift:
            return max(0, known.sizes[last] - at)
    if before.tail_of == known.tail_of == segment and before.tail == known.tail != 0:
        return max(0, len(segments[segment]) - first)
    return 0


def _next_watch(project: _Project, num: int, known: Known, where: Where, seen: _Seen) -> Watch:
    """Where to look from now on: finer where prompts differ again, elsewhere once they often differ elsewhere."""
    watch, first, end = project.watch, seen.first, seen.end
    if watch is not None:
        is_here = watch.num_shared == num and (watch.segment, watch.offset) == where
        if is_here and not seen.is_fine:
            return watch  # the one before was not looked at with it
        if is_here and watch.places[0] <= first and end <= watch.places[-1]:
            project.num_elsewhere = 0
            return watch if watch.is_exact else watch.within(first, end)
        if project.num_elsewhere < PATIENCE:
            project.num_elsewhere += 1
            return watch
    project.num_elsewhere = 0
    return Watch(num, known.hashes[num - 1] if num else 0, *where, pieces_of(first, end))
