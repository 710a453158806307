"""What the admin plane and a team's own key are told of usage, and how a period is asked for. Times: Unix seconds."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from gateway.errors import ClientError
from policies.ledger import DAY_S, Group, LedgerRow, RowPage, UsagePage
from policies.meters import NANODOLLARS
from policies.prices import nanodollars

DEFAULT_DAYS = 30
YEAR_9999 = 253_402_300_799
_PERIOD = "as 2026-11-30, 2026-11-30T08:00:00Z or in Unix seconds"


class UsageRowBody(Struct, frozen=True):
    """What one group used. `refused` is a part of `requests`. `cost_usd`: of models that have a price."""

    group: str
    requests: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    charged_tokens: int
    cost_usd: float


class UsageList(Struct, frozen=True):
    """A page of groups in the order of their names; `next_cursor` is the next `after`."""

    data: list[UsageRowBody]
    next_cursor: str | None


class RequestRowBody(Struct, frozen=True, kw_only=True):
    """One request as the ledger has it. `recovered`: its gateway died, so it was charged what it had reserved.

    `limit`: which limit refused it, or in shadow mode would have. Token counts are null where nobody reported them.
    """

    request_id: str
    started_at: float
    ended_at: float
    organization: str
    project: str
    key: str
    model: str
    lane: str
    surface: str
    outcome: str
    status: int
    reason: str | None
    limit: str | None
    attempts: int
    replica: str | None
    queue_s: float | None
    ttft_s: float | None
    predicted_hit_tokens: int | None
    reserved_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    charged_tokens: int
    cost_usd: float | None
    is_estimated: bool
    recovered: bool


class RequestRowList(Struct, frozen=True):
    """A page of requests, the oldest first; `next_cursor` is the next `after`."""

    data: list[RequestRowBody]
    next_cursor: str | None


def usage_list(page: UsagePage) -> UsageList:
    """The body of a page of totals."""
    rows = []
    for row in page.rows:
        fields = msgspec.structs.asdict(row.totals)
        cost_usd = fields.pop("cost_nanousd") / NANODOLLARS
        rows.append(UsageRowBody(row.group, cost_usd=cost_usd, **fields))
    return UsageList(rows, page.next_after)


def request_row(row: LedgerRow) -> RequestRowBody:
    """The body of one row."""
    fields = msgspec.structs.asdict(row)
    nanousd = fields.pop("cost_nanousd")
    return RequestRowBody(cost_usd=None if nanousd is None else nanousd / NANODOLLARS, **fields)


def ledger_row(fields: Mapping[str, Any]) -> LedgerRow:
    """The row that a body was made of, from its JSON."""
    usd = fields["cost_usd"]
    plain = {name: fields[name] for name in LedgerRow.__struct_fields__ if name != "cost_nanousd"}
    return LedgerRow(cost_nanousd=None if usd is None else nanodollars(usd), **plain)


def request_list(page: RowPage) -> RequestRowList:
    """The body of a page of rows."""
    return RequestRowList([request_row(row) for row in page.rows], page.next_after)


def read_period(query: Mapping[str, str], now: float) -> tuple[int, int]:
    """`[from, to)` in whole Unix seconds; by default the last 30 days. Raises `ClientError`."""
    ends_at = read_moment(query["to"], "to") if "to" in query else int(now) + 1
    starts_at = read_moment(query["from"], "from") if "from" in query else max(0, ends_at - DEFAULT_DAYS * DAY_S)
    if starts_at >= ends_at:
        raise ClientError("from must be before to, which is not in the period", param="from", code="invalid_query")
    return starts_at, ends_at


def read_group(query: Mapping[str, str], default: Group) -> Group:
    """What to sum by. Raises `ClientError`."""
    try:
        return Group(query.get("group_by", default.value))
    except ValueError:
        names = ", ".join(group.value for group in Group)
        raise ClientError(f"group_by is one of {names}", param="group_by", code="invalid_query") from None


def read_moment(text: str, param: str) -> int:
    """Unix seconds of a date (midnight in UTC), of a time with its offset, or of a whole number."""
    try:
        if re.fullmatch(r"[0-9]{1,12}", text):
            moment = int(text)
        elif re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            moment = int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())
        else:
            read = datetime.fromisoformat(text)
            moment = int(read.timestamp()) if read.tzinfo is not None else -1
    except (ValueError, OverflowError):
        moment = -1
    if not 0 <= moment <= YEAR_9999:
        raise ClientError(f"{param} is given {_PERIOD}", param=param, code="invalid_query")
    return moment
