"""The ledger of many nodes: rows and totals in Redis, which lets each go when its time is over. Holds no rule.

Everything lies in one slot of a Cluster, since a batch is one step. A row takes about 1 kB of Redis's memory for as
long as rows are kept; totals take little.
"""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import msgspec
from redis.asyncio import Redis

from policies.ledger import (
    DAY_S,
    HOUR_S,
    MAX_PAGE,
    Group,
    LedgerRow,
    Retention,
    RowPage,
    Tally,
    Totals,
    UsagePage,
    Wanted,
)
from policies.ledger_totals import (
    Share,
    Span,
    Stretches,
    cursor_of,
    day_start,
    group_of,
    in_order,
    matches,
    page_of,
    read_cursor,
    share_of,
    spans_of,
    tallied,
    totals_of,
)
from policies.redis_ledger_script import add_batch
from policies.redis_link import RedisLink
from policies.store import StoreError

CALL_S = 5.0  # off every request's path
BATCH_ROWS = 200  # chosen: about 1 ms of Redis's one thread
PURGE_ROWS = 2000
_CHUNK = 64  # hashes or days read in one round trip
_SUMS = Totals.__struct_fields__
_encode_row = msgspec.json.Encoder().encode
_decode_row = msgspec.json.Decoder(LedgerRow).decode
_decode_whose = msgspec.json.Decoder(tuple[str, str, str, str, str]).decode


class _Names:
    """The names of one ledger in Redis; one hash tag, so that a batch is one slot's."""

    def __init__(self, prefix: str) -> None:
        self._root = f"{prefix}:{{ledger}}:"
        self.any = self._root  # says which server of a Cluster has all of them

    def row(self, request_id: str) -> str:
        """String: one row."""
        return f"{self._root}row:{request_id}"

    def order(self, day: int) -> str:
        """Sorted set: the ids of a day's rows by `started_at`."""
        return f"{self._root}order:{day}"

    def known(self, length_s: int) -> str:
        """Sorted set: the starts of the hours or days that hold something."""
        return f"{self._root}known:{length_s}"

    def totals(self, length_s: int, starts_at: int) -> str:
        """Hash: whose, and the number of a sum from 1 -> the sum."""
        return f"{self._root}totals:{length_s}:{starts_at}"


