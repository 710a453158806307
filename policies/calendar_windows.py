"""Days and months as people in a time zone count them, in Unix seconds.

A day begins at the first midnight of its date on the wall clock, or where the clock jumps over it, at the jump; so a
day has 23 or 25 hours when the clocks change. The windows follow each other without gap or overlap. Pure but for the
time zone rules, which `zoneinfo` reads once for each zone.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

_ZONE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
MAX_ZONE_NAME = 64
# Files that stand beside the zones and can be read as one: what the machine's clock shows, what an installer left open,
# and every zone a second time (`right` counts leap seconds, which Unix time does not).
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})
_NO_ZONE_FOLDERS = frozenset({"posix", "right"})
_LAST_DATE = date(9000, 1, 1)  # chosen: beyond it lies no wall clock, and the arithmetic would overflow
_A_DAY = timedelta(days=1)


class Window(NamedTuple):
    """`[starts_at, ends_at)` in whole Unix seconds."""

    starts_at: int
    ends_at: int


def is_time_zone(name: str) -> bool:
    """Whether this machine knows an IANA time zone of this name."""
    if len(name) > MAX_ZONE_NAME or not _ZONE_NAME.fullmatch(name):
        return False
    if name in _NO_ZONES or name.partition("/")[0] in _NO_ZONE_FOLDERS:
        return False
    try:
        _zone(name)
    except (ValueError, OSError, KeyError):  # malformed; a folder; not there
        return False
    return True


def day_window(unix: float, time_zone: str) -> Window:
    """The day that holds the instant. Raises `ZoneInfoNotFoundError` (a `KeyError`) for an unknown zone."""
    return _window(unix, time_zone, lambda day: day, lambda day: day + _A_DAY, lambda day: day - _A_DAY)


def month_window(unix: float, time_zone: str) -> Window:
    """The month that holds the instant. Raises as `day_window`."""
    return _window(
        unix,
        time_zone,
        lambda day: day.replace(day=1),
        lambda first: (first + timedelta(days=31)).replace(day=1),
        lambda first: (first - _A_DAY).replace(day=1),
    )


Step = Callable[[date], date]


def _window(unix: float, time_zone: str, first_of: Step, following: Step, preceding: Step) -> Window:
    """The stretch that holds the instant, found by instants: a wall clock may show a date twice, or never."""
    zone = _zone(time_zone)
    shown = datetime.fromtimestamp(unix, zone).date()
    first = first_of(min(shown, _LAST_DATE))
    starts_at, ends_at = _midnight(first, zone), _midnight(following(first), zone)
    while unix >= ends_at and first < _LAST_DATE:  # the clock was set back over midnight: the new day had begun before
        first = following(first)
        starts_at, ends_at = ends_at, _midnight(following(first), zone)
    while unix < starts_at:
        first = preceding(first)
        starts_at, ends_at = _midnight(first, zone), starts_at
    return Window(starts_at, ends_at)


def _midnight(day: date, zone: tzinfo) -> int:
    """The first instant of a date. `fold=0` is the earlier of two midnights, and the jump where there is none."""
    return int(datetime.combine(day, time(), zone).timestamp())


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)  # the default holds also where no time zones are installed
