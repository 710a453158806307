"""How many units of each shared resource each gateway may hold: the rule behind every lease, for tests and simulation.

The same rule runs inside Redis as a script (`policies/redis_lease_script.py`); one test drives both with the same
reports. Granted units follow demand by max-min fairness, are never taken while in use, and return when a gateway is
silent for a lease. Times are whole milliseconds inside, as in Redis. Knows no clock and no network.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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

    def served_by(self, now_ms: int) -> int:
        return self.served + self.held * (now_ms - self.at_ms)


def fair_shares(limit: int, wants: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Each gateway's units by max-min fairness, from its (units wanted, quanta of service had).

    Units that do not divide go to those that had the least service; so with three units and four gateways no one goes
    without for long.
    """
    left, remaining = len(wants), max(0, limit)
    level = odd = 0
    for wanted in sorted(wanted for wanted, _ in wants.values()):
        if wanted * left > remaining:
            level, odd = divmod(remaining, left)
            break
        remaining -= wanted
        left -= 1
        level = wanted
    shares = {gateway: min(wanted, level) for gateway, (wanted, _) in wants.items()}
    short = sorted((served, gateway) for gateway, (wanted, served) in wants.items() if wanted > level)
    for _, gateway in short[:odd]:
        shares[gateway] += 1
    return shares


class LeaseTable:
    """All gateways and what they hold. `now` is one clock for all calls and never goes back."""

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
        contended: list[str] = []
        allowed = []
        for ask in report.asks:
            held = ask.in_use if is_fenced else ask.held
            allowed.append(self._settle(report.gateway, ask, held, now_ms, contended, is_recovering=is_recovering))
        return Grants(record.epoch, len(self._gateways), tuple(allowed), is_recovering, False, tuple(contended))

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

    def held(self, resource: str, now: float) -> dict[str, int]:
        """Units by gateway, as granted."""
        return {gateway: entry.held for gateway, entry in self._living(resource, round(now * 1000)).items()}

    def _open(self, now_ms: int) -> None:
        """Drop the silent. Nothing is granted for a lease when everyone was silent, or nothing is known at all.

        Whoever still holds something says so in that time, and whoever cannot has stopped using it by its end.
        """
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

    def _settle(
        self, gateway: str, ask: Ask, held: int, now_ms: int, contended: list[str], *, is_recovering: bool
    ) -> int:
        """The units allowed of one resource. What is recorded as held is never less than what may be in use."""
        entries = self._living(ask.resource, now_ms)
        before = entries.pop(gateway, None)
        entry = self._renewed(before, ask, held, now_ms, self._gateways[gateway].epoch, entries)
        others = sum(other.held for other in entries.values())
        entries[gateway] = entry
        allowed = held if is_recovering else self._grant(gateway, entries, others, now_ms, contended, ask.resource)
        entry.held = max(held, allowed)
        if entry.held == 0 and entry.wanted == 0:
            del entries[gateway]
        freed = (before.held if before else 0) - entry.held
        if freed > 0 and any(other.wanted > other.held for name, other in entries.items() if name != gateway):
            contended.append(ask.resource)
        self._entries[ask.resource] = entries
        if not entries:
            del self._entries[ask.resource]
        return allowed

    def _renewed(
        self, before: _Entry | None, ask: Ask, held: int, now_ms: int, epoch: int, others: Mapping[str, _Entry]
    ) -> _Entry:
        """The gateway's own entry; a newcomer has had as much service as the least served, so none can be hoarded."""
        if before is not None:
            served = before.served_by(now_ms)
        else:
            served = min((other.served_by(now_ms) for other in others.values() if other.wanted), default=0)
        expires_ms = now_ms + self._lease_ms
        return _Entry(epoch, held, ask.in_use, ask.wanted, ask.limit, expires_ms, served, now_ms)

    def _grant(
        self, gateway: str, entries: Mapping[str, _Entry], others: int, now_ms: int, contended: list[str], resource: str
    ) -> int:
        """The gateway's share now: more only out of units nobody holds, less as soon as it has them unused."""
        entry = entries[gateway]
        quantum = max(1, self._lease_ms // QUANTA_PER_LEASE)
        wants = {
            name: (other.wanted, other.served_by(now_ms) // quantum) for name, other in entries.items() if other.wanted
        }
        limit = min(other.limit for other in entries.values())  # a lowered limit holds as soon as one has heard of it
        num_gateways = len(self._gateways)
        limit -= (num_gateways - len(wants)) * (limit // (RESERVE_PARTS * num_gateways))
        shares = fair_shares(limit, wants)
        share = shares.get(gateway, 0)
        if entry.wanted:
            spare = max(0, limit - sum(shares.values()))
            share += min((entry.wanted + 1) // 2, spare // 2)  # so that a small rise needs no round trip
        if share <= entry.held:
            return share
        allowed = max(entry.held, min(share, limit - others))
        if allowed < min(share, entry.wanted) and any(
            other.held > max(other.in_use, shares.get(name, 0)) for name, other in entries.items() if name != gateway
        ):
            contended.append(resource)
        return allowed
