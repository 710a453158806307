"""Replicas as they come to a gateway: announced by the supervisor, or of the configuration."""

from typing import Annotated, Literal

import msgspec

from engines.contract import EngineAdapter
from gateway.settings import ReplicaSection
from routing.replica import ReplicaSpec, prefill_name

_ANY_SEATS = 1 << 20


class AnnouncedReplica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker as the supervisor announces it. `kv_events`: see `kv_sources`. `tokenizer`: see `prompt_tokens`.

    `tasks`: what its model does, where somebody says so; see `abilities`. `role`: which part of a request it does;
    empty: all of it.
    """

    name: str
    model: str
    engine: str
    url: str
    seats: Annotated[int, msgspec.Meta(ge=1)]
    upstream_model: str | None = None
    labels: dict[str, str] = {}
    kv_tokens: int | None = None
    generation: int = 0
    priority: bool = False
    bulk_seats: int | None = None
    is_cache_shared: bool = False
    kv_events: str = ""
    tokenizer: str = ""
    tasks: tuple[str, ...] = ()
    role: Literal["", "prefill", "decode"] = ""


class Announcement(msgspec.Struct, frozen=True):
    """All workers that live now; what is not in it is gone.

    `draining`: all replicas that an operator has drained, configured ones too; None says nothing about that.
    """

    replicas: list[AnnouncedReplica]
    draining: list[str] | None = None


def spec_of(announced: AnnouncedReplica, adapter: EngineAdapter, surfaces: frozenset[str]) -> ReplicaSpec:
    """The replica as routing knows it. One that only reads queues by itself; the seats of others bound what comes."""
    is_prefill = announced.role == "prefill"
    return ReplicaSpec(
        name=announced.name,
        model=prefill_name(announced.model) if is_prefill else announced.model,
        engine=announced.engine,
        url=announced.url,
        seats=_ANY_SEATS if is_prefill else announced.seats,
        labels=announced.labels,
        capabilities=adapter.capabilities,
        kv_tokens=announced.kv_tokens,
        generation=announced.generation,
        bulk_seats=announced.bulk_seats,
        is_cache_shared=announced.is_cache_shared,
        surfaces=surfaces,
        prefills_for=announced.model if is_prefill else "",
        is_decoder=announced.role == "decode",
    )


def of_section(section: ReplicaSection) -> AnnouncedReplica:
    """A replica of the configuration, as if it had been announced."""
    return AnnouncedReplica(
        name=section.name,
        model=section.model,
        engine=section.engine,
        url=section.url,
        seats=section.seats,
        upstream_model=section.upstream_model,
        labels=section.labels,
        priority=section.priority,
        is_cache_shared=section.shares_cache,
        kv_events=section.kv_events,
        tasks=section.tasks,
        role="" if section.role == "whole" else section.role,
    )
