"""The audit log as a stream in Redis: the commands that add to it and trim it, and how it is read. Holds no rule."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from policies.audit import MAX_SCANNED, ActorKind, AuditEntry, AuditKeep, AuditWanted, Author, Change
from policies.redis_transactions import Commands
from policies.store import MAX_PAGE, Page, StoreError

_POSITION = re.compile(r"\d{1,16}-\d{1,16}")
_STEP = 1000  # entries a round trip: a page of filtered ones reads several

Read = Callable[[list[tuple[Any, ...]]], Awaitable[list[Any]]]


class _Row(msgspec.Struct):
    at: float
    actor_kind: ActorKind
    actor: str
    request_id: str
    action: str
    subject_id: str
    organization_id: str | None
    project_id: str | None
    before: str | None
    after: str | None


class AuditStream:
    """The stream of this name. `keep`: what is older, or one too many, goes when the next one is added."""

    def __init__(self, name: str, keep: AuditKeep) -> None:
        self._name = name
        self._keep = keep

    def entry(self, change: Change, by: Author, now: float) -> Commands:
        """What adds one entry, for the transaction of its change."""
        row = _Row(
            at=now,
            actor_kind=by.kind,
            actor=by.subject,
            request_id=by.request_id,
            action=change.action,
            subject_id=change.subject_id,
            organization_id=change.organization_id,
            project_id=change.project_id,
            before=None if change.before is None else change.before.decode(),
            after=None if change.after is None else change.after.decode(),
        )
        oldest = f"{int(self._keep.oldest(now) * 1000)}-0"
        return [
            ("XADD", self._name, "MAXLEN", self._keep.entries, "*", "entry", msgspec.json.encode(row)),
            ("XTRIM", self._name, "MINID", oldest),
        ]

    async def page(self, read: Read, wanted: AuditWanted, limit: int, after: str | None) -> Page[AuditEntry]:
        """Entries older than `after`, the newest first. Raises `ValueError` for an `after` that is no position.

        Looks at `MAX_SCANNED` entries at most: then the page is short and the next one goes on from there.
        """
        if after is not None and not _POSITION.fullmatch(after):
            raise ValueError("not a position in the audit log")
        limit = max(1, min(limit, MAX_PAGE))
        found: list[AuditEntry] = []
        num_scanned = 0
        while num_scanned < MAX_SCANNED:
            (rows,) = await read(
                [("XREVRANGE", self._name, "+" if after is None else f"({after}", "-", "COUNT", _STEP)]
            )
            entries = [_entry(*row) for row in rows]
            for number, entry in enumerate(entries):
                if not wanted.takes(entry):
                    continue
                found.append(entry)
                if len(found) == limit:
                    is_last = number == len(entries) - 1 and len(entries) < _STEP
                    return Page(tuple(found), None if is_last else entry.id)
            if len(entries) < _STEP:
                return Page(tuple(found), None)
            num_scanned += len(entries)
            after = entries[-1].id
        return Page(tuple(found), after)


def _entry(position: bytes, fields: Any) -> AuditEntry:
    content = fields[b"entry"] if isinstance(fields, dict) else fields[1]
    try:
        row = msgspec.json.decode(content, type=_Row)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"something in the audit log is not what it should be: {error}") from error
    before, after = (None if one is None else one.encode() for one in (row.before, row.after))
    change = Change(row.action, row.subject_id, row.organization_id, row.project_id, before, after)
    return AuditEntry(position.decode(), row.at, Author(row.actor_kind, row.actor, row.request_id), change)
