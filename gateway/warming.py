"""Pre-warming: an operator has some replicas read a prefix before anybody asks for it.

It is a request of the project, of one token, sent to one replica each: the project's salt, limits, ledger and isolation
hold for it as for any other, and it gives back what it held.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cache_affinity.prefix import PrefixKey
from engines.contract import Headers
from gateway.errors import ClientError
from gateway.lifecycle import Lifecycle
from gateway.parts import Parts
from gateway.request import Surface, read
from gateway.route_key import route_key
from gateway.sink import Incoming, SinkWatcher
from gateway.story import Story
from gateway.turned_away import nobody_serves
from gateway.warm_place import WarmPlace
from gateway.warm_wire import WarmBody, WarmedBody, WarmedReplica
from policies.tenant import Principal, Role
from routing.replica import Replica, ReplicaState
from routing.ring import weight

# What makes an answer longer, or several; all else may be part of the prompt.
_ONE_TOKEN: dict[str, Any] = {"max_tokens": 1, "stream": False}
_LONGER = ("max_completion_tokens", "n_predict", "max_new_tokens", "n_cmpl", "n", "best_of", "min_tokens")
_NOT_STREAMED = ("stream_options", "service_tier")


class Warming:
    """Warms prefixes on the replicas of this gateway."""

    def __init__(self, parts: Parts, lifecycle: Lifecycle) -> None:
        self._parts = parts
        self._lifecycle = lifecycle

    async def warm(self, asked: WarmBody) -> WarmedBody:
        """Send the prefix to each replica at once, and wait for all, `timeout_s` at most.

        Raises `ClientError` for what cannot be sent to any, and `Refused` where no replica of the model is ready.
        """
        tenant = self._parts.directory.tenant(asked.project_id)
        if tenant is None:
            raise ClientError("no project of this id has a key", param="project_id", status=404, code="unknown_project")
        surface, body = Surface(asked.surface), msgspec.json.encode(_bounded(asked.request))
        request = read(surface, body)
        model = self._parts.models.resolve(request.model, tenant)
        key = route_key(model, tenant.cache_salt, request, self._parts.router.ratios)
        chosen = self._chosen(asked, model, key, tenant.cache_domain)
        principal = Principal(tenant, "", "pre-warming", frozenset({Role.SERVICE}), asked.lane, asked.lane)
        names = frozenset(replica.name for replica in self._parts.router.pool.of_model(model))
        sent = [
            self._send(surface, body, asked.timeout_s, WarmPlace(principal, asked.lane, names - {one.name}))
            for one in chosen
        ]
        stories = await asyncio.gather(*sent)
        now = self._parts.clock()
        rows = [_row(one.name, story, now) for one, story in zip(chosen, stories, strict=True)]
        return WarmedBody(
            project_id=tenant.project_id,
            organization_id=tenant.organization_id,
            model=model,
            lane=asked.lane,
            asked=len(asked.replicas) or asked.count,
            warmed=sum(row.outcome == "finished" for row in rows),
            charged_tokens=sum(story.charged_tokens or 0 for story in stories),
            replicas=rows,
        )

    def _chosen(self, asked: WarmBody, model: str, key: PrefixKey, domain: str) -> Sequence[Replica]:
        """The replicas that shall read it: as named, else by what they hold and have to do. Raises as `warm`."""
        known = {replica.name: replica for replica in self._parts.router.pool.of_model(model)}
        if asked.replicas:
            unknown = next((name for name in asked.replicas if name not in known), None)
            if unknown is not None:
                message = f"no replica of {model} is called {unknown!r}"
                raise ClientError(message, param="replicas", status=404, code="unknown_replica")
            return [known[name] for name in dict.fromkeys(asked.replicas)]
        ready = [replica for replica in known.values() if replica.state is ReplicaState.READY]
        if not ready:
            raise nobody_serves()
        held, owners = self._parts.router.pool.holders.depths(key), self._parts.isolation.owners
        ready.sort(key=lambda one: (-held.get(one.name, 0), one.work_tokens, -weight(key.home, one)))
        own = [one for one in ready if owners.may_use(domain, one.spec)]
        if not own:  # engines of one tenant each: as a request of its own it gets one, and takes no more from others
            return sorted(ready, key=lambda one: owners.owner(one.spec.url) is not None)[:1]
        return own[: asked.count]

    async def _send(self, surface: Surface, body: bytes, timeout_s: float, place: WarmPlace) -> Story:
        """One request in a task of its own, as every request has one."""
        headers: Headers = [(b"x-warmlane-deadline-ms", b"%d" % max(1, round(timeout_s * 1000)))]
        incoming = Incoming(surface.value, headers, body, self._parts.clock(), peer="admin")
        return await asyncio.create_task(self._lifecycle.warm(incoming, _Unheard(), place))


class _Unheard:
    """A `ClientSink` for an answer that nobody reads."""

    is_gone = False

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Nothing to do."""

    def write(self, data: bytes) -> None:
        """Nothing to do."""

    def end(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        """Nothing to do."""

    def watch(self, watcher: SinkWatcher | None) -> None:
        """It is never slow."""

    def on_gone(self, callback: Callable[[], object]) -> None:
        """It never leaves."""


def _bounded(request: dict[str, Any]) -> dict[str, Any]:
    """The same prompt, and an answer of one token."""
    kept = {name: value for name, value in request.items() if name not in (*_LONGER, *_NOT_STREAMED)}
    return kept | _ONE_TOKEN


def _row(name: str, story: Story, now: float) -> WarmedReplica:
    record = story.record(now)
    prompt, cached = (None, None) if record.is_estimated else (record.prompt_tokens, record.cached_tokens)
    return WarmedReplica(
        replica=record.replica or name,  # one that joined meanwhile may have been given it
        outcome=record.outcome,
        reason=None if story.problem is None else story.problem.message,
        request_id=story.request_id,
        prompt_tokens=prompt,
        cached_tokens=cached,
        uncached_tokens=None if prompt is None or cached is None else max(0, prompt - cached),
        queue_s=record.queue_s,
        duration_s=record.duration_s,
    )
