"""What one request holds of its tenant's limits: taken on arrival, then for its prompt, settled once with real usage.

Between the two lies the reading of the body, which whoever is over a limit must not cost the others. The headers of an
answer are made when it is sent, so that they tell what holds then.
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from msgspec import Struct

from cache_affinity.ratio import TokenRatio
from engines.contract import Headers, ReplicaError
from gateway.errors import ClientError, Refused
from gateway.limit_headers import limit_headers
from gateway.model_settings import ModelSection
from gateway.outcome import Outcome
from gateway.owed import NOTHING, Done, Owed, done
from gateway.parts import Call, Parts
from gateway.relay import Relayed
from gateway.tenant_ratios import TenantRatios
from gateway.wanted import Inputs
from policies.in_flight import Unit
from policies.lane import Lane
from policies.meters import Moment
from policies.prices import Price, price_of
from policies.quota import Expected, Reason, Rejected, Reservation
from policies.tenant import Tenant
from routing.query import RouteQuery

GRANT_S = 0.5  # chosen: what a request waits for all its allowances at most, where several gateways count together
# Chosen: for a place in flight that nobody uses; whoever holds it reports four times in that time, or died.
PLACE_S = 2.0
# Chosen: prose has 3.5 to 4.5 a token. Who has taught us 16, by prompts of blanks, and then leaves before the engine
# reports, does not pay a third of a prompt for that.
UNREPORTED_BYTES = 5.0
SMALL_BYTES = 4096  # chosen: so little is read in microseconds, and then it is known anyway whether there is room
_NEVER = Moment(0.0, 0.0)


class Reserving:
    """Reserves for requests as they arrive."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._models = parts.settings.models
        self._prices = prices_of(self._models)
        self._ratios = TenantRatios()

    async def arrive(self, call: Call, tenant: Tenant, lane: Lane) -> "Held":
        """Count the request against what is known before it is read. Raises `Refused`; then nothing is counted."""
        parts = self._parts
        if parts.settings.models is not self._models:  # the file was read again
            self._models = parts.settings.models
            self._prices = prices_of(self._models)
        held = Held(parts, call, tenant, lane, self._prices, self._ratios)
        call.answer.late_headers = held.headers
        if call.incoming.used_up is not None:
            raise held.refused(call.incoming.used_up)  # so its body was not waited for
        moment = Moment(parts.clock(), parts.unix())
        found = parts.quotas.reserve(tenant, lane, moment)
        if isinstance(found, Rejected):
            found = await held.reserve_again(found, moment)
        if len(call.incoming.body) > SMALL_BYTES:
            rejected = found.used_up(moment)
            if rejected is not None:
                found.undo(moment)
                raise held.refused(rejected)
        held.reservation = found
        if found.shadowed is not None:
            held.note_shadow(found.shadowed)
        return held


