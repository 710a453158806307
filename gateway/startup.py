"""From flags to a running supervisor: everything that can be known to be wrong is said before anything slow begins."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from engines.hardware import best_engine, detect, spare_memory_bytes
from engines.launch.demo_model import DEMO_MODEL_NAME, ensure_demo_model
from engines.launch.worker_command import WorkerSpec
from gateway.environment import overlooked
from gateway.home import Home
from gateway.isolation import separation_notes
from gateway.launch_plan import Launch
from gateway.ports import PortUnusable, check_port
from gateway.ready import Readiness
from gateway.settings import Settings, load
from gateway.stores import held, store_name
from gateway.supervisor import STOP_SIGNALS, Supervisor, SupervisorError
from gateway.webhook import webhook_secret
from gateway.worker_plan import needs_demo_model, plan_workers, wanted_workers
from observability import logs


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line. `has_workers`: `up`, in contrast to `gateway`."""

    config: Path | None
    home: Path
    port: int | None
    admin_port: int | None
    model: Path | None
    has_workers: bool


def start(request: Request) -> None:
    """Run until a signal ends it; the process is expected to end then: it no longer hears SIGTERM and SIGINT.

    Raises what `warmlane` reports in one sentence.
    """
    settings = effective_settings(request)
    logs.configure(settings.telemetry.log_level, "supervisor")
    for sentence in overlooked(settings, os.environ):
        logs.get().warning("environment.overlooked", reason=sentence)
    for sentence in separation_notes(settings.replicas):
        logs.get().warning("replica.cache_undivided", reason=sentence)
    webhook_secret(settings.alerts)  # a bad one must not be found by the first alert
    home = Home(request.home)
    home.create()
    with home.held(), contextlib.suppress(_Stopped), _stoppable():
        check_ports(settings)
        store_name(settings.store, home.path)
        with held(settings.store, home.path):
            token = home.admin_token(os.environ)
            workers = plan(request, settings, home) if request.has_workers else ()
            launch = Launch(settings, request.config, home, token, workers)
            asyncio.run(_supervise(launch, lambda: effective_settings(request)))


def effective_settings(request: Request) -> Settings:
    """The configuration with the flags on top. Raises `ConfigError`."""
    settings = load(request.config)
    flags = {"port": request.port, "admin_port": request.admin_port}
    given = {name: value for name, value in flags.items() if value is not None}
    return settings.model_copy(update={"gateway": settings.gateway.model_copy(update=given)})


def check_ports(settings: Settings) -> None:
    """Both ports can be had, and are two. Raises `PortUnusable`."""
    gateway = settings.gateway
    if gateway.port and gateway.port == gateway.admin_port:
        raise PortUnusable(f"gateway and admin plane cannot share port {gateway.port}; move one with --admin-port")
    check_port(gateway.host, gateway.port, remedy="--port or WARMLANE_PORT")
    check_port(gateway.admin_host, gateway.admin_port, remedy="--admin-port or WARMLANE_ADMIN_PORT")


def plan(request: Request, settings: Settings, home: Home) -> tuple[WorkerSpec, ...]:
    """The workers to start; brings the demo model if one needs it. Raises `ConfigError`, `ModelFetchError`."""
    sections = wanted_workers(settings, request.model, DEMO_MODEL_NAME, home.models)
    hardware = detect()
    choice = best_engine(hardware)
    if choice.missing and any(section.engine == "gguf" for section in sections):
        raise SupervisorError(f"the gguf engine does not fit this machine: {'; '.join(choice.missing)}")
    names = frozenset(replica.name for replica in settings.replicas)
    demo = ensure_demo_model(home.models) if needs_demo_model(sections) else None
    return plan_workers(sections, hardware.cores, demo, names, spare_memory_bytes())


async def _supervise(launch: Launch, reread: Callable[[], Settings]) -> None:
    await Supervisor(launch, lambda readiness: _announce(launch, readiness), reread).run()


def _announce(launch: Launch, readiness: Readiness) -> None:
    """demo.json first: whoever reads the line finds the file."""
    readiness.write(launch.home.demo)
    with contextlib.suppress(BrokenPipeError):  # nobody reads it: the gateway works all the same
        sys.stdout.write(f"{readiness.line()}\n")
        sys.stdout.flush()
    if sys.stderr.isatty():
        logs.write_lines(readiness.greeting(len(launch.workers)).encode())


class _Stopped(BaseException):
    """SIGTERM or SIGINT before the supervisor's own handlers were there: a wish, not a failure."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Inside the block the first signal ends what is going on (a download, say) and the process with exit 0.

    After it the process is ending anyway: a signal then must not spoil its exit status.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Stopped

    try:
        for number in STOP_SIGNALS:
            signal.signal(number, stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the supervisor answers it
        yield
    finally:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
