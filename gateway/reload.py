"""A configuration read again while all goes on: what changes at once, what waits for a restart; all of it or nothing.

The gateways are told the settings in force, and find them in a file of the supervisor's when they start later: what
became of the operator's own file meanwhile, good or bad, says nothing to them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from gateway.admin.control_client import ControlError
from gateway.config_errors import sentences
from gateway.fleet import api_key
from gateway.home import HomeError, write_private
from gateway.lane_settings import LanesSection
from gateway.settings import ConfigError, ConfigFile, ResponseCacheSection, Settings
from observability.metrics import GaugeRows

HANDED_NAME = "settings.json"
_LIVE = frozenset(
    {
        "models",
        "replicas",
        "telemetry.log_level",
        "timeouts.first_token_s",
        "timeouts.idle_s",
        "timeouts.total_s",
        "timeouts.keepalive_s",
        "retries.max_attempts",
        "retries.replica_budget_ratio",
        "outliers.max_ejected_share",
        "outliers.first_s",
        "outliers.max_s",
        "slow_start.window_s",
        "hedging.max_share",
        "hedging.quantile",
        *(f"response_cache.{key}" for key in ResponseCacheSection.model_fields),
        *(f"lanes.{lane}.{key}" for lane in LanesSection.model_fields for key in ("labels", "queue", "max_wait_s")),
        "lanes.standard.weight",
        "lanes.bulk.weight",
        "lanes.bulk.lift_after_s",
    }
)
_IN_PART = ("telemetry", "timeouts", "retries", "outliers", "slow_start", "hedging", "response_cache")


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Keys as they stand in the file, a list of sections as one. `changed`: in force now; the others only later."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def compare(old: Settings, new: Settings) -> Reloaded:
    """What differs, told apart by when it can be in force."""
    before, after = dict(_leaves(old.model_dump())), dict(_leaves(new.model_dump()))
    differing = [key for key in before | after if before.get(key) != after.get(key)]
    live = tuple(key for key in differing if key in _LIVE)
    return Reloaded(live, tuple(key for key in differing if key not in _LIVE))


def merged(old: Settings, new: Settings) -> Settings:
    """The old settings with whatever can change at once taken from the new."""
    lanes = {name: _live_part(f"lanes.{name}", old.lanes, new.lanes) for name in type(old.lanes).model_fields}
    update: dict[str, Any] = {name: _live_part(name, old, new) for name in _IN_PART}
    update |= {"models": new.models, "replicas": new.replicas, "lanes": old.lanes.model_copy(update=lanes)}
    return old.model_copy(update=update)


def _live_part(path: str, old: BaseModel, new: BaseModel) -> BaseModel:
    """A section of the old settings, with its live keys as in the new ones. `path`: as in `_LIVE`."""
    name = path.rpartition(".")[2]
    before, after = getattr(old, name), getattr(new, name)
    keys = [key.removeprefix(f"{path}.") for key in _LIVE if key.startswith(f"{path}.")]
    part: BaseModel = before.model_copy(update={key: getattr(after, key) for key in keys})
    return part


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        is_labels = name == "labels"  # names of its own choosing: a value like another
        if isinstance(value, dict) and not is_labels:
            yield from _leaves(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


class Reloader:
    """The settings in force, and how they change. `configured` has the port as it was asked for."""

    def __init__(
        self,
        configured: Settings,
        reread: Callable[[], Settings],
        tell: Callable[[bytes], Awaitable[None]],
        handed: Path,
        *,
        workers: frozenset[str] = frozenset(),
    ) -> None:
        """`reread`: raises `ConfigError`. `tell`: every gateway, raises `ControlError`. `workers`: names taken.

        Writes `handed`, the file for gateways that start. Raises `HomeError`.
        """
        self._reread = reread
        self._tell = tell
        self._handed = handed
        self._workers = workers
        self._reloading = asyncio.Lock()
        self.settings = configured
        self.generation = 1  # raised whenever other settings come into force
        self.fault: str | None = None  # why the last reading was refused; None once one is good, be it the same text
        write_private(handed, configured.model_dump_json())

    async def reload(self) -> Reloaded:
        """Read the configuration again and put what can be into force, in every gateway or in none.

        Raises `ConfigError` for one that cannot be used, `ControlError` when a gateway did not take it.
        """
        async with self._reloading:
            try:
                found = await self._reload()
            except (ConfigError, ControlError) as error:
                self.fault = str(error)
                raise
            self.fault = None
            return found

    def statistics(self) -> dict[str, Any]:
        """For `/admin/v1/statistics`."""
        return {"config": {"generation": self.generation, "fault": self.fault}}

    def metrics(self) -> GaugeRows:
        """For `/metrics`."""
        yield "warmlane_config_generation", {}, self.generation
        yield "warmlane_config_refused", {}, self.fault is not None

    async def _reload(self) -> Reloaded:
        new = await asyncio.to_thread(self._reread)
        found, target = compare(self.settings, new), merged(self.settings, new)
        self._check(new, target)
        if found.changed:
            await self._apply(target)
            self.generation += 1
        return found

    def _check(self, new: Settings, target: Settings) -> None:
        if self.settings.replicas and not (new.replicas or new.models or new.workers):
            # An editor empties a file before it writes it, and a disk that is full leaves it so.
            raise ConfigError("it names no replica, model or worker any more: an empty file changes nothing")
        try:  # a new alias may be the name of a model whose worker goes only with a restart
            ConfigFile.model_validate(target.model_dump())
        except ValidationError as error:
            why = "; ".join(sentences(ConfigFile, {}, error.errors()))
            raise ConfigError(f"not before a restart, with what changes only then: {why}") from error
        for replica in new.replicas:
            api_key(replica)
            if replica.name in self._workers:
                raise ConfigError(f"replicas: the name {replica.name} belongs to a worker that Warmlane starts")

    async def _apply(self, target: Settings) -> None:
        before = self.settings
        try:
            self._take(target)
            await self._tell(target.model_dump_json().encode())
        except HomeError as error:
            raise ControlError(str(error)) from error
        except ControlError:
            self._take(before)
            await self._undo(before)
            raise

    def _take(self, settings: Settings) -> None:
        write_private(self._handed, settings.model_dump_json())  # first: a gateway may start at any moment
        self.settings = settings

    async def _undo(self, before: Settings) -> None:
        try:
            await self._tell(before.model_dump_json().encode())
        except ControlError:
            return  # the one that does not answer is started again, and finds the old ones
