"""The path of a request, told in the order it happens.

Authenticate, classify, reserve, read, key, then attempts (dispatch, route, stream, settle): every ending gives back
what was held and is recorded once. Knows no HTTP server: it writes to a `ClientSink`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from engines.contract import Fault, Headers, ReplicaError
from gateway import errors, token_answers
from gateway.answer import ClientAnswer
from gateway.attempts import Attempts
from gateway.auth import AuthFailure
from gateway.body import refuse_packed
from gateway.classify import classify, client_request_id, read_deadline, read_traceparent, refuse_surface
from gateway.errors import ClientError, Refused
from gateway.fields import LARGE_BYTES
from gateway.language import OPENAI
from gateway.languages import language_of
from gateway.mirrors import Mirrors
from gateway.outcome import Outcome
from gateway.parts import Call, Parts
from gateway.request import FORMS, InferenceRequest, Surface, asked_lane, read
from gateway.reserving import Held, Reserving
from gateway.response_cache.cache import ResponseCache
from gateway.route_key import route_key
from gateway.sink import ClientSink, Incoming
from gateway.story import Story
from gateway.traffic import is_trouble
from gateway.turned_away import nobody_serves
from gateway.wanted import Inputs, TokenCount
from gateway.warm_place import WarmPlace
from observability import logs
from policies.lane import Lane
from policies.tenant import Principal
from routing.query import RouteQuery

_GONE = errors.Problem(499, "the client left", "client_closed_request", "client_gone", outcome=Outcome.CLIENT_GONE)

_SURFACES = {surface.value: surface for surface in Surface}  # an enum's own look-up is three calls into Python
_LANE_HEADERS = {lane: (b"x-warmlane-lane", lane.value.encode()) for lane in Lane}


class Lifecycle:
    """Serves requests. `num_in_flight` counts those whose story is not yet told."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._attempts = Attempts(parts)
        self._reserving = Reserving(parts)
        self._cache = ResponseCache(parts)
        self._mirrors = Mirrors(parts)
        self.num_in_flight = 0

    @property
    def num_relaying(self) -> int:
        """Attempts that are under way."""
        return self._attempts.num_relaying

    @property
    def num_mirrored(self) -> int:
        """Copies for a mirror that are under way."""
        return len(self._mirrors)

    def stop(self) -> None:
        """Drop what no client waits for."""
        self._mirrors.stop()

    async def serve(self, incoming: Incoming, sink: ClientSink) -> None:
        """Answer one request. Never raises but `CancelledError`; when it returns nothing is held any more."""
        await self._run(self._begin(incoming, sink), self._tell)

    async def warm(self, incoming: Incoming, sink: ClientSink, place: WarmPlace) -> Story:
        """Have one replica read a prompt in a project's name; what happened. Ends and is recorded as any request."""
        call = self._begin(incoming, sink)
        await self._run(call, partial(self._tell_warming, place))
        return call.story

    async def _run(self, call: Call, tell: Callable[[Call], Awaitable[None]]) -> None:
        story, answer, sink = call.story, call.answer, call.sink
        self.num_in_flight += 1
        try:
            await tell(call)
            story.outcome = Outcome.FINISHED
        except (ClientError, Refused) as error:
            story.ended_with(error.problem)
            answer.fail(error.problem)
        except ReplicaError as error:
            problem = errors.of_replica(error)
            story.ended_with(problem)
            answer.fail(problem)
            if error.fault is not Fault.CLIENT:
                logs.get().warning(
                    "replica.failed", request_id=story.request_id, fault=error.fault.value, message=error.message
                )
        except asyncio.CancelledError:
            story.ended_with(_GONE if sink.is_gone else errors.STOPPING)
            answer.fail(errors.STOPPING)
            raise
        except Exception:  # noqa: BLE001  # a bug: told to the client as one, and to the log with its trace
            story.ended_with(errors.BUG)
            answer.fail(errors.BUG)
            logs.get().exception("request.failed", request_id=story.request_id)
        finally:
            self.num_in_flight -= 1
            self._parts.recorder.add(story.record(self._parts.clock()), story.decision)

    def _begin(self, incoming: Incoming, sink: ClientSink) -> Call:
        story = Story(incoming.path, incoming.arrived_at, self._parts.unix(), client_request_id(incoming))
        language = language_of(incoming.path)
        headers: Headers = [(b"x-request-id", story.request_id.encode())]
        if language is not OPENAI:
            headers += language.headers(story.request_id)
        keepalive_s = self._parts.settings.timeouts.keepalive_s
        answer = ClientAnswer(sink, headers, keepalive_s, language=language, request_id=story.request_id)
        task = asyncio.current_task()
        assert task is not None, "the lifecycle runs in a task of its own"
        sink.on_gone(task.cancel)
        return Call(incoming, sink, answer, headers, story)

    async def _tell(self, call: Call) -> None:
        """The story in order; the attempts at the end dispatch, route, stream and settle."""
        incoming, headers = call.incoming, call.headers
        principal = call.story.principal = self._authenticate(incoming)
        refuse_surface(incoming, principal.tenant)
        refuse_packed(incoming)
        lane = call.story.lane = classify(incoming, asked_lane(incoming.body), principal)
        headers.append(_LANE_HEADERS[lane])
        await self._answer(call, principal, lane)

    async def _tell_warming(self, place: WarmPlace, call: Call) -> None:
        principal = call.story.principal = place.principal
        call.story.lane = place.lane
        await self._answer(call, principal, place.lane, elsewhere=place.elsewhere)

    async def _answer(
        self, call: Call, principal: Principal, lane: Lane, elsewhere: AbstractSet[str] | None = None
    ) -> None:
        """Reserve, read, and let attempts do the rest. `elsewhere`: replicas that must not answer; None: any may."""
        # Limits come before the body is read: whoever is over them must not cost the others that time.
        with await self._reserving.arrive(call, principal.tenant, lane) as held:
            request = await self._read(call, principal)
            asked = call.story.model = self._parts.models.resolve(request.model, principal.tenant)
            model = self._variant(asked, request, call)
            try:
                await self._serve(call, held, principal, model, elsewhere)
            except (Refused, ReplicaError) as error:
                if elsewhere is not None or not await self._fell_back(call, held, principal, asked, error):
                    raise

    async def _serve(
        self, call: Call, held: Held, principal: Principal, model: str, elsewhere: AbstractSet[str] | None = None
    ) -> None:
        """Have replicas of the model answer what was read."""
        request = call.story.request
        assert request is not None, "just read"
        call.story.model = model
        query = await self._query(call, request, model, principal)
        cache = self._cache
        if cache.is_on and elsewhere is None and await cache.answered(call, held, model):
            return
        await held.expect(query)
        if request.inputs is not None and self._counts_itself(request.inputs, query.model):
            await self._count(call, request, query.model)
            return
        if elsewhere is not None:
            query = replace(query, excluded=elsewhere, labels=frozenset())  # wherever else the lane may go
        elif request.segments:
            self._diagnose(call, query, request.segments)
            self._mirrors.note(call, query)
        if request.is_streaming:
            call.answer.admit()
        await self._attempts.run(call, query)
        if call.recording is not None:
            cache.keep(call)

    async def _fell_back(
        self, call: Call, held: Held, principal: Principal, asked: str, error: Refused | ReplicaError
    ) -> bool:
        """Whether another model answered in its place. If none can, its own failure is what is told."""
        parts, story, last = self._parts, call.story, error
        request, served = story.request, story.model
        assert request is not None, "read before anybody was asked"
        stable = parts.traffic.larger(asked, served)
        names = (*stable, *parts.traffic.fallbacks(asked, request, principal.tenant))
        for model in names:
            if not is_trouble(last) or call.answer.has_content or call.is_late(parts.clock()):
                break
            if model == served or (isinstance(last, ReplicaError) and not parts.retries.spend()):
                continue
            held.let_go()
            call.tell_model(model if model != asked else None)
            logs.get().info("request.fell_back", request_id=story.request_id, asked=asked, model=model)
            try:
                await self._serve(call, held, principal, model)
            except ClientError:
                continue  # it does not serve this, or may not for this tenant's money
            except (Refused, ReplicaError) as failed:
                if call.answer.has_content:
                    raise
                last = failed if is_trouble(failed) else last
            else:
                return True
        story.model = served
        call.tell_model(served if served != asked else None)
        return False

    def _diagnose(self, call: Call, query: RouteQuery, segments: Sequence[bytes]) -> None:
        """Where its prompt differs from the one before."""
        assert call.story.principal is not None, "only authenticated requests are read"
        tenant, now = call.story.principal.tenant, call.incoming.arrived_at
        self._parts.prefixes.note(tenant.project_id, tenant.organization_id, query.model, query.key, segments, now=now)

    async def _read(self, call: Call, principal: Principal) -> InferenceRequest:
        """What is asked for; a large body is read beside the loop, which serves others meanwhile."""
        surface, body = _SURFACES[call.incoming.path], call.incoming.body
        num_bytes, earlier = len(body), None
        if surface in (Surface.RESPONSES, Surface.INPUT_TOKENS):
            earlier = await self._parts.conversations.earlier(body, principal.tenant.project_id)
            num_bytes += earlier.num_bytes
        is_large = num_bytes > LARGE_BYTES
        kind = call.incoming.header(b"content-type") or b"" if surface in FORMS else b""
        given = (surface, body, earlier, kind)
        request = await asyncio.to_thread(read, *given) if is_large else read(*given)
        call.story.request = request
        call.deadline = read_deadline(call.incoming)
        call.traceparent = read_traceparent(call.incoming)
        return request

    def _variant(self, model: str, request: InferenceRequest, call: Call) -> str:
        """Who answers for a model: itself, or the variant that its conversation was drawn to."""
        traffic = self._parts.traffic
        if request.inputs is not None or not traffic.has_variants(model):
            return model
        assert call.story.principal is not None, "only authenticated requests are read"
        salt = call.story.principal.tenant.cache_salt
        found = traffic.variant(model, route_key(model, salt, request, self._parts.router.ratios).home)
        if found != model:
            call.tell_model(found)
        return found

    async def _query(self, call: Call, request: InferenceRequest, model: str, principal: Principal) -> RouteQuery:
        """What the router is asked. Raises `Refused` (503) where nobody ever serves the model."""
        assert call.story.lane is not None, "classified"
        lane = call.story.lane
        if model not in self._parts.fleet.models() and not self._is_expected(model):
            raise nobody_serves()
        needs = self._needs(call, request, model, principal)
        salt = principal.tenant.cache_salt
        key = route_key(model, salt, request, self._parts.router.ratios)
        return RouteQuery(
            model,
            key,
            lane,
            principal.tenant.project_id,
            request.max_output_tokens or 0,
            labels=self._parts.settings.lanes.labels_of(lane),
            cache_domain=principal.tenant.cache_domain,
            tokens=await self._parts.tokens.chain(model, request, salt) if self._parts.router.knows_exactly else None,
            needs=needs,
        )

    def _needs(self, call: Call, request: InferenceRequest, model: str, principal: Principal) -> str:
        """What the replica must be chosen by. Raises `ClientError` (400) where none serves what is asked."""
        surfaces = self._parts.fleet.surfaces
        surface = request.surface.value if request.inputs is None else request.inputs.surface
        needs = surfaces.needs(model, surface)
        if needs is None and (request.inputs is None or not self._counts_itself(request.inputs, model)):
            visible = (one.name for one in self._parts.models.visible(principal.tenant))
            raise surfaces.refusal(request.model, model, surface, visible, called=call.incoming.path)
        return needs or ""

    def _counts_itself(self, inputs: Inputs, model: str) -> bool:
        """Whether tokens are to be counted that no engine counts, and this gateway has the model's vocabulary."""
        if not isinstance(inputs.wanted, TokenCount):
            return False
        return self._parts.fleet.surfaces.needs(model, inputs.surface) is None and self._parts.tokens.knows(model)

    async def _count(self, call: Call, request: InferenceRequest, model: str) -> None:
        wanted = None if request.inputs is None else request.inputs.wanted
        assert isinstance(wanted, TokenCount), "only those are counted here"
        count = await self._parts.tokens.count(model, request.fields)
        if count is None:
            raise ClientError("this conversation cannot be put into the model's chat template", param="messages")
        call.answer.whole(200, token_answers.counted(count, wanted.object), [])

    def _is_expected(self, model: str) -> bool:
        """Whether the configuration has somebody for it, who may still come."""
        settings = self._parts.settings
        return model in {replica.model for replica in settings.replicas} | {one.model for one in settings.workers}

    def _authenticate(self, incoming: Incoming) -> Principal:
        principal = self._parts.directory.authenticate(incoming.headers, self._parts.unix())
        if isinstance(principal, AuthFailure):
            raise ClientError(principal.message, status=401, code=principal.code, outcome=Outcome.UNAUTHENTICATED)
        return principal
