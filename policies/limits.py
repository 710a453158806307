"""A limits document: what may stand in it, and what follows for a project from its organisation's and its own.

Absent means inherited from the organisation, then from the default; `null` lifts the inherited default at that level;
0 means none allowed. Every level is enforced, so a lower one can only narrow. A name that is not known is refused
rather than stored, so that no limit is believed in that does not hold.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from policies.calendar_windows import MAX_ZONE_NAME, is_time_zone
from policies.json_fault import plainly
from policies.lane import Lane
from policies.tenant import Limits, ResponseCaching

MAX_COUNT = 1_000_000_000  # chosen: far above any real limit, far below where numbers stop being exact
MAX_TOKENS = 10**15  # chosen: more than anybody uses in a day, and still exact in every JSON reader
MAX_USD = 1_000_000_000
MAX_MODELS = 1000
MAX_DOCUMENT_BYTES = 256 * 1024

T = TypeVar("T")

Weight = Annotated[float, Meta(ge=0.01, le=100)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
ModelName = Annotated[str, Meta(min_length=1, max_length=128)]

Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Usd = Annotated[float, Meta(ge=0, le=MAX_USD)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
GroupName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)")]  # alone `$` lets a line end pass
ZoneName = Annotated[str, Meta(min_length=1, max_length=MAX_ZONE_NAME)]
SurfacePath = Literal[  # as in the ledger; what is not served yet may be named, for a list only narrows
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/batches",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/detokenize",
    "/v1/embeddings",
    "/v1/files",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/score",
    "/v1/tokenize",
]

CLOSED = Limits(
    rpm=0,
    tpm=0,
    tokens_per_day=0,
    usd_per_month=0.0,
    concurrency=dict.fromkeys(Lane, 0),
    models=frozenset(),
    surfaces=frozenset(),
    max_lane=Lane.BULK,
    default_lane=Lane.BULK,
)
DEFAULT = Limits()


class LimitsError(ValueError):
    """The document cannot be used; `field` names where, None if it is not even an object."""

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(message)
        self.field = field


class LaneCounts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A number for each lane."""

    interactive: Count | UnsetType | None = UNSET
    standard: Count | UnsetType | None = UNSET
    bulk: Count | UnsetType | None = UNSET

    def of(self, lane: Lane) -> int | UnsetType | None:
        """What stands for this lane."""
        return {Lane.INTERACTIVE: self.interactive, Lane.STANDARD: self.standard, Lane.BULK: self.bulk}[lane]


