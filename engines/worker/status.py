"""What a worker says about itself: health, load, models, metrics. All of it answers at once, whatever the load."""

from collections.abc import Awaitable, Callable

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engines.step_cost import StepCost
from engines.worker.answers import encode_json
from engines.worker.errors import ApiError
from engines.worker.metrics import VectorCounts
from engines.worker.service import Service
from engines.worker.surface import check_model
from policies.lane import Lane

Answer = Callable[[Request], Awaitable[Response]]
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class LaneLoad(Struct):
    """Sequences of one lane, as of the last step."""

    running: int
    waiting: int


class HostKvLoad(Struct):
    """KV in host memory. Counters of tokens: copied there, back, and given up there."""

    bytes: int
    max_bytes: int
    saved_tokens: int
    restored_tokens: int
    discarded_tokens: int


class SpeculationLoad(Struct):
    """Tokens guessed ahead, and found right."""

    drafted_tokens: int
    accepted_tokens: int


class LoadAnswer(Struct):
    """How busy the worker is. `server_load` is vLLM's name for open requests; sequences are `running` or `waiting`.

    `step_cost`: what the worker has learned of its steps' time. `host_kv`, `speculation` and `vectors`: what was done
    so far, beside what host memory holds now. `bulk_rows_left_out`, `bulk_lifts`: counters. `kv_tokens`, `max_seqs`: 0
    for a model that generates nothing.
    """

    server_load: int
    running: int
    waiting: int
    kv_used_ratio: float
    kv_cached_ratio: float
    kv_tokens: int
    max_seqs: int
    step_s: float
    step_cost: StepCost
    lanes: dict[str, LaneLoad]
    num_steps: int
    preemptions: int
    bulk_rows_left_out: int
    bulk_lifts: int
    evictions: int
    host_kv: HostKvLoad
    speculation: SpeculationLoad
    vectors: VectorCounts
    faults: int
    is_draining: bool


class KvEventSource(Struct):
    """Where the worker's KV events can be subscribed to."""

    endpoint: str
    replay_endpoint: str
    topic: str
    data_parallel_rank: int = 0


class ModelCard(Struct):
    """vLLM's description of a served model, and `tasks`, what it does, by vLLM's names for that."""

    id: str
    created: int
    max_model_len: int
    root: str
    tasks: list[str]
    object: str = "model"
    owned_by: str = "warmlane"
    parent: None = None


class ModelList(Struct):
    """All models served: one."""

    data: list[ModelCard]
    object: str = "list"


def status_routes(service: Service) -> list[Route]:
    """The routes that say how the worker is."""
    answers: tuple[tuple[str, Callable[[Service], Response]], ...] = (
        ("/health", _health),
        ("/load", _load),
        ("/v1/models", _models),
        ("/metrics", _metrics),
        ("/kv_event_sources", _kv_event_sources),
    )
    routes = [Route(path, _route(service, answer), methods=["GET"]) for path, answer in answers]
    return [*routes, Route("/v1/models/{name:path}", _model_route(service), methods=["GET"])]


def _route(service: Service, answer: Callable[[Service], Response]) -> Answer:
    async def respond(_request: Request) -> Response:
        return answer(service)

    return respond


def _health(service: Service) -> Response:
    """200 when new requests are taken, else 503."""
    return Response(status_code=200 if service.is_ready else 503)


def _load(service: Service) -> Response:
    load = service.loaded.engine.load()
    loaded = service.loaded
    answer = LoadAnswer(
        server_load=service.num_requests,
        running=load.running,
        waiting=load.waiting,
        kv_used_ratio=load.kv_used_ratio,
        kv_cached_ratio=load.kv_cached_ratio,
        kv_tokens=loaded.num_blocks * loaded.block_size,
        max_seqs=loaded.max_seqs,
        step_s=load.step_s,
        step_cost=load.step_cost,
        lanes={lane.value: LaneLoad(load.running_by_lane.of(lane), load.waiting_by_lane.of(lane)) for lane in Lane},
        num_steps=load.num_steps,
        preemptions=load.preemptions,
        bulk_rows_left_out=load.bulk_rows_left_out,
        bulk_lifts=load.bulk_lifts,
        evictions=load.evictions,
        host_kv=HostKvLoad(
            load.kv_host_bytes,
            load.kv_host_max_bytes,
            load.kv_saved_tokens,
            load.kv_restored_tokens,
            load.kv_discarded_tokens,
        ),
        speculation=SpeculationLoad(load.drafted_tokens, load.accepted_tokens),
        vectors=service.metrics.num_vectors,
        faults=load.faults,
        is_draining=service.is_draining,
    )
    return Response(encode_json(answer), media_type="application/json")


def _kv_event_sources(service: Service) -> Response:
    """As vLLM lists them, one a cache; none if events are not published."""
    published = service.loaded.kv_events
    sources: list[KvEventSource] = []
    if published is not None:
        sources.append(KvEventSource(published.endpoint, published.replay_endpoint, published.settings.topic))
    return Response(encode_json(sources), media_type="application/json")


def _card(service: Service) -> ModelCard:
    name = service.settings.name
    return ModelCard(name, service.started_at, service.prompts.max_tokens, name, _tasks(service))


def _tasks(service: Service) -> list[str]:
    tasks = ["generate"] if service.loaded.generates else []
    if service.vectors is not None:
        tasks += ["score"] if service.vectors.model.can_rank else ["embed", "score"]
    return tasks


def _models(service: Service) -> Response:
    return Response(encode_json(ModelList([_card(service)])), media_type="application/json")


def _model_route(service: Service) -> Answer:
    async def respond(request: Request) -> Response:
        try:
            check_model(request.path_params["name"], service.settings.name)
        except ApiError as error:
            return Response(error.body(), error.status, media_type="application/json")
        return Response(encode_json(_card(service)), media_type="application/json")

    return respond


def _metrics(service: Service) -> Response:
    return Response(service.metrics.exposition(), headers={"content-type": _METRICS_TYPE})
