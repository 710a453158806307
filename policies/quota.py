"""What a tenant may use right now: of every limit of its project and its organisation, what is left.

All limits that are known on arrival (requests a minute, requests in flight) are taken in one step or none, and so are
tokens and money once the request is read. The limits come with the tenant at every call, so that a changed limit acts
at once. Knows no clock and no network; not for use from several threads.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace

from policies.in_flight import InFlight, UnitTake
from policies.lane import Lane
from policies.leases import Holdings
from policies.meters import Counted, Meters, Moment, Short, Standing, Take
from policies.quota_level import Level, organization_meters, project_meters
from policies.quota_plan import Plan
from policies.quota_refusal import Reason, Rejected, Scope, full, over
from policies.quota_standing import LimitStanding, standings, strictest, used_up
from policies.reservation import Counting, Expected, Reservation
from policies.sole_meters import SoleMeters, Used
from policies.tenant import Tenant

__all__ = ["Expected", "LimitStanding", "Quotas", "Reason", "Rejected", "Reservation", "Scope", "Standing"]

CONCURRENCY_RETRY_S = 1.0  # chosen: nobody knows when a request in flight will end, nor who else has room
PLAN_KEEP_S = 60.0  # chosen: a tenant that sends nothing for a minute is made ready again when it does
# Project id, organisation id (one of them empty: not of that level), what, Unix second it began, how much.
UsageRow = tuple[str, str, Counted, float, int]


class Quotas:
    """The limits of every tenant that was active in the last minute or has requests in flight.

    `reserve` looks at no more than two old tenants to drop, so its cost does not depend on how many there are.
    """

    def __init__(self, meters: Meters | None = None, holdings: Holdings | None = None) -> None:
        """`meters`: who counts; None: this process alone.

        `holdings`: of whom the units of requests in flight are leased where several gateways count those together;
        None: this process counts them alone.
        """
        self._leased = None if holdings is None else InFlight(holdings)
        self._meters = meters if meters is not None else SoleMeters()
        self._sole = self._meters if isinstance(self._meters, SoleMeters) and holdings is None else None
        self._counts_all = isinstance(self._meters, SoleMeters)  # elsewhere a count costs what others may use
        self._plans: OrderedDict[str, Plan] = OrderedDict()  # least recently made ready first
        self._in_flight: dict[str, list[int]] = {}
        self._counting = Counting(self._meters)

    @property
    def num_reservations(self) -> int:
        """Requests in flight."""
        return self._counting.num_reservations

    @property
    def meters(self) -> Meters:
        """Who counts."""
        return self._meters

    def reserve(self, tenant: Tenant, lane: Lane, moment: Moment) -> Reservation | Rejected:
        """Count one request against the project's and the organisation's limits, or say which one refuses it.

        Mutates the counters only when it succeeds. Of two limits that refuse, the organisation's is named.
        """
        plan = self._plans.get(tenant.project_id)
        if plan is None or plan.tenant is not tenant:
            plan = self._plan(tenant, moment)
        plan.touched_at = moment.now
        rank = lane.rank
        self._counting.num_reservations += 1
        counted_at = plan.enter(rank, moment)
        if counted_at is None:
            return self._enter_each(Reservation(self._counting, plan, rank), plan, lane, moment)
        return Reservation(self._counting, plan, rank, counted_at, plan.levels, plan.has_budgets)

    def _enter_each(self, reservation: Reservation, plan: Plan, lane: Lane, moment: Moment) -> Reservation | Rejected:
        """Level by level: some limit has no room, or is counted together with other gateways."""
        for level in plan.levels:
            request = self._request(level, lane, lane.rank, moment)
            if not isinstance(request, Rejected):
                reservation.enter(level, request)
            elif level.is_shadow:
                reservation.shadow(request)
            else:
                reservation.undo(moment)
                return request
        return reservation

    def relimit(self, tenant_of: Callable[[str], Tenant | None]) -> None:
        """Limits may have changed: other gateways go by the lowest they are told, also where no request tells it.

        `tenant_of`: a project as it is now, by its id.
        """
        if self._leased is None:
            return
        for project_id, plan in self._plans.items():
            tenant = tenant_of(project_id)
            if tenant is not None and tenant is not plan.tenant:
                above = tenant.organization_limits.concurrency
                self._leased.relimit(organization_meters(tenant.organization_id), above)
                self._leased.relimit(project_meters(project_id), tenant.limits.concurrency)

    def headline(self, tenant: Tenant, moment: Moment) -> tuple[Standing | None, Standing | None]:
        """The strictest limit of requests and the strictest of tokens, as enforced; None where there is none."""
        plan = self._plans.get(tenant.project_id)
        if plan is None or plan.tenant is not tenant:
            plan = self._plan(tenant, moment)
        if self._sole is not None:
            requests, tokens = plan.shown_requests, plan.shown_tokens(moment.unix)
            return (
                None if requests is None else requests.strictest(moment),
                None if tokens is None else tokens.strictest(moment),
            )
        return (
            strictest(plan.requests, self._meters, moment),
            strictest(plan.tokens(moment.unix), self._meters, moment),
        )

    def used_up(self, tenant: Tenant, moment: Moment) -> Rejected | None:
        """A limit of requests a minute, of tokens or of money that has nothing left. Nothing is counted."""
        plan = self._plan(tenant, moment)
        if plan.has_room(moment, with_requests=True):  # nearly always; it is asked before most bodies
            return None
        return used_up(plan.levels, self._meters, moment, with_requests=True)

    def standings(self, tenant: Tenant, moment: Moment) -> tuple[LimitStanding, ...]:
        """Every limit of the organisation and the project, and what is left of it."""
        return standings(self._plan(tenant, moment).levels, self._meters, moment)

    def restore(self, rows: Iterable[UsageRow], moment: Moment) -> None:
        """What was used earlier, as a ledger knows it, so that a restart grants nobody a second allowance.

        A row counts for its project and its organisation, in the window that holds its beginning: the last minute, the
        running day, the running month. Everything that is known is told in one call, which may be repeated. Nothing
        where the meters are shared: those outlive the process.
        """
        if not isinstance(self._meters, SoleMeters):
            return
        used = []
        for project_id, organization_id, counted, at, amount in rows:
            if project_id:
                used.append(Used(project_meters(project_id), counted, at, amount))
            if organization_id:
                used.append(Used(organization_meters(organization_id), counted, at, amount))
        self._meters.restore(used, moment)

    def expire(self, moment: Moment) -> int:
        """Drop every tenant with nothing in flight that was not active in the last minute; the number dropped."""
        self._meters.expire(moment)
        idle = [of for of, plan in self._plans.items() if self._is_idle(plan, moment)]
        for of in idle:
            del self._plans[of]
        used = {level.of for plan in self._plans.values() for level in plan.levels}
        for of in [of for of, counts in self._in_flight.items() if of not in used and not any(counts)]:
            del self._in_flight[of]
        return len(idle)

    def statistics(self) -> dict[str, int]:
        """`reservations` and `takes` are 0 when quiescent; `tenants` are those made ready."""
        return {"reservations": self.num_reservations, "tenants": len(self._plans), **self._meters.statistics()}

    def __repr__(self) -> str:
        return f"<Quotas {' '.join(f'{name}={count}' for name, count in self.statistics().items())}>"

    def _request(self, level: Level, lane: Lane, rank: int, moment: Moment) -> Take | Rejected | None:
        """The place in the minute at one level, None where it is not limited; or why there is none."""
        taken: Take | None = None
        if level.requests is not None:
            found = self._meters.take(level.requests, 1, moment)
            if isinstance(found, Short):
                return over(found, level.scope, 1, time_zone=level.limits.time_zone)
            taken = found
        if level.most_in_flight is not None and (limit := level.most_in_flight[rank]) is not None:
            if self._leased is not None:
                return self._unit(self._leased, level, lane, taken, moment)
            if level.in_flight[rank] >= limit:
                if taken is not None:
                    taken.undo(moment)
                return full(level.scope, lane.value, limit, CONCURRENCY_RETRY_S if limit else None)
        return taken

    def _unit(
        self, leased: InFlight, level: Level, lane: Lane, beside: Take | None, moment: Moment
    ) -> UnitTake | Rejected:
        """A place in flight of all gateways' together, with the place in the minute; or why there is none."""
        assert level.most_in_flight is not None, "it is limited"
        limit = level.most_in_flight[lane.rank] or 0
        found = leased.take(level.of, lane, limit, beside, moment.now)
        if isinstance(found, UnitTake):
            return found
        if beside is not None:
            beside.undo(moment)
        rejected = full(level.scope, lane.value, limit, CONCURRENCY_RETRY_S if limit else None)
        return rejected if found is None else replace(rejected, pending=(found, 1))

    def _plan(self, tenant: Tenant, moment: Moment) -> Plan:
        """The tenant made ready; the directory makes a new tenant whenever a limit changes."""
        plan = self._plans.get(tenant.project_id)
        if plan is None or plan.tenant is not tenant:
            if plan is None:
                self._drop_idle(moment)
            plan = self._plans[tenant.project_id] = Plan(
                tenant, self._in_flight_of, self._sole, counts_all=self._counts_all
            )
        plan.touched_at = moment.now
        return plan

    def _in_flight_of(self, of: str) -> list[int]:
        return self._in_flight.setdefault(of, [0] * len(Lane))

    def _drop_idle(self, moment: Moment) -> None:
        """Of the two oldest: drop those that are idle, look at the others later. Organisations are left to `expire`."""
        for _ in range(min(2, len(self._plans))):
            of, plan = next(iter(self._plans.items()))
            if not self._is_idle(plan, moment):
                self._plans.move_to_end(of)
                continue
            del self._plans[of]
            self._in_flight.pop(plan.project.of, None)

    def _is_idle(self, plan: Plan, moment: Moment) -> bool:
        return moment.now >= plan.touched_at + PLAN_KEEP_S and not any(plan.project.in_flight)
