"""What a gateway writes down of each request, as lines of a file: an intent before it is sent, the record at its end.

An intent is a JSON list, a record a JSON object, so a line that was cut short is neither. The last line of a file whose
story goes on in the next one is `CONTINUED`. A whole line that cannot be read is told as one, never passed over: it is
some request's charge.
"""

from collections.abc import Iterator

import msgspec

from observability.records import RequestRecord
from policies.ledger import RECOVERED, LedgerRow

CONTINUED = b'"continued"\n'
# An engine's numbers are believed, but one that has gone mad must not make sums overflow a ledger's 64 bits.
MOST_TOKENS = 2**40
MOST_NANOUSD = 10**13  # ten thousand dollars for one request


class Intent(msgspec.Struct, array_like=True, frozen=True):
    """What is known of a request when it is about to be sent to an engine. Never remove or reorder a field.

    `started_at`: Unix seconds. `reserved_*`: what it is charged if its end is never told.
    """

    request_id: str
    started_at: float
    organization: str
    project: str
    key: str
    model: str
    lane: str
    surface: str
    reserved_tokens: int = 0
    reserved_nanousd: int | None = None
    predicted_hit_tokens: int | None = None


class Unreadable(msgspec.Struct, frozen=True):
    """A whole line that is neither. `request_id`: whose record it seems to be, empty if that cannot be read either."""

    request_id: str = ""


Line = Intent | RequestRecord | Unreadable | None  # None: CONTINUED

encode = msgspec.json.Encoder().encode
_decode_intent = msgspec.json.Decoder(Intent).decode
_decode_record = msgspec.json.Decoder(RequestRecord).decode
_decode_id = msgspec.json.Decoder(Unreadable).decode
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def parse(data: bytes) -> Iterator[Line]:
    """What stands in whole lines."""
    for line in data.split(b"\n"):
        try:
            if line.startswith(b"["):
                yield _decode_intent(line)
            elif line.startswith(b"{"):
                yield _decode_record(line)
            elif line == CONTINUED[:-1]:
                yield None
            elif line:
                yield Unreadable()
        except _BROKEN:
            yield _unreadable(line)


def _unreadable(line: bytes) -> Unreadable:
    try:
        return _decode_id(line)
    except _BROKEN:
        return Unreadable()


def row_of(record: RequestRecord) -> LedgerRow:
    """The row of a request that ended."""
    return LedgerRow(
        request_id=record.request_id,
        started_at=record.started_at,
        ended_at=record.started_at + record.duration_s,
        organization=record.organization,
        project=record.project,
        key=record.key,
        model=record.model,
        lane=record.lane,
        surface=record.surface,
        outcome=record.outcome,
        status=record.status,
        reason=record.reason,
        limit=record.limit,
        attempts=record.attempts,
        replica=record.replica,
        queue_s=record.queue_s,
        ttft_s=record.ttft_s,
        predicted_hit_tokens=_tokens(record.predicted_hit_tokens),
        reserved_tokens=_tokens(record.reserved_tokens),
        prompt_tokens=_tokens(record.prompt_tokens),
        cached_tokens=_tokens(record.cached_tokens),
        completion_tokens=_tokens(record.completion_tokens),
        charged_tokens=_tokens(record.charged_tokens) or 0,
        cost_nanousd=_nanousd(record.cost_nanousd),
        is_estimated=record.is_estimated,
    )


def recovered_row(intent: Intent, now: float) -> LedgerRow:
    """The row of a request whose gateway died: charged what it had reserved. `now`: Unix seconds."""
    return LedgerRow(
        request_id=intent.request_id,
        started_at=intent.started_at,
        ended_at=max(now, intent.started_at),
        organization=intent.organization,
        project=intent.project,
        key=intent.key,
        model=intent.model,
        lane=intent.lane,
        surface=intent.surface,
        outcome=RECOVERED,
        status=0,
        attempts=1,
        predicted_hit_tokens=_tokens(intent.predicted_hit_tokens),
        reserved_tokens=_tokens(intent.reserved_tokens),
        charged_tokens=_tokens(intent.reserved_tokens) or 0,
        cost_nanousd=_nanousd(intent.reserved_nanousd),
        is_estimated=True,
        recovered=True,
    )


def _tokens(count: int | None) -> int | None:
    return count if count is None or count < MOST_TOKENS else MOST_TOKENS


def _nanousd(amount: int | None) -> int | None:
    return amount if amount is None or amount < MOST_NANOUSD else MOST_NANOUSD
