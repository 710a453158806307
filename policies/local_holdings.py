"""A gateway's leased units, among several gateways: what it may take now, and what it reports.

The order of things keeps the sum within the limit: a gateway lowers what it may use before it says so, and raises it
only after it was told. Knows no clock and no network.
"""

from collections.abc import Callable, Collection, Iterator

from policies.holding import Holding
from policies.leases import LEASE_S, MAX_PER_REPORT, MAX_RESOURCES, TRUSTED_RATIO, Ask, Grants, Report, family_of

LONGEST_GAP = 3 / 8  # of a lease, between reports that fail: one every quarter, and its time to fail
FRESH_S = 0.05  # chosen: what was granted is not given up again before whoever waited for it could take it
DRY_S = 0.2  # chosen: once others had no unit to give, whoever else lacks one is refused at once for so long


class LocalHoldings:
    """`Holdings` of one gateway among several.

    `gateway`: unique to this run of the process. `on_press`: called when a report should go out soon; at most once
    until `due` was asked. `fallback_families`: resources of which `limit // num_gateways` may be used once the store
    has not answered for a lease. That keeps the sum within the limit when the store is away for all gateways, but not
    when it is away for some: then each that is cut off may add its share. Empty: nothing new without a lease.
    `urgent_families`: resources whose takers are refused, not queued; what lies unused is called for.
    """

    def __init__(
        self,
        gateway: str,
        *,
        lease_s: float = LEASE_S,
        fallback_families: Collection[str] = (),
        urgent_families: Collection[str] = (),
        max_resources: int = MAX_RESOURCES,
        on_press: Callable[[], None] = lambda: None,
    ) -> None:
        self.gateway = gateway
        self.lease_s = lease_s
        self.on_press = on_press
        self.num_gateways = 0  # living ones, as last told; 0: never told
        self.is_recovering = False  # as last told: nothing new is granted for a while
        self._fallback_families = frozenset(fallback_families)
        self._urgent_families = frozenset(urgent_families)
        self._max_resources = max_resources
        self._window_s = lease_s / 4
        self._holdings: dict[str, Holding] = {}
        self._pressed: dict[str, None] = {}
        self._epoch = 0
        self._seq = 0
        self._joined_at = 0.0
        self._renewed_at = float("-inf")
        self._failed_at: tuple[float, float] | None = None  # when the first and the last report since then failed

    def try_take(self, resource: str, limit: int, now: float, waiting: int = 1) -> bool:
        """Whether a unit was taken. A refusal is noted as demand, and pressed for if another gateway may have one."""
        holding = self._holdings.get(resource)
        if holding is None:
            if limit <= 0 or len(self._holdings) >= self._max_resources:
                return False
            holding = self._holdings[resource] = Holding(now)
        holding.limit = limit
        if holding.in_use < self._usable(resource, holding, now):
            holding.in_use += 1
            holding.fresh_until = now
            holding.note(holding.in_use, now, self._window_s)
            return True
        holding.note(holding.in_use + waiting, now, self._window_s)
        if holding.in_use < limit and now >= holding.dry_until:
            self._lack(resource, holding)
        return False

    def can_take(self, resource: str, now: float) -> bool:
        """Whether a unit of a resource that was refused here could be taken now. Does not mutate."""
        holding = self._holdings.get(resource)
        return holding is not None and holding.in_use < self._usable(resource, holding, now)

    def may_come(self, resource: str, now: float) -> bool:
        """Whether others may have a unit to give: there is a lease, they hold some, and were not asked just now."""
        holding = self._holdings.get(resource)
        if holding is None or not self.has_lease(now):
            return False
        return holding.in_use < holding.limit and now >= holding.dry_until

    def unused(self, resource: str) -> int:
        """Units that nobody uses, as far as everyone has told: somebody may still be about to give them up."""
        holding = self._holdings.get(resource)
        return 0 if holding is None else holding.unused

    def ask_for(self, resource: str, now: float) -> None:
        """One more is still waited for."""
        holding = self._holdings.get(resource)
        if holding is not None:
            holding.note(holding.in_use + 1, now, self._window_s)
            self._lack(resource, holding)

    def note_dry(self, resource: str, now: float) -> None:
        """A unit was waited for in vain: who lacks one is refused at once for a while, unless more is granted."""
        holding = self._holdings.get(resource)
        if holding is not None:
            holding.dry_until = now + DRY_S

    def give_back(self, resource: str) -> None:
        """A taken unit is free again; if it was lent beyond what is allowed now, it goes back to the others soon."""
        holding = self._holdings.get(resource)
        assert holding is not None, f"{resource} was given back and never taken"
        assert holding.in_use > 0, f"{resource} was given back more often than taken"
        holding.in_use -= 1
        if holding.in_use >= holding.allowed or holding.is_called:
            self._press(resource)

    def relimit(self, resource: str, limit: int) -> None:
        """A limit changed; reported soon if the resource is held."""
        holding = self._holdings.get(resource)
        if holding is not None and holding.limit != limit:
            holding.limit = limit
            self._press(resource)

    def overdue(self, now: float) -> dict[str, int]:
        """Units in use beyond what this gateway may use without a valid lease.

        Others are granted them a tenth of a lease later. A gateway that ends their requests in that time keeps every
        limit exactly, also when it is cut off; one that lets them finish exceeds by them at most.
        """
        return {
            resource: holding.in_use - most
            for resource, holding in self._holdings.items()
            if holding.in_use
            and now >= holding.valid_until
            and holding.in_use > (most := self._fallback(resource, holding.limit, now))
        }

    def has_lease(self, now: float) -> bool:
        """Whether the store has answered recently enough to take anything new."""
        return now < self._renewed_at + self.lease_s * TRUSTED_RATIO

    def press(self, resources: Collection[str], now: float) -> None:
        """Another gateway lacks units of these, or has freed some: report on those that are held here soon."""
        for resource in resources:
            holding = self._holdings.get(resource)
            if holding is not None:
                if family_of(resource) in self._urgent_families:
                    holding.give_up(now)
                self._press(resource)

    def due(self, *, only_pressed: bool = False) -> Iterator[tuple[str, ...]]:
        """Names for one report each, all holdings or those pressed for; at least one report, which may be empty."""
        names = [name for name in self._pressed if name in self._holdings] if only_pressed else [*self._holdings]
        self._pressed = {}
        for begin in range(0, max(1, len(names)), MAX_PER_REPORT):
            yield tuple(names[begin : begin + MAX_PER_REPORT])

    def report(self, names: Collection[str], now: float) -> Report:
        """What to tell of these resources. What is not wanted any more is given up here already."""
        self._seq += 1
        asks = tuple(self._ask(name, now) for name in names if name in self._holdings)
        return Report(self.gateway, self._epoch, self._seq, now, asks)

    def apply(self, report: Report, grants: Grants) -> bool:
        """Take in the answer; whether any resource has more now than before. A stale one changes nothing."""
        if grants.is_stale or report.seq != self._seq:
            return False
        if grants.epoch != self._epoch:
            self._join(grants, report.sent_at)
        self.num_gateways = grants.num_gateways
        self.is_recovering = grants.is_recovering
        self._renewed_at = report.sent_at
        self._failed_at = None
        is_raised = False
        for ask, unused in zip(report.asks, grants.unused, strict=False):
            self._holdings[ask.resource].unused = unused
        for ask, allowed in zip(report.asks, grants.allowed, strict=True):
            most = self._holdings[ask.resource].allowed if grants.is_recovering else allowed
            is_raised |= self._allow(ask, min(allowed, most), report.sent_at)
        return is_raised

    def fail(self, report: Report) -> None:
        """There was no answer to the report; whether the store took it in is unknown, and does not matter."""
        first_at, last_at = self._failed_at or (report.sent_at, report.sent_at)
        if report.sent_at - last_at > self.lease_s * LONGEST_GAP:
            first_at = report.sent_at  # frozen in between; the store may have served the others meanwhile
        self._failed_at = (first_at, report.sent_at)

    def release(self) -> None:
        """Want nothing any more and give up all that is not in use; for a gateway that stops."""
        for holding in self._holdings.values():
            holding.allowed = holding.peak = holding.last_peak = 0

    def statistics(self) -> dict[str, int]:
        """`units_held`: those in use and those ready to be taken."""
        holdings = self._holdings.values()
        return {
            "units_in_use": sum(holding.in_use for holding in holdings),
            "units_held": sum(max(holding.in_use, holding.allowed) for holding in holdings),
            "resources": len(holdings),
        }

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in self.statistics().items())
        return f"<LocalHoldings {self.gateway} of {self.num_gateways} {counts}>"

    def _usable(self, resource: str, holding: Holding, now: float) -> int:
        if now < holding.valid_until:
            return min(holding.limit, holding.allowed)
        return self._fallback(resource, holding.limit, now)

    def _fallback(self, resource: str, limit: int, now: float) -> int:
        """What may be used without a lease, if the store is away for all: then every lease has ended by now.

        Each of the conditions keeps the shares of all gateways within the limit: this one was counted by the others
        (it had not just joined, and was in good standing when the store went away), it counted them, and it has not
        been frozen meanwhile (it saw the store fail just now).
        """
        if self._failed_at is None or not self.num_gateways or family_of(resource) not in self._fallback_families:
            return 0
        first_at, last_at = self._failed_at
        half_s = self.lease_s / 2
        had_been_counted = self._renewed_at - self._joined_at >= half_s and first_at - self._renewed_at <= half_s
        is_away_for_long = now >= first_at + self.lease_s and now - last_at <= half_s
        return limit // self.num_gateways if had_been_counted and is_away_for_long else 0

    def _lack(self, resource: str, holding: Holding) -> None:
        holding.is_lacking = family_of(resource) in self._urgent_families
        self._press(resource)

    def _press(self, resource: str) -> None:
        is_first = not self._pressed
        self._pressed[resource] = None
        if is_first:
            self.on_press()

    def _ask(self, resource: str, now: float) -> Ask:
        holding = self._holdings[resource]
        if holding.is_called:
            holding.give_up(now)
        holding.note(holding.in_use, now, self._window_s)
        if not holding.wanted:
            holding.allowed = 0
        elif now >= holding.valid_until:
            holding.allowed = self._fallback(resource, holding.limit, now)
        held, is_lacking = max(holding.allowed, holding.in_use), holding.is_lacking
        holding.is_lacking = False
        return Ask(resource, held, holding.in_use, holding.wanted, holding.limit, is_lacking)

    def _join(self, grants: Grants, sent_at: float) -> None:
        """The store counts us anew. Unless it is itself recovering what was granted, nothing else is ours any more."""
        if not grants.is_recovering:
            for holding in self._holdings.values():
                holding.allowed = 0
        self._epoch = grants.epoch
        self._joined_at = sent_at

    def _allow(self, ask: Ask, allowed: int, sent_at: float) -> bool:
        holding = self._holdings[ask.resource]
        is_raised = allowed > holding.allowed
        if is_raised:
            holding.fresh_until = sent_at + FRESH_S
            holding.dry_until = sent_at
        holding.allowed = allowed
        holding.valid_until = sent_at + self.lease_s * TRUSTED_RATIO
        if not ask.held and not allowed and not holding.wanted:
            del self._holdings[ask.resource]
        elif max(allowed, holding.in_use) < ask.held:
            self._press(ask.resource)
        return is_raised
