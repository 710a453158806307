"""What one request holds of its tenant's limits: taken on arrival, then for its prompt, settled once with real usage.

Between the two lies the reading of the body, which whoever is over a limit must not cost the others. The headers of an
answer are made when it is sent, so that they tell what holds then.
"""

import asyncio
import math
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from engines.contract import Headers, ReplicaError
from gateway.errors import ClientError, Refused
from gateway.outcome import Outcome
from gateway.owed import Owed, done
from gateway.parts import Call, Parts
from gateway.settings import ModelSection
from policies.lane import Lane
from policies.meters import Moment
from policies.prices import Price, Work, charged_tokens, price_of
from policies.quota import Expected, Reason, Rejected, Reservation, Standing
from policies.tenant import Tenant
from routing.query import RouteQuery

GRANT_S = 0.5  # chosen: what a request waits for all its allowances at most, where several gateways count together
_REQUESTS = (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests")
_TOKENS = (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens")


class Reserving:
    """Reserves for requests as they arrive."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._models = parts.settings.models
        self._prices = prices_of(self._models)

    async def arrive(self, call: Call, tenant: Tenant, lane: Lane) -> "Held":
        """Count the request against what is known before it is read. Raises `Refused`; then nothing is counted."""
        if self._parts.settings.models is not self._models:  # the file was read again
            self._models = self._parts.settings.models
            self._prices = prices_of(self._models)
        held = Held(self._parts, call, tenant, lane, self._prices)
        call.answer.late_headers = held.headers
        await held.arrive()
        return held


class Held:
    """One request's share. Leaving the `with` block settles it, or undoes it if the request never had a turn."""

    __slots__ = (
        "_call",
        "_expected_output",
        "_is_charged",
        "_lane",
        "_parts",
        "_price",
        "_prices",
        "_reservation",
        "_tenant",
    )

    def __init__(self, parts: Parts, call: Call, tenant: Tenant, lane: Lane, prices: dict[str, Price]) -> None:
        self._parts = parts
        self._call = call
        self._tenant = tenant
        self._lane = lane
        self._prices = prices
        self._price: Price | None = None
        self._reservation: Reservation | None = None
        self._expected_output = 0
        self._is_charged = False

    async def arrive(self) -> None:
        """Take a place in the minute and in flight."""
        moment = self._moment()
        reservation = self._parts.quotas.reserve(self._tenant, self._lane, moment)
        while isinstance(reservation, Rejected):
            if not await self._is_granted(reservation, moment.now + GRANT_S):
                raise self._refused(reservation)
            reservation = self._parts.quotas.reserve(self._tenant, self._lane, self._moment())
        self._reservation = reservation
        self._note_shadow(reservation)

    async def expect(self, query: RouteQuery) -> None:
        """The request is read: take the tokens and the money that it is expected to cost.

        Raises `Refused`, or `ClientError` (403) where money is limited and the model has no price.
        """
        reservation = self._reservation
        assert reservation is not None, "it has arrived"
        parts, story = self._parts, self._call.story
        prompt = max(1, parts.router.ratios.of(query.model).tokens(query.key.total_bytes))
        output = parts.outputs.expected(self._tenant.project_id, self._lane, query.max_output_tokens, query.model)
        self._expected_output = output
        story.reserved_tokens = prompt + output
        self._price = price = self._prices.get(query.model)
        if price is not None:
            story.reserved_nanousd = price.of(Work(prompt, 0, output))
        if reservation.has_budgets:
            least = None if price is None else price.of(Work(prompt, 0, 0))
            expected, moment = Expected(prompt + output, prompt, story.reserved_nanousd, least), self._moment()
            rejected = reservation.hold(expected, moment)
            while rejected is not None:
                if not await self._is_granted(rejected, moment.now + GRANT_S):
                    raise self._refused(rejected)
                rejected = reservation.hold(expected, self._moment())
            self._note_shadow(reservation)

    async def _is_granted(self, rejected: Rejected, ends_at: float) -> bool:
        """Whether another try may pass: where gateways count together, an allowance may be on its way."""
        peers, left_s = self._parts.peers, ends_at - self._parts.clock()
        if peers is None or rejected.pending is None or left_s <= 0:
            return False
        return await peers.until_granted(*rejected.pending, left_s)

    def headers(self) -> Headers:
        """What is left of the strictest limits, at this moment."""
        relayed = self._call.story.relayed
        if relayed is not None and relayed.usage is not None and not self._is_streaming:
            self._charge(self._moment(), is_complete=True)  # a whole answer's usage is known before it is sent
        requests, tokens = self._parts.quotas.headline(self._tenant, self._moment())
        found: Headers = []
        if requests is not None:
            found += _told(_REQUESTS, requests)
        if tokens is not None:
            found += _told(_TOKENS, tokens)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        reservation, story = self._reservation, self._call.story
        assert reservation is not None, "it has arrived"
        if not story.attempts and isinstance(error, ClientError | Refused):
            reservation.undo(self._moment())  # it never had a turn: the refusal leaves every counter as it was
            return
        if error is not None and story.owed is Owed.ALL and not _is_of_the_client(error, self._call):
            story.owed = Owed.DELIVERED
        moment = self._moment()
        self._charge(moment, is_complete=error is None)
        reservation.settle(moment)

    @property
    def _is_streaming(self) -> bool:
        request = self._call.story.request
        return request is not None and request.is_streaming

    def _charge(self, moment: Moment, *, is_complete: bool) -> None:
        """Count what was done instead of what was expected, once, whatever number of attempts there were."""
        if self._is_charged:
            return
        self._is_charged = True
        assert self._reservation is not None, "it has arrived"
        story = self._call.story
        unseen = self._expected_output if is_complete else min(self._expected_output, story.unseen_tokens)
        found = done(
            story.owed, story.decision, story.relayed, 0 if self._is_streaming else unseen, is_complete=is_complete
        )
        nanousd = None if self._price is None else self._price.of(found.work)
        self._reservation.charge(found.work, nanousd, moment)
        story.done = found
        story.charged_tokens = charged_tokens(found.work, self._tenant.limits.cached_token_discount)
        story.cost_nanousd = nanousd

    def _note_shadow(self, reservation: Reservation) -> None:
        if reservation.shadowed is not None:
            self._call.story.limit = f"shadow.{reservation.shadowed.name}"

    def _refused(self, rejected: Rejected) -> Refused | ClientError:
        self._call.story.limit = rejected.name
        code = rejected.reason.value
        if rejected.reason is Reason.UNPRICED:
            return ClientError(rejected.message, status=403, param="model", code=code, outcome=Outcome.FORBIDDEN)
        return Refused(rejected.message, code=code, status=429, retry_after_s=rejected.retry_after_s)

    def _moment(self) -> Moment:
        return Moment(self._parts.clock(), self._parts.unix())


def prices_of(models: Iterable[ModelSection]) -> dict[str, Price]:
    """The price of every model that has one, by its real name."""
    prices = ((model.name, price_of(model.price_in, model.price_cached, model.price_out)) for model in models)
    return {name: price for name, price in prices if price is not None}


def _is_of_the_client(error: BaseException, call: Call) -> bool:
    """Whether it ended by its caller's doing, or what is owed was judged already; else this gateway broke it off."""
    if isinstance(error, asyncio.CancelledError):
        return call.sink.is_gone
    return isinstance(error, ClientError | Refused | ReplicaError)


def _told(names: tuple[bytes, bytes, bytes], standing: Standing) -> Headers:
    limit, remaining, reset = names
    return [
        (limit, b"%d" % standing.limit),
        (remaining, b"%d" % standing.remaining),
        (reset, b"%ds" % math.ceil(standing.reset_s)),
    ]
