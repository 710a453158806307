"""The configuration file, its defaults and its bounds: one TOML file, overridden by WARMLANE_SECTION__KEY.

What is not written here does not exist: an unknown section or key is refused, so that no setting is silently ignored.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from engines.adapters import adapter_for
from gateway.admin_settings import AdminSection, AlertsSection
from gateway.config_file import read_settings
from gateway.config_values import HttpUrl, Name, Port, Seconds, refuse_half_pairs
from gateway.kv_sources import KvEvents
from gateway.lane_settings import LanesSection
from gateway.model_settings import ModelSection
from gateway.resilience_settings import HedgingSection, OutlierSection, RetrySection, SlowStartSection
from gateway.traffic_settings import refuse_bad_traffic

EngineKind = Literal["vllm", "llama-server", "openai", "warmlane"]
SHARED_STORES = tuple(f"{scheme}{kind}://" for scheme in ("redis", "rediss") for kind in ("", "+sentinel", "+cluster"))


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file and every bad key."""


class Section(BaseModel):
    """A part of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class GatewaySection(Section):
    """Listeners and limits of the gateway. `drain_s`: how long open streams may take to end after SIGTERM.

    `processes`: gateway processes on the same port; more than one needs a store that is shared. `gossip`: with such a
    store, whether gateways tell each other where prompts went and what they learned, so that together they hit as one.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    admin_host: str = "127.0.0.1"
    admin_port: Port = 8081
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    max_body_mb: Annotated[float, Field(gt=0, le=1024)] = 16
    drain_s: Annotated[float, Field(ge=0, le=86400)] = 30
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    gossip: bool = True


class StoreSection(Section):
    """Where organisations, projects and keys live: `sqlite:///path` or a Redis; empty: at home.

    Redis: `redis[s]://host:port/db`, `redis[s]+sentinel://host:port,host:port/service/db`, `redis[s]+cluster://host:port`.
    """

    url: str = ""

    @property
    def is_shared(self) -> bool:
        """Whether other gateways may use it too: then what they count together is leased among them."""
        return self.url.startswith(SHARED_STORES)


class LedgerSection(Section):
    """What is kept of requests for accounting. `rows_days`: one row a request; `rollups_days`: the totals of a day.

    Totals of an hour are kept for 62 days. In Redis a row takes 1 kB of its memory.
    """

    rows_days: Annotated[int, Field(ge=1, le=3650)] = 30
    rollups_days: Annotated[int, Field(ge=1, le=3650)] = 400


class ResponsesSection(Section):
    """What is kept of `/v1/responses`, so that a conversation can be gone on with by an id; in the store.

    `keep_hours`: how long; 0: nothing is kept. Of each project the oldest go above `max_per_project` responses or
    `max_mb_per_project`: each holds its whole conversation.
    """

    keep_hours: Annotated[float, Field(ge=0, le=8760)] = 72
    max_per_project: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_mb_per_project: Annotated[float, Field(gt=0, le=65_536)] = 64


class ResponseCacheSection(Section):
    """Answers that are given again to equal requests of the same project, in the memory of each gateway process.

    `max_mb`: of all; 0: none is kept. `max_mb_per_project`, `max_entry_kb`: of one project, of one answer. `ttl_s`: how
    long an answer is good. A project takes part by its limits document (`response_cache`).
    """

    max_mb: Annotated[float, Field(ge=0, le=65_536)] = 0
    max_mb_per_project: Annotated[float, Field(gt=0, le=65_536)] = 16
    max_entry_kb: Annotated[int, Field(ge=1, le=8192)] = 256
    ttl_s: Annotated[float, Field(gt=0, le=2_592_000)] = 300