class RedisLedger:
    """`policies.ledger.Ledger` in Redis. Made with `open`. For one event loop."""

    num_restored = 0  # no file of ours

    def __init__(
        self, link: RedisLink, keep: Retention, prefix: str = "warmlane", clock: Callable[[], float] = time.time
    ) -> None:
        """`clock`: Unix seconds."""
        self._clock = clock
        self._link = link
        self._keep = keep
        self._names = _Names(prefix)
        self._is_closed = False

    @classmethod
    async def open(cls, url: str, keep: Retention, *, prefix: str = "warmlane") -> Self:
        """The ledger at `url`. Raises `StoreError`."""
        link = RedisLink(url)
        try:
            await link.check()
        except BaseException:
            await link.close()
            raise
        return cls(link, keep, prefix)

    async def add(self, rows: Sequence[LedgerRow]) -> int:
        """Keep and count what is new. Not all or none but in batches: what was added is passed over when repeated."""
        self._refuse_if_closed()
        fresh = 0
        for hour, group in itertools.groupby(sorted(rows, key=_hour_of), key=_hour_of):
            within = list(group)
            for start in range(0, len(within), BATCH_ROWS):
                keys, values = self._batch(hour, within[start : start + BATCH_ROWS])
                fresh += await self._link.call(
                    lambda redis: add_batch(redis, keys, values),  # noqa: B023
                    timeout_s=CALL_S,
                    key=self._names.any,
                )
        return fresh

    async def row(self, request_id: str) -> LedgerRow | None:
        """One row."""
        (found,) = await self._read([("GET", self._names.row(request_id))])
        return None if found is None else _parsed(found)

    async def rows(self, wanted: Wanted, *, limit: int = MAX_PAGE, after: str | None = None) -> RowPage:
        """Rows in order of time. Raises `ValueError` for a bad `after`."""
        limit = max(1, min(limit, MAX_PAGE))
        found: list[LedgerRow] = []
        for day in await self._known(DAY_S, wanted.starts_at - wanted.starts_at % DAY_S, wanted.ends_at):
            async for row in self._of_day(day, wanted.starts_at, wanted.ends_at, after):
                if matches(share_of(row), wanted):
                    found.append(row)
                    if len(found) > limit:
                        return RowPage(tuple(found[:limit]), cursor_of(found[limit - 1]))
        return RowPage(tuple(found), None)

    async def usage(
        self, wanted: Wanted, group_by: Group, *, limit: int = MAX_PAGE, after: str | None = None
    ) -> UsagePage:
        """Sums by group. Raises `ValueError` for a bad `after`."""
        if group_by is Group.DAY and after is not None:
            day_start(after)
        groups: dict[str, Totals] = {}
        for span in spans_of(wanted.starts_at, wanted.ends_at):
            async for starts_at, share, totals in self._totals(span):
                if matches(share, wanted):
                    groups.setdefault(group_of(group_by, share, starts_at), Totals()).add(totals)
        return page_of(groups, max(1, min(limit, MAX_PAGE)), after)

    async def hours(self, starts_at: int, ends_at: int) -> list[Tally]:
        """Sums by project and hour."""
        found: Stretches = {}
        async for hour, share, totals in self._totals(Span(HOUR_S, starts_at, ends_at)):
            found.setdefault((share.organization, share.project, hour), Totals()).add(totals)
        return in_order(found)

    async def tally(self, starts_at: float, ends_at: float, every_s: int) -> list[Tally]:
        """Sums of rows by project and stretch of time."""
        rows: list[LedgerRow] = []
        for day in await self._known(DAY_S, int(starts_at) - int(starts_at) % DAY_S, ends_at):
            rows += [row async for row in self._of_day(day, starts_at, ends_at, None)]
        return tallied(rows, every_s)

    async def purge(self, now: float, keep: Retention) -> int:
        """Drop one batch of the order of days whose rows have gone. Rows and totals go by themselves."""
        names = self._names
        for day in await self._known(DAY_S, 0, now - keep.rows_days * DAY_S - DAY_S):
            (dropped,) = await self._read([("ZREMRANGEBYRANK", names.order(day), 0, PURGE_ROWS - 1)])
            if dropped:
                return int(dropped)
        ends = {HOUR_S: keep.hours_days, DAY_S: max(keep.rollups_days, keep.rows_days)}
        await self._read(
            [
                ("ZREMRANGEBYSCORE", names.known(length_s), "-inf", int(now) - days * DAY_S - 2 * DAY_S)
                for length_s, days in ends.items()
            ]
        )
        return 0

    async def close(self) -> None:
        """Let go of Redis. Harmless the second time."""
        self._is_closed = True
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<RedisLedger {self._link.name} {'closed' if self._is_closed else 'open'}>"

    def _batch(self, hour: int, rows: Sequence[LedgerRow]) -> tuple[list[str], list[Any]]:
        """Keys and values of the script for rows of one hour."""
        names, day = self._names, hour - hour % DAY_S
        own = [names.known(HOUR_S), names.known(DAY_S), names.order(day)]
        own += [names.totals(HOUR_S, hour), names.totals(DAY_S, day)]
        # A row that comes late is known for a day all the same: it may be replayed again.
        rows_end = max(day + (self._keep.rows_days + 1) * DAY_S, int(self._clock()) + DAY_S)
        hours_end, days_end = (day + (days + 2) * DAY_S for days in (self._keep.hours_days, self._keep.rollups_days))
        # One day more for the order, so that it can be dropped little by little when its rows have gone.
        values: list[Any] = [hour, day, rows_end, rows_end + 2 * DAY_S, hours_end, days_end, len(_SUMS)]
        for row in rows:
            values += [row.request_id, repr(row.started_at), _encode_row(row), _encode_row(share_of(row))]
            values += msgspec.structs.astuple(totals_of(row))
        return own + [names.row(row.request_id) for row in rows], values

    async def _known(self, length_s: int, first: float, before: float) -> list[int]:
        """The starts of the hours or days in `[first, before)` that hold something."""
        found = await self._read([("ZRANGEBYSCORE", self._names.known(length_s), first, f"({before}")])
        return [int(start) for start in found[0]]

    async def _of_day(self, day: int, starts_at: float, ends_at: float, after: str | None) -> AsyncIterator[LedgerRow]:
        """A day's rows in order of (`started_at`, id), from a cursor on."""
        since, last_id = read_cursor(after) if after is not None else (starts_at, "")
        offset = 0
        while True:
            span = (repr(max(float(since), float(starts_at))), f"({float(ends_at)!r}")
            command = ("ZRANGEBYSCORE", self._names.order(day), *span, "WITHSCORES", "LIMIT", offset, MAX_PAGE)
            (found,) = await self._read([command])
            pairs = zip(found[::2], found[1::2], strict=True)
            ids = [one.decode() for one, score in pairs if float(score) > since or one.decode() > last_id]
            for row in await self._rows_of(ids):
                yield row
            if len(found) < 2 * MAX_PAGE:
                return
            offset += MAX_PAGE

    async def _rows_of(self, ids: list[str]) -> list[LedgerRow]:
        if not ids:
            return []
        (found,) = await self._read([("MGET", *map(self._names.row, ids))])
        return [_parsed(one) for one in found if one is not None]

    async def _totals(self, span: Span) -> AsyncIterator[tuple[int, Share, Totals]]:
        """(`starts_at`, whose, a part of the totals) of everything in the span."""
        starts = await self._known(span.length_s, span.starts_at, span.ends_at)
        for chunk in (starts[at : at + _CHUNK] for at in range(0, len(starts), _CHUNK)):
            answers = await self._read([("HGETALL", self._names.totals(span.length_s, start)) for start in chunk])
            for start, fields in zip(chunk, answers, strict=True):
                for share, totals in _totals_of(fields):
                    yield start, share, totals

    async def _read(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        self._refuse_if_closed()

        async def together(redis: Redis) -> list[Any]:
            async with redis.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                answers: list[Any] = await pipe.execute()
                return answers

        return await self._link.call(together, timeout_s=CALL_S, key=self._names.any)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreError(f"the ledger {self._link.name} is closed")


def _hour_of(row: LedgerRow) -> int:
    second = int(row.started_at)
    return second - second % HOUR_S


def _totals_of(fields: dict[bytes, bytes]) -> Iterator[tuple[Share, Totals]]:
    """Whose totals a hash holds: a field is the JSON list of a share followed by the number of a sum."""
    for field, amount in fields.items():
        whose, _, number = field.rpartition(b"]")
        totals = Totals()
        setattr(totals, _SUMS[int(number) - 1], int(amount))
        yield Share(*_decode_whose(whose + b"]")), totals


def _parsed(row: bytes) -> LedgerRow:
    try:
        return _decode_row(row)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"something in the ledger is not what it should be: {error}") from error