class Held(Struct, eq=False):
    """One request's share. Leaving the `with` block settles it, or undoes it if the request never had a turn.

    `reservation`: set when the request has arrived; `ratio`, `prompt_*`, `inputs`: when it is read. `is_counted`: the
    prompt's tokens are known, not estimated.
    """

    parts: Parts
    call: Call
    tenant: Tenant
    lane: Lane
    prices: dict[str, Price]
    ratios: TenantRatios
    reservation: Reservation | None = None
    price: Price | None = None
    model: str = ""
    ratio: TokenRatio | None = None
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    is_counted: bool = False
    expected_output: int = 0
    inputs: Inputs | None = None
    seen: Moment = _NEVER

    async def reserve_again(self, rejected: Rejected, moment: Moment) -> Reservation:
        """Wait for the place in the minute, if it may come. Raises `Refused`."""
        while await self._is_granted(rejected, moment.now + _patience_s(rejected)):
            found = self.parts.quotas.reserve(self.tenant, self.lane, self._moment())
            if not isinstance(found, Rejected):
                return found
            rejected = found
        raise self.refused(rejected)

    async def expect(self, query: RouteQuery) -> None:
        """The request is read: take the tokens and the money that it is expected to cost.

        Raises `Refused`, or `ClientError` (403) where money is limited and the model has no price.
        """
        parts, story, model, reservation = self.parts, self.call.story, query.model, self.reservation
        assert reservation is not None, "it has arrived"
        assert story.request is not None, "it is read"
        self.inputs = inputs = story.request.inputs
        if inputs is not None and inputs.is_free:
            story.reserved_tokens = 0
            return
        self.ratio = ratio = self.ratios.of(self.tenant.project_id, model, parts.router.ratios)
        known = _counted(query, inputs)
        self.is_counted = known is not None
        # The size of a list of tokens is made of their number: it teaches nothing of this tenant's texts.
        self.prompt_bytes = query.key.total_bytes if inputs is None or known is None else 0
        prompt = ratio.tokens(self.prompt_bytes) if known is None else known
        self.prompt_tokens = prompt = prompt or 1
        output = 0
        if inputs is None:
            output = parts.outputs.expected(self.tenant.project_id, self.lane, query.max_output_tokens, model)
        self.model = model
        self.expected_output = output
        story.reserved_tokens = prompt + output
        self.price = price = self.prices.get(model)
        story.reserved_nanousd = least = None
        if price is not None:
            story.reserved_nanousd, least = price.expected(prompt, output)
        if reservation.has_budgets:
            is_bound = output == query.max_output_tokens
            expected = Expected(prompt + output, prompt, story.reserved_nanousd, least, is_bound)
            moment = Moment(parts.clock(), parts.unix())
            rejected = reservation.hold(expected, moment)
            if rejected is not None:
                await self._hold_again(reservation, expected, rejected, moment)
            if reservation.shadowed is not None:
                self.note_shadow(reservation.shadowed)

    def let_go(self) -> None:
        """Another model is to answer: its tokens and its price are to be expected instead."""
        assert self.reservation is not None, "it has arrived"
        self.reservation.let_go(self._moment())

    def headers(self) -> Headers:
        """What is left of the strictest limits, at this moment."""
        parts, story = self.parts, self.call.story
        moment = self.seen = Moment(parts.clock(), parts.unix())
        relayed = story.relayed
        if relayed is not None and relayed.usage is not None and not self._is_streaming():
            self._charge(moment, is_complete=True)  # a whole answer's usage is known before it is sent
        return limit_headers(*parts.quotas.headline(self.tenant, moment))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        story, reservation = self.call.story, self.reservation
        assert reservation is not None, "it has arrived"
        moment = self._moment() if story.done is None else self.seen  # settled: it is past
        if not story.attempts and isinstance(error, ClientError | Refused):
            reservation.undo(moment)  # it never had a turn: the refusal leaves every counter as it was
            return
        if error is not None and story.owed is Owed.ALL and not _is_of_the_client(error, self.call):
            story.owed = Owed.DELIVERED
        if story.done is None:
            self._charge(moment, is_complete=error is None)
        reservation.settle(moment)

    def note_shadow(self, rejected: Rejected) -> None:
        """A limit in shadow mode would have refused the request."""
        self.call.story.limit = f"shadow.{rejected.name}"

    def refused(self, rejected: Rejected) -> Refused | ClientError:
        """What the client is told, and the record."""
        self.call.story.limit = rejected.name
        code = rejected.reason.value
        if rejected.reason is Reason.UNPRICED:
            return ClientError(rejected.message, status=403, param="model", code=code, outcome=Outcome.FORBIDDEN)
        return Refused(rejected.message, code=code, status=429, retry_after_s=rejected.retry_after_s)

    async def _hold_again(
        self, reservation: Reservation, expected: Expected, rejected: Rejected, moment: Moment
    ) -> None:
        """Wait for allowances, if they may come; at last for what the prompt alone needs. Raises as `expect`."""
        ends_at = moment.now + GRANT_S
        while True:
            is_granted = await self._is_granted(rejected, ends_at)
            if not is_granted:
                if rejected.pending is None or expected.is_bound or expected.tokens == expected.prompt_tokens:
                    raise self.refused(rejected)
                expected = expected.of_prompt()
            found = reservation.hold(expected, self._moment())
            if found is None:
                return
            rejected = found

    async def _is_granted(self, rejected: Rejected, ends_at: float) -> bool:
        """Whether another try may pass: where gateways count together, an allowance may be on its way."""
        peers, left_s = self.parts.peers, ends_at - self.parts.clock()
        if peers is None or rejected.pending is None or left_s <= 0:
            return False
        return await peers.until_granted(*rejected.pending, left_s)

    def _is_streaming(self) -> bool:
        request = self.call.story.request
        return request is not None and request.is_streaming

    def _charge(self, moment: Moment, *, is_complete: bool) -> None:
        """Count what was done instead of what was expected, once, whatever number of attempts there were."""
        assert self.reservation is not None, "it has arrived"
        story = self.call.story
        relayed = story.relayed
        if self.inputs is not None and self.inputs.is_free:
            found = NOTHING
        elif relayed is None or relayed.usage is not None:
            found = done(story.owed, story.decision, relayed, 0, 0, is_complete=is_complete)
            if relayed is not None and relayed.usage is not None and is_complete and self.ratio is not None:
                self.ratio.observe(self.prompt_bytes, relayed.usage.prompt_tokens)
        else:
            found = self._estimated(relayed, is_complete=is_complete)
        work, price = found.work, self.price
        nanousd = None if price is None else price.of(work)
        story.done = found
        story.charged_tokens = self.reservation.charge(work, nanousd, moment)
        story.cost_nanousd = nanousd
        if found.is_estimated and is_complete and self.inputs is None:  # reported work teaches where it is settled
            self.parts.outputs.observe(self.tenant.project_id, self.lane, work.output_tokens, self.model)

    def _estimated(self, relayed: Relayed, *, is_complete: bool) -> Done:
        """What was done, by what came, where no engine says so."""
        story = self.call.story
        text = self.ratio.tokens(relayed.text_bytes) if self.ratio is not None else 0
        prompt = None if self.is_counted else max(self.prompt_tokens, round(self.prompt_bytes / UNREPORTED_BYTES))
        unseen = 0 if is_complete or self._is_streaming() else min(self.expected_output, story.unseen_tokens)
        return done(story.owed, story.decision, relayed, text, unseen, is_complete=is_complete, prompt_tokens=prompt)

    def _moment(self) -> Moment:
        return Moment(self.parts.clock(), self.parts.unix())


def _counted(query: RouteQuery, inputs: Inputs | None) -> int | None:
    """How many tokens are to be read, where somebody counted them."""
    if query.tokens is not None:
        return query.tokens.num_tokens
    return inputs.num_tokens if inputs is not None else None


def _patience_s(rejected: Rejected) -> float:
    return PLACE_S if rejected.pending is not None and isinstance(rejected.pending[0], Unit) else GRANT_S


def prices_of(models: Iterable[ModelSection]) -> dict[str, Price]:
    """The price of every model that has one, by its real name."""
    prices = ((model.name, price_of(model.price_in, model.price_cached, model.price_out)) for model in models)
    return {name: price for name, price in prices if price is not None}


def _is_of_the_client(error: BaseException, call: Call) -> bool:
    """Whether it ended by its caller's doing, or what is owed was judged already; else this gateway broke it off."""
    if isinstance(error, asyncio.CancelledError):
        return call.sink.is_gone
    return isinstance(error, ClientError | Refused | ReplicaError)
