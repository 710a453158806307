"""Prefix diagnosis as gateways tell it and the admin plane sums it: one row for each project and model, in tokens."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from cache_affinity.diagnosis import Diagnosis, PrefixDiagnosis
from cache_affinity.places import Place
from cache_affinity.ratio import TokenRatios

MAX_PLACES = 8  # of a row; the rest lose less
_LEAST_TOKENS = 16  # a request, and
_LEAST_SHARE = 0.05  # of prompts: below, nothing is worth a word; both chosen
_START_BYTES = 512  # what stands this early in a prompt pushes out nearly all of it


class PlaceBody(Struct, frozen=True):
    """Somewhere that prompts first differ from the one before.

    `kind`: `message`, or the field that stands before or behind them. `message`, `part`: numbers from 0. `from_byte`,
    `to_byte`: the first byte that differs is one of these, from the beginning of what is said there. `lost_tokens`:
    of all these prompts, about: what came behind the difference as it had come before, and was read again.
    """

    kind: str
    message: int | None
    role: str | None
    part: int | None
    from_byte: int
    to_byte: int
    prompts: int
    lost_tokens: int


class PrefixRow(Struct, frozen=True):
    """The last prompts of one project to one model. `id`: of the row. `last_at`: Unix seconds.

    `prompts`: those that were held against an earlier one; `repeated`: equal to it, `grew`: begun with all of it or
    with less; the others differ somewhere. `finding`: in words.
    """

    id: str
    project_id: str
    organization_id: str
    model: str
    last_at: float
    prompts: int
    repeated: int
    grew: int
    lost_tokens: int
    places: list[PlaceBody]
    finding: str


class PrefixList(Struct, frozen=True):
    """A page of rows by id; `next_cursor` is the next `after`."""

    data: list[PrefixRow]
    next_cursor: str | None = None


def reports(diagnosis: PrefixDiagnosis, ratios: TokenRatios, now: float, unix: float) -> PrefixList:
    """What one gateway knows. `now`, `unix`: the same moment, in monotonic and in Unix seconds."""
    return PrefixList([_row(one, ratios, unix - now) for one in diagnosis.told(now)])


def summed_rows(answers: Iterable[PrefixList]) -> list[PrefixRow]:
    """The rows of several gateways by id: each has seen its own part of a project's prompts."""
    found: dict[str, PrefixRow] = {}
    for row in (row for answer in answers for row in answer.data):
        found[row.id] = _with_finding(_sum(found[row.id], row)) if row.id in found else row
    return [found[name] for name in sorted(found)]


def _row(one: Diagnosis, ratios: TokenRatios, unix_behind: float) -> PrefixRow:
    tokens = ratios.of(one.model).tokens
    places = [_place(place, tokens(place.lost_bytes)) for _, place in one.places]
    row = PrefixRow(
        id=f"{one.project_id}:{one.model}",
        project_id=one.project_id,
        organization_id=one.organization_id,
        model=one.model,
        last_at=one.seen_at + unix_behind,
        prompts=one.num_prompts,
        repeated=one.num_repeated,
        grew=one.num_grew,
        lost_tokens=sum(place.lost_tokens for place in places),
        places=places[:MAX_PLACES],
        finding="",
    )
    return _with_finding(row)


def _place(place: Place, lost_tokens: int) -> PlaceBody:
    name = place.name
    first = max(0, place.first - name.starts_at)
    end = max(first + 1, place.end - name.starts_at)
    return PlaceBody(name.kind, name.message, name.role, name.part, first, end - 1, place.num_prompts, lost_tokens)


def _sum(one: PrefixRow, other: PrefixRow) -> PrefixRow:
    places = list(one.places)
    for place in other.places:
        same = next((index for index, known in enumerate(places) if _meet(known, place)), None)
        if same is None:
            places.append(place)
        else:
            places[same] = _sum_places(places[same], place)
    return replace(
        one,
        last_at=max(one.last_at, other.last_at),
        prompts=one.prompts + other.prompts,
        repeated=one.repeated + other.repeated,
        grew=one.grew + other.grew,
        lost_tokens=one.lost_tokens + other.lost_tokens,
        places=sorted(places, key=lambda place: (-place.lost_tokens, -place.prompts))[:MAX_PLACES],
    )


def _meet(one: PlaceBody, other: PlaceBody) -> bool:
    """Whether both may be the same byte."""
    if (one.kind, one.message, one.role, one.part) != (other.kind, other.message, other.role, other.part):
        return False
    return one.from_byte <= other.to_byte and other.from_byte <= one.to_byte


def _sum_places(one: PlaceBody, other: PlaceBody) -> PlaceBody:
    """Counts summed, the bytes as the one knows them who knows them better."""
    finer = min(one, other, key=lambda place: (place.to_byte - place.from_byte, place.from_byte))
    return replace(finer, prompts=one.prompts + other.prompts, lost_tokens=one.lost_tokens + other.lost_tokens)


def _with_finding(row: PrefixRow) -> PrefixRow:
    return replace(row, finding=_finding(row))


def _finding(row: PrefixRow) -> str:
    worst = next((place for place in row.places if place.prompts >= _LEAST_SHARE * row.prompts), None)
    if worst is None:
        return "prompts go on where the one before ended, or begin anew: nothing is lost"
    each = round(worst.lost_tokens / worst.prompts)
    if each < _LEAST_TOKENS:
        return "prompts differ, but hardly anything behind that came before: nothing is lost"
    share = "most" if worst.prompts > row.prompts / 2 else f"{worst.prompts / row.prompts:.0%} of the"
    return (
        f"{share} prompts differ from the one before in {_where(worst)} {_bytes(worst)}: {each:,} tokens read again a "
        f"request; {_likely(worst)}"
    )


def _where(place: PlaceBody) -> str:
    if place.kind != "message":
        return place.kind
    part = "" if place.part is None else f", part {place.part}"
    return f"message {place.message} ({place.role}{part})"


def _bytes(place: PlaceBody) -> str:
    """As narrow as it is known."""
    if place.from_byte == place.to_byte:
        return f"at byte {place.from_byte}"
    return f"between bytes {place.from_byte} and {place.to_byte}"


def _likely(place: PlaceBody) -> str:
    if place.kind in {"tools", "functions"}:
        return "likely tools in another order, or a description that changes"
    if place.kind == "message" and place.role in {"system", "developer"} and place.from_byte < _START_BYTES:
        return "likely a date or id near the start: put it at the end, or leave it out"
    if place.kind == "message" and place.message:
        return "likely an earlier message is changed, shortened or left out: only append, and cut rarely"
    return "put what changes behind what stays"
