"""Everything that one run of the supervisor is made of, and the command lines of its children. Pure."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engines.launch.ready_line import ReadyLine
from engines.launch.supervised import ChildSpec
from engines.launch.worker_command import WorkerSpec, worker_command
from gateway.home import Home
from gateway.ports import announced_port
from gateway.settings import Settings

_GATEWAY_START_S = 30
_WORKER_START_S = 300  # chosen: a large model on a slow disk
_WORKER_DRAIN_S = 5  # the gateway has drained by then: only what was sent to the worker directly is left
_WORKER_GRACE_S = 10
_AFTER_DRAIN_S = 10  # a gateway that drained aborts the rest and writes its last records


@dataclass(frozen=True, slots=True)
class Launch:
    """One run. `config`: the file that the gateway processes read too; flags are in `settings` already."""

    settings: Settings
    config: Path | None
    home: Home
    admin_token: str
    workers: tuple[WorkerSpec, ...]

    @property
    def model(self) -> str:
        """A model to try first, empty when none is configured."""
        names = [
            *(worker.model for worker in self.workers),
            *(model.name for model in self.settings.models),
            *(replica.model for replica in self.settings.replicas),
        ]
        return names[0] if names else ""

    def gateway(self, number: int, socket: Path, fleet: Callable[[], bytes]) -> ChildSpec:
        """One gateway process. On any free port (0) a restarted one comes back on the port it had.

        `fleet`: the workers that live now, asked before every start, so that a restarted one serves from the beginning.
        """

        def command(last: ReadyLine | None) -> list[str]:
            port = announced_port(last) if last is not None else self.settings.gateway.port
            config = ["--config", str(self.config)] if self.config is not None else []
            where = ["--control", str(socket), "--port", str(port), "--number", str(number)]
            known = ["--fleet", fleet().decode()]
            return [sys.executable, "-m", "gateway.process", *config, "--home", str(self.home.path), *where, *known]

        grace_s = self.settings.gateway.drain_s + _AFTER_DRAIN_S
        return ChildSpec(f"gateway-{number}", command, start_timeout_s=_GATEWAY_START_S, grace_s=grace_s)

    def worker(self, spec: WorkerSpec) -> ChildSpec:
        """One worker process, on any free port of the loopback."""
        settings = self.settings
        argv = worker_command(
            replace(spec, home=self.home.path),
            drain_s=_WORKER_DRAIN_S,
            log_level=settings.telemetry.log_level,
            itl_p95_s=settings.lanes.interactive.itl_p95_s,
        )
        return ChildSpec(spec.name, _always(argv), start_timeout_s=_WORKER_START_S, grace_s=_WORKER_GRACE_S)


def _always(argv: list[str]) -> Callable[[ReadyLine | None], list[str]]:
    return lambda _last: argv