class LimitsDocument(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an administrator sets at one level.

    `rpm`, `tpm`: requests and charged tokens a minute. `concurrency`: requests in flight. `batch_cap`: seats in one
    replica's batch. `tokens_per_day`, `usd_per_month`: of the calendar in `time_zone`. `cached_token_discount`: the
    part of a cached token that is not charged; the smallest of all levels holds. `models`, `surfaces`: those that every
    level names. The lowest level that sets `weight`, `time_zone`, `shadow`, `sharing_group` or `response_cache`
    decides.
    """

    rpm: Count | UnsetType | None = UNSET
    tpm: Tokens | UnsetType | None = UNSET
    tokens_per_day: Tokens | UnsetType | None = UNSET
    usd_per_month: Usd | UnsetType | None = UNSET
    time_zone: ZoneName | UnsetType | None = UNSET
    cached_token_discount: Ratio | UnsetType | None = UNSET
    shadow: bool | UnsetType | None = UNSET
    sharing_group: GroupName | UnsetType | None = UNSET
    concurrency: LaneCounts | UnsetType | None = UNSET
    batch_cap: LaneCounts | UnsetType | None = UNSET
    weight: Weight | UnsetType | None = UNSET
    models: Annotated[list[ModelName], Meta(max_length=MAX_MODELS)] | UnsetType | None = UNSET
    surfaces: list[SurfacePath] | UnsetType | None = UNSET
    max_lane: Lane | UnsetType | None = UNSET
    default_lane: Lane | UnsetType | None = UNSET
    response_cache: ResponseCaching | UnsetType | None = UNSET


_DECODER = msgspec.json.Decoder(LimitsDocument)


def parse_limits(document: bytes) -> LimitsDocument:
    """The document, if every field of it is known and in range. Raises `LimitsError` naming the field."""
    if len(document) > MAX_DOCUMENT_BYTES:
        raise LimitsError(f"a limits document has at most {MAX_DOCUMENT_BYTES} bytes", None)
    try:
        parsed = _DECODER.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        field = bad_field(str(error), document)
        raise LimitsError(f"not a limits document: {plainly(str(error), field)}", field) from error
    _refuse_contradiction(parsed.max_lane, parsed.default_lane)
    if isinstance(parsed.time_zone, str) and not is_time_zone(parsed.time_zone):
        raise LimitsError("time_zone is no IANA time zone that this machine knows, such as Europe/Berlin", "time_zone")
    return parsed


def _refuse_contradiction(max_lane: Lane | UnsetType | None, default_lane: Lane | UnsetType | None) -> None:
    if isinstance(max_lane, Lane) and isinstance(default_lane, Lane) and not default_lane.is_within(max_lane):
        raise LimitsError("default_lane is above max_lane", "default_lane")


def bad_field(fault: str, document: bytes) -> str | None:
    """The field that a msgspec error is about: by its path and name, or the key before the malformed byte."""
    path = re.search(r"at `\$\.([^`]+)`", fault)
    named = re.search(r"field `([^`]+)`", fault)
    if path or named:
        return ".".join(found[1] for found in (path, named) if found)
    if malformed := re.search(r"\(byte (\d+)\)", fault):
        before = re.search(rb'"([^"\\]{1,128})"\s*:\s*-?$', document[: int(malformed[1])])
        return before[1].decode(errors="replace") if before else None
    return None


def encode_limits(document: LimitsDocument) -> bytes:
    """The document as JSON: what is absent stays absent, what is null stays null."""
    return msgspec.json.encode(document)


def effective(*levels: LimitsDocument, default: Limits = DEFAULT) -> Limits:
    """What holds at the lowest of the levels, given from the organisation down.

    `default` holds where no level says anything; a level may lift or exceed it, but no level may exceed another above.
    """
    max_lane = _narrowest_lane([level.max_lane for level in levels], default.max_lane)
    default_lane = _last_set([level.default_lane for level in levels], default.default_lane)
    concurrency = _by_lane([level.concurrency for level in levels], default.concurrency)
    batch_cap = _by_lane([level.batch_cap for level in levels], default.batch_cap)
    discount = _smallest([level.cached_token_discount for level in levels], default.cached_token_discount)
    return Limits(
        rpm=_smallest([level.rpm for level in levels], default.rpm),
        concurrency=concurrency or None,
        batch_cap=batch_cap or None,
        tpm=_smallest([level.tpm for level in levels], default.tpm),
        tokens_per_day=_smallest([level.tokens_per_day for level in levels], default.tokens_per_day),
        usd_per_month=_smallest([level.usd_per_month for level in levels], default.usd_per_month),
        time_zone=_last([level.time_zone for level in levels], default.time_zone),
        cached_token_discount=discount or 0.0,
        shadow=_last([level.shadow for level in levels], default.shadow),
        sharing_group=_last([level.sharing_group for level in levels], default.sharing_group),
        weight=_last([level.weight for level in levels], default.weight),
        models=_common([level.models for level in levels], default.models),
        surfaces=_common([level.surfaces for level in levels], default.surfaces),
        max_lane=max_lane,
        response_cache=_last([level.response_cache for level in levels], default.response_cache),
        default_lane=default_lane if default_lane.is_within(max_lane) else max_lane,
    )


def _by_lane(levels: list[LaneCounts | UnsetType | None], default: dict[Lane, int] | None) -> dict[Lane, int]:
    """The smallest number of each lane that has one."""
    found = {}
    for lane in Lane:
        counts = [level.of(lane) if isinstance(level, LaneCounts) else level for level in levels]
        most = _smallest(counts, None if default is None else default.get(lane))
        if most is not None:
            found[lane] = most
    return found


def _smallest(levels: list[T | UnsetType | None], default: T | None) -> T | None:
    numbers = [value for value in levels if isinstance(value, int | float)]
    if numbers:
        return min(numbers)
    return None if None in levels else default


def _common(
    levels: Sequence[Sequence[str] | UnsetType | None], default: frozenset[str] | None
) -> frozenset[str] | None:
    allowed = [frozenset(names) for names in levels if isinstance(names, list)]
    if allowed:
        return frozenset.intersection(*allowed)
    return None if None in levels else default


def _narrowest_lane(levels: list[Lane | UnsetType | None], default: Lane) -> Lane:
    lanes = [lane for lane in levels if isinstance(lane, Lane)]
    if lanes:
        return max(lanes, key=lambda lane: lane.rank)
    return Lane.INTERACTIVE if None in levels else default


def _last(levels: list[T | UnsetType | None], default: T) -> T:
    """The lowest level's word; null there means the default, as without any setting."""
    for value in reversed(levels):
        if not isinstance(value, UnsetType):
            return default if value is None else value
    return default


def _last_set(levels: list[Lane | UnsetType | None], default: Lane) -> Lane:
    """The lowest level's word; null there means the highest lane, as without any setting."""
    for lane in reversed(levels):
        if lane is None:
            return Lane.INTERACTIVE
        if isinstance(lane, Lane):
            return lane
    return default
