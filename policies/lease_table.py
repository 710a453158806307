"""How many units of each shared resource each gateway may hold: the rule behind every lease, for tests and simulation.

The same rule runs inside Redis as a script (`policies/redis_lease_script.py`); one test drives both with the same
reports. Granted units follow demand by max-min fairness, are never taken while in use, and return when a gateway is
silent for a lease. Times are whole milliseconds inside, as in Redis. Knows no clock and no network.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.fair_shares import Want, fair_shares
from policies.leases import LEASE_S, Ask, Grants, Report

RESERVE_PARTS = 8  # at most an eighth of a limit waits for gateways that have no demand yet
QUANTA_PER_LEASE = 16  # an odd unit stays where it is for so long, though others have had less of it


@dataclass(slots=True)
class _Record:
    """A living gateway."""

    epoch: int
    seq: int
    expires_ms: int


@dataclass(slots=True)
class _Entry:
    """What one gateway has of one resource, in one epoch. `served`: unit-milliseconds held so far, as of `at_ms`."""

    epoch: int
    held: int
    in_use: int
    wanted: int
    limit: int
    expires_ms: int
    served: int
    at_ms: int

    def served_by(self, now_ms: int, lease_ms: int) -> int:
        """Service up to now, halved with every lease, so that nobody waits long for what it had long ago.

        Halved for all at the same moments, or the order would depend on who looks.
        """
        num_halvings = max(0, min(now_ms // lease_ms - self.at_ms // lease_ms, 32))
        return (self.served >> num_halvings) + self.held * max(0, now_ms - self.at_ms)


@dataclass(slots=True)
class _Call:
    """One report being taken in. `is_fenced`: what it says it holds was given to others already."""

    gateway: str
    epoch: int
    now_ms: int
    is_recovering: bool
    is_fenced: bool
    contended: dict[str, None]
    unused: list[int]


class LeaseTable:
    """All gateways and what they hold. `now` is one clock for all calls.

    If it is set back, nothing ends later than a lease from then, or the dead would keep what they held meanwhile.
    """

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self._lease_ms = round(lease_s * 1000)
        self._gateways: dict[str, _Record] = {}
        self._entries: dict[str, dict[str, _Entry]] = {}
        self._last_epoch = 0
        self._recovered_ms: int | None = None  # None: nothing is known of who holds what

    def renew(self, report: Report, now: float) -> Grants:
        """Take in a report and grant what can be; one lease from now it is void."""
        now_ms = round(now * 1000)
        self._open(now_ms)
        record = self._gateways.get(report.gateway)
        if record is not None and report.seq <= record.seq:
            return Grants(record.epoch, len(self._gateways), (), is_stale=True)
        is_recovering = now_ms < (self._recovered_ms or 0)
        is_fenced = record is None and not is_recovering
        record = self._admit(report, record, now_ms)
        call = _Call(report.gateway, record.epoch, now_ms, is_recovering, is_fenced, {}, [])
        allowed = tuple(self._settle(call, ask) for ask in report.asks)
        contended, unused = tuple(call.contended), tuple(call.unused)
        return Grants(record.epoch, len(self._gateways), allowed, is_recovering, False, contended, unused)

    def bury(self, gateway: str) -> bool:
        """A gateway is known to be dead, or has ended: its units are free now. Whether it was living."""
        was_living = self._gateways.pop(gateway, None) is not None
        self._drop({gateway})
        return was_living

    def forget(self) -> None:
        """All is lost, as when a store restarts without its memory."""
        self._gateways.clear()
        self._entries.clear()
        self._recovered_ms = None
        self._last_epoch = 0

    def held(self, resource: str, now: float) -> dict[str, int]:
        """Units by gateway, as granted."""
        return {gateway: entry.held for gateway, entry in self._living(resource, round(now * 1000)).items()}

    def _open(self, now_ms: int) -> None:
        """Drop the silent. Nothing is granted for a lease when everyone was silent, or nothing is known at all.

        Whoever still holds something says so in that time, and whoever cannot has stopped using it by its end.
        """
        latest_ms = now_ms + self._lease_ms  # what ends later was said before the clock was set back
        for record in self._gateways.values():
            record.expires_ms = min(record.expires_ms, latest_ms)
        self._recovered_ms = None if self._recovered_ms is None else min(self._recovered_ms, latest_ms)
        silent = {gateway for gateway, record in self._gateways.items() if record.expires_ms <= now_ms}
        for gateway in silent:
            del self._gateways[gateway]
        self._drop(silent)
        if self._recovered_ms is None or (silent and not self._gateways):
            self._recovered_ms = now_ms + self._lease_ms

    def _drop(self, gone: set[str]) -> None:
        if gone:
            kept = {
                resource: {name: entry for name, entry in entries.items() if name not in gone}
                for resource, entries in self._entries.items()
            }
            self._entries = {resource: entries for resource, entries in kept.items() if entries}

    def _admit(self, report: Report, record: _Record | None, now_ms: int) -> _Record:
        if record is None:
            self._last_epoch = max(self._last_epoch + 1, now_ms)  # never the same again, also after all was lost
            record = self._gateways[report.gateway] = _Record(self._last_epoch, 0, 0)
        record.seq = report.seq
        record.expires_ms = now_ms + self._lease_ms
        return record

    def _living(self, resource: str, now_ms: int) -> dict[str, _Entry]:
        entries = self._entries.get(resource, {})
        return {
            gateway: entry
            for gateway, entry in entries.items()
            if entry.expires_ms > now_ms
            and (record := self._gateways.get(gateway)) is not None
            and record.epoch == entry.epoch
        }

    def _settle(self, call: _Call, ask: Ask) -> int:
        """The units allowed of one resource. What is recorded as held is never less than what may be in use."""
        held = ask.in_use if call.is_fenced else ask.held
        others = self._living(ask.resource, call.now_ms)
        before = others.pop(call.gateway, None)
        entry = self._renewed(call, ask, held, before, others)
        everyone = (entry, *others.values())
        call.unused.append(max(0, min(one.limit for one in everyone) - sum(one.in_use for one in everyone)))
        allowed = held if call.is_recovering else self._grant(call, ask, entry, others)
        entry.held = max(held, allowed)
        freed = (before.held if before else 0) - entry.held
        if freed > 0 and any(other.wanted > other.held for other in others.values()):
            call.contended[ask.resource] = None
        if entry.held or entry.wanted:
            others[call.gateway] = entry
        self._entries[ask.resource] = others
        if not others:
            del self._entries[ask.resource]
        return allowed

    def _renewed(self, call: _Call, ask: Ask, held: int, before: _Entry | None, others: Mapping[str, _Entry]) -> _Entry:
        """The gateway's own entry; a newcomer has had as much service as the least served, so none can be hoarded."""
        now_ms = call.now_ms
        if before is not None:
            served = before.served_by(now_ms, self._lease_ms)
        else:
            known = [other.served_by(now_ms, self._lease_ms) for other in others.values() if other.wanted]
            served = min(known, default=0)
        expires_ms = now_ms + self._lease_ms
        return _Entry(call.epoch, held, ask.in_use, ask.wanted, ask.limit, expires_ms, served, now_ms)

    def _grant(self, call: _Call, ask: Ask, entry: _Entry, others: Mapping[str, _Entry]) -> int:
        """The gateway's share now: more only out of units nobody holds, less as soon as it has them unused."""
        resource, is_urgent = ask.resource, ask.is_urgent
        everyone = {**others, call.gateway: entry}
        wants = {
            name: Want(one.wanted, one.held, one.served_by(call.now_ms, self._lease_ms))
            for name, one in everyone.items()
            if one.wanted
        }
        whole = min(one.limit for one in everyone.values())  # a lowered limit holds as soon as one has heard of it
        num_gateways = len(self._gateways)
        num_idle = 0 if is_urgent else num_gateways - len(wants)  # who can call for units needs none kept for it
        limit = whole - num_idle * (whole // (RESERVE_PARTS * num_gateways))
        shares = fair_shares(limit, wants, self._lease_ms // QUANTA_PER_LEASE)
        share = shares.get(call.gateway, 0)
        if entry.wanted:
            spare = max(0, limit - sum(shares.values()))
            share += min((entry.wanted + 1) // 2, spare // 2)  # so that a small rise needs no round trip
        held_by_others = sum(one.held for one in others.values())
        allowed = min(share, max(entry.held, limit - held_by_others))
        allowed = max(0, min(allowed, whole - held_by_others))  # what is in use beyond its lease is not taken again
        if allowed < min(share, entry.wanted) and any(
            one.held > max(one.in_use, shares.get(name, 0)) for name, one in others.items()
        ):
            call.contended[resource] = None
        if is_urgent and held_by_others and allowed < min(whole, entry.wanted):
            call.contended[resource] = None
        return allowed
