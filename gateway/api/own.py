"""What a team sees with its own key: its limits, its usage, its requests. Another project's do not exist here."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.endpoints import read_page
from gateway.api.discovery import problem_response
from gateway.auth import AuthFailure, Directory
from gateway.errors import ClientError, Problem, Refused
from gateway.ledger_lines import row_of
from gateway.outcome import Outcome
from gateway.recorder import Recorder
from gateway.usage_wire import read_group, read_period, usage_list
from policies.lane import Lane
from policies.ledger import Group, Ledger, LedgerRow, Retention, Wanted
from policies.ledger_totals import widened
from policies.meters import NANODOLLARS, Counted, Moment
from policies.quota import LimitStanding, Quotas
from policies.store import StoreError
from policies.tenant import ResponseCaching, Tenant

# Waits between looks into a shared ledger for a request that another gateway may have served just now: it is there when
# that gateway's supervisor has taken it in, every 250 ms. Together the time that an unknown id takes to be told.
LOOKS_AGAIN_S = (0.1, 0.15, 0.25, 0.5)


class OwnLimit(Struct, frozen=True):
    """One limit. `limit`: its name; `most`, `used`, `remaining`: requests, charged tokens or USD.

    `reset_s`: seconds until all of it is there again if nothing more is sent; null for what is in flight. `shadow`: it
    refuses nothing.
    """

    limit: str
    lane: Lane | None
    scope: str
    most: float
    used: float
    remaining: float
    reset_s: float | None
    shadow: bool


class OwnLimits(Struct, frozen=True):
    """Every limit of the project and its organisation, and what may be asked for. `models`, `surfaces`: null for all.

    `batch_cap`: seats in one replica's batch by lane, which refuse nothing. `time_zone`: whose days and months count.
    `response_cache`: which requests may get an earlier answer, where the gateway keeps any.
    """

    data: list[OwnLimit]
    models: list[str] | None
    surfaces: list[str] | None
    batch_cap: dict[Lane, int]
    weight: float
    time_zone: str
    max_lane: Lane
    default_lane: Lane
    response_cache: ResponseCaching


class OwnRequest(Struct, frozen=True):
    """How one request went. `reason`: the code of what went wrong, `limit`: which limit refused it.

    `is_estimated`: no engine reported the tokens, they were predicted and counted by the text that came.
    """

    id: str
    created_at: float
    model: str
    lane: str
    outcome: str
    status: int
    reason: str | None
    limit: str | None
    queue_s: float | None
    ttft_s: float | None
    duration_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    charged_tokens: int
    cost_usd: float | None
    is_estimated: bool
    recovered: bool


Answer = Callable[[Request, Tenant], Awaitable[Struct]]


class Own:
    """`ledger`: None where nothing is kept: then only what this process remembers can be told."""

    def __init__(
        self,
        directory: Directory,
        quotas: Quotas,
        recorder: Recorder,
        ledger: Ledger | None,
        keep: Retention,
        *,
        clock: Callable[[], float],
        unix: Callable[[], float],
        is_shared: bool = False,
    ) -> None:
        """`clock`: monotonic seconds, `unix`: Unix seconds. `is_shared`: whether there are other gateways."""
        self._looks_again_s = LOOKS_AGAIN_S if is_shared else ()
        self._directory = directory
        self._quotas = quotas
        self._recorder = recorder
        self._ledger = ledger
        self._keep = keep
        self._clock = clock
        self._unix = unix

    def routes(self) -> list[Route]:
        """The routes of this surface."""
        return [
            Route("/v1/limits", self._for_caller(self.limits), methods=["GET"]),
            Route("/v1/usage", self._for_caller(self.usage), methods=["GET"]),
            Route("/v1/requests/{id}", self._for_caller(self.request), methods=["GET"]),
        ]

    async def limits(self, _request: Request, tenant: Tenant) -> OwnLimits:
        """GET /v1/limits: as enforced by this gateway process at this moment."""
        standings = self._quotas.standings(tenant, Moment(self._clock(), self._unix()))
        limits = tenant.limits
        return OwnLimits(
            data=[_limit(one) for one in standings],
            models=None if limits.models is None else sorted(limits.models),
            surfaces=None if limits.surfaces is None else sorted(limits.surfaces),
            batch_cap=limits.batch_cap or {},
            weight=limits.weight,
            time_zone=limits.time_zone,
            max_lane=limits.max_lane,
            default_lane=limits.default_lane,
            response_cache=limits.response_cache,
        )

    async def usage(self, request: Request, tenant: Tenant) -> Struct:
        """GET /v1/usage: as the admin plane's, of this project alone; by day if nothing else is asked for."""
        page = read_page(request, "group_by", "from", "to", "model", "lane")
        group_by = read_group(page.filters, Group.DAY)
        starts_at, ends_at = read_period(page.filters, self._unix())
        wanted = Wanted(
            starts_at,
            ends_at,
            project=tenant.project_id,
            model=page.filters.get("model"),
            lane=page.filters.get("lane"),
        )
        if self._ledger is None:
            raise _no_ledger()
        try:
            found = await self._ledger.usage(
                widened(wanted, self._unix(), self._keep), group_by, limit=page.limit, after=page.after
            )
        except ValueError as error:
            raise ClientError("after is not where a page ended", param="after", code="invalid_query") from error
        return usage_list(found)

    async def request(self, request: Request, tenant: Tenant) -> OwnRequest:
        """GET /v1/requests/{id}."""
        request_id = request.path_params["id"]
        row = await self._row(request_id, tenant.project_id)
        if row is None or row.project != tenant.project_id:
            raise ClientError("no request of this id is known", status=404, code="unknown_request")
        return _request(row)

    async def _row(self, request_id: str, project_id: str) -> LedgerRow | None:
        """What this process remembers is there at once, what another has served within a second of its end.

        Another project's is looked for in the ledger like one that never was: it must not take a shorter time.
        """
        remembered = self._recorder.find(request_id)
        if remembered is not None and remembered[0].project == project_id:
            return row_of(remembered[0])
        if self._ledger is None:
            return None
        found = await self._ledger.row(request_id)
        for wait_s in self._looks_again_s:
            if found is not None and found.project == project_id:
                break
            await asyncio.sleep(wait_s)
            found = await self._ledger.row(request_id)
        return found

    def _for_caller(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """The answer for whoever has a key, or what is wrong."""

        async def respond(request: Request) -> Response:
            headers = [(bytes(name), bytes(value)) for name, value in request.scope["headers"]]
            principal = self._directory.authenticate(headers, self._unix())
            if isinstance(principal, AuthFailure):
                problem = Problem(401, principal.message, "authentication_error", principal.code)
                return problem_response(problem)
            tenant = self._directory.tenant(principal.tenant.project_id) or principal.tenant
            try:
                return _json(await answer(request, tenant))
            except (ClientError, Refused) as error:
                return problem_response(error.problem)
            except StoreError:
                return problem_response(_no_ledger().problem)

        return respond


def _limit(one: LimitStanding) -> OwnLimit:
    is_money = one.name == Counted.MONTH_MONEY.value

    def shown(amount: int) -> float:
        return amount / NANODOLLARS if is_money else amount

    return OwnLimit(
        limit=one.name,
        lane=one.lane,
        scope=one.scope.value,
        most=shown(one.limit),
        used=shown(one.used),
        remaining=shown(one.remaining),
        reset_s=one.reset_s,
        shadow=one.is_shadow,
    )


def _request(row: LedgerRow) -> OwnRequest:
    return OwnRequest(
        id=row.request_id,
        created_at=row.started_at,
        model=row.model,
        lane=row.lane,
        outcome=row.outcome,
        status=row.status,
        reason=row.reason,
        limit=row.limit,
        queue_s=row.queue_s,
        ttft_s=row.ttft_s,
        duration_s=row.ended_at - row.started_at,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        charged_tokens=row.charged_tokens,
        cost_usd=None if row.cost_nanousd is None else row.cost_nanousd / NANODOLLARS,
        is_estimated=row.is_estimated,
        recovered=row.recovered,
    )


def _no_ledger() -> Refused:
    message = "usage cannot be read now"
    return Refused(message, code="ledger_unavailable", status=503, retry_after_s=1.0, outcome=Outcome.SHED)


def _json(value: Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