class TelemetrySection(Section):
    """`log_level`: of the JSON log on stderr."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"


class TimeoutSection(Section):
    """Three different waits for an engine: to connect, for the first token, between tokens; and a total. Seconds.

    `head_s`, `body_s`: how long a client may take to send its request's head, then its body.
    """

    connect_s: Seconds = 2
    first_token_s: Seconds = 120
    idle_s: Seconds = 60
    total_s: Seconds = 3600
    keepalive_s: Seconds = 10
    head_s: Seconds = 15
    body_s: Seconds = 60


class ReplicaSection(Section):
    """An engine that runs already, attached by URL. `upstream_model`: its own name of the model, if another.

    `priority`: a vLLM server that runs with `--scheduling-policy priority`; without it vLLM refuses priorities.
    `shared_cache`: what if the engine knows no cache salt: `refuse` gives it to one tenant alone, `accept` to all,
    whose response times and cached tokens then tell what others asked. `kv_events`: `off`, `discover` (ask the engine
    where it publishes them) or `tcp://host:port`, with `,tcp://host:port` behind it for its replay socket; empty: our
    own workers are asked, others not. `tasks`: what its model does: `generate`, `embed` (texts), `score` (pairs, so
    that it ranks), `transcribe` (audio); none given: our own workers tell, a hosted provider is taken to generate and
    embed, others anything until they show that they cannot. `role`: of a pair of vLLM servers with a KV connector,
    `prefill` reads prompts and `decode` writes the answers; a model is served by such pairs or by whole replicas.
    """

    name: Name
    model: Name
    engine: EngineKind
    url: HttpUrl
    upstream_model: Name | None = None
    seats: Annotated[int, Field(ge=1, le=100_000)] = 32
    labels: dict[str, str] = {}
    api_key_env: str | None = None
    priority: bool = False
    shared_cache: Literal["refuse", "accept"] = "refuse"
    kv_events: KvEvents = ""
    tasks: tuple[Literal["generate", "embed", "score", "transcribe"], ...] = ()
    role: Literal["whole", "prefill", "decode"] = "whole"

    @model_validator(mode="after")
    def _the_engine_knows_it(self) -> Self:
        if self.role != "whole" and not adapter_for(self.engine).capabilities.splits_prefill:
            raise ValueError(f"engine {self.engine!r} cannot read prompts for others: role needs engine 'vllm'")
        if adapter_for(self.engine, has_priority=self.priority).capabilities.cache_salt and self.shares_cache:
            raise ValueError(f"engine {self.engine!r} separates tenants by a salt: there is no shared_cache to accept")
        return self

    @property
    def shares_cache(self) -> bool:
        """Whether tenants may meet in a cache that the engine cannot divide."""
        return self.shared_cache == "accept"

    @property
    def has_cache_salt(self) -> bool:
        """Whether the engine keeps tenants apart in its cache."""
        return adapter_for(self.engine).capabilities.cache_salt


class WorkerSection(Section):
    """Workers that Warmlane starts itself. `path`: a GGUF file or a stored model's name; empty: the demo model.

    `host_kv_mb`: MiB of host memory in which each keeps KV that it must evict; none given: an eighth of what is free at
    the start, shared among all workers, at most 1024 each. `speculation`: whether tokens are guessed ahead; none given:
    by n-grams, but not by the fake engine. `embeddings`: a model that generates serves embeddings too, the mean of its
    vectors; a file that only embeds or ranks needs no setting. `eviction`: which idle KV goes first: `lru`, what was
    not used for longest, or `slru`, what was used only once.
    """

    model: Name
    engine: Literal["gguf", "fake"] = "gguf"
    path: str = ""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    max_seqs: Annotated[int, Field(ge=1, le=128)] = 8
    kv_tokens: Annotated[int, Field(ge=256, le=10_000_000)] = 16_384
    host_kv_mb: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    eviction: Literal["lru", "slru"] = "lru"
    speculation: Literal["off", "ngram"] | None = None
    embeddings: bool = False
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    labels: dict[str, str] = {}


class ConfigFile(Section):
    """Everything that can stand in the file."""

    gateway: GatewaySection = GatewaySection()
    store: StoreSection = StoreSection()
    ledger: LedgerSection = LedgerSection()
    responses: ResponsesSection = ResponsesSection()
    response_cache: ResponseCacheSection = ResponseCacheSection()
    admin: AdminSection = AdminSection()
    alerts: AlertsSection = AlertsSection()
    telemetry: TelemetrySection = TelemetrySection()
    timeouts: TimeoutSection = TimeoutSection()
    retries: RetrySection = RetrySection()
    outliers: OutlierSection = OutlierSection()
    slow_start: SlowStartSection = SlowStartSection()
    hedging: HedgingSection = HedgingSection()
    lanes: LanesSection = LanesSection()
    models: tuple[ModelSection, ...] = ()
    replicas: tuple[ReplicaSection, ...] = ()
    workers: tuple[WorkerSection, ...] = ()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        _refuse_repeats("replicas", [replica.name for replica in self.replicas])
        _refuse_repeats("models", [name for model in self.models for name in (model.name, *model.aliases)])
        served = {replica.model for replica in self.replicas} | {worker.model for worker in self.workers}
        _refuse_repeats("served models and aliases", [*served, *(a for model in self.models for a in model.aliases)])
        roles = [(one.model, one.role) for one in self.replicas] + [(one.model, "whole") for one in self.workers]
        refuse_half_pairs(roles)
        refuse_bad_traffic(self.models, served)
        return self


class Settings(ConfigFile, BaseSettings):
    """Everything an operator can set: the file with the environment on top. Build it with `load`."""

    model_config = SettingsConfigDict(
        env_prefix="WARMLANE_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file (which arrives as init values); nothing else is read."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings

    @model_validator(mode="after")
    def _several_gateways_share_a_store(self) -> Self:
        # Asked here and not of the file, whose store may stand in the environment, as a secret does.
        if self.gateway.processes > 1 and not self.store.is_shared:
            raise ValueError(
                f"gateway.processes is {self.gateway.processes}: several gateway processes need a store that they "
                "share; set store.url to redis://host:port/db, or processes to 1"
            )
        return self


def _refuse_repeats(section: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{section}: the name {', '.join(repeated)} stands more than once")


def load(path: Path | None) -> Settings:
    """The settings of a TOML file (none: the defaults) with the environment on top.

    Raises `ConfigError` with one line for each mistake; nothing of a bad file is used.
    """
    found = read_settings(path, ConfigFile, Settings)
    if isinstance(found, Settings):
        return found
    raise ConfigError("\n".join(found))
