"""`python -m engines.worker`: options in, one ready line out, and an exit status that tells the truth.

0 after a stop signal, 1 with one sentence on stderr when the worker cannot serve, 2 for bad usage. Apart from that
sentence and the ready line everything written is a log line on stderr.
"""

import os
import re
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from engines.core.latency_guard import LatencySettings
from engines.launch.ready_line import ready_line
from engines.launch.tether import die_with_parent
from engines.step_cost import StepCost
from engines.worker.loaded import CannotStart, EngineOptions, LoadedEngine, load_engine
from engines.worker.settings import WorkerSettings
from observability import logs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_CORES = os.cpu_count() or 1
_EXAMPLE = """
Example:

  python -m engines.worker --engine gguf --path SmolLM2-135M-Instruct.Q4_1.gguf --model smollm2 --port 9001
"""


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    port: int


def main() -> None:
    """Run the command."""
    app(prog_name="warmlane worker")


@app.command(epilog=_EXAMPLE)
def worker(  # noqa: PLR0917  # typer passes options by name
    engine: Annotated[str, typer.Option(help="Which engine: gguf or fake.")] = "gguf",
    model: Annotated[
        str | None, typer.Option(help="Name by which clients call the model; default: the file's.")
    ] = None,
    path: Annotated[Path | None, typer.Option(help="Model file, for gguf.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    max_seqs: Annotated[int, typer.Option(min=1, max=256, help="Sequences computed at once.")] = 8,
    kv_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the KV cache holds.")] = 16384,
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Tokens computed in one step.")] = 512,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Requests that may wait for a seat, bulk and others each.")
    ] = 1024,
    context_tokens: Annotated[int | None, typer.Option(min=1, help="Longest sequence; default: the model's.")] = None,
    block_size: Annotated[int, typer.Option(min=1, max=1024, help="Tokens in a block of the prefix cache.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Threads for steps of one token.")] = _CORES,
    threads_batch: Annotated[int | None, typer.Option(min=1, help="Threads for other steps; default: threads.")] = None,
    itl_p95_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="Gap between an interactive request's tokens that bulk may cause, seconds."),
    ] = None,
    max_step_s: Annotated[
        float | None, typer.Option(min=0.001, help="Longest step while only bulk is open, seconds.")
    ] = None,
    step_log: Annotated[Path | None, typer.Option(help="File that gets a line of JSON for each step.")] = None,
    default_max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Output when a request names no max_tokens; default: the context.")
    ] = None,
    max_body_mb: Annotated[float, typer.Option(min=0.001, help="Largest request body.")] = 16,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds open requests get after a stop signal.")] = 30,
    vllm_metric_names: Annotated[bool, typer.Option("--vllm-metric-names", help="Metrics under vllm: too.")] = False,
    die_with_parent_: Annotated[
        bool, typer.Option("--die-with-parent", help="End when the starting process dies.")
    ] = False,
    fake_base_s: Annotated[float, typer.Option(min=0, help="fake: seconds of every step.")] = 0,
    fake_per_row_s: Annotated[float, typer.Option(min=0, help="fake: seconds a decoded token adds.")] = 0,
    fake_per_prefill_token_s: Annotated[float, typer.Option(min=0, help="fake: seconds a prompt token adds.")] = 0,
    fake_eos_every: Annotated[int, typer.Option(min=0, help="fake: end about once in so many tokens, 0 never.")] = 97,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve one model over OpenAI's API until SIGTERM or Ctrl-C, then finish what is open and end."""
    if die_with_parent_:
        die_with_parent(os.getppid())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor's affair, however it was sent
    options = EngineOptions(
        engine=engine,
        path=path,
        name=model or (path.stem if path is not None else engine),
        max_seqs=max_seqs,
        kv_tokens=kv_tokens,
        max_step_tokens=min(max_step_tokens, kv_tokens),
        threads=threads,
        threads_batch=threads_batch or threads,
        block_size=block_size,
        max_waiting=max_waiting,
        context_tokens=context_tokens,
        latency=LatencySettings(itl_p95_s=itl_p95_s, max_step_s=max_step_s),
        step_log=step_log,
        fake_cost=StepCost(fake_base_s, fake_per_row_s, fake_per_prefill_token_s),
        fake_eos_every=fake_eos_every,
    )
    settings = WorkerSettings(
        name=options.name,
        engine=engine,
        drain_s=drain_s,
        default_max_tokens=default_max_tokens or kv_tokens,
        max_body_bytes=int(max_body_mb * (1 << 20)),
        vllm_metric_names=vllm_metric_names,
    )
    _check_usage(options, log_level)
    logs.configure(log_level, "worker")
    _serve(options, settings, _Place(host, port))


def _check_usage(options: EngineOptions, log_level: str) -> None:
    if options.engine not in ("gguf", "fake"):
        raise typer.BadParameter(f"{options.engine} is not an engine; choose gguf or fake", param_hint="--engine")
    if not re.fullmatch(r"\S{1,200}", options.name):
        raise typer.BadParameter("the model's name must be 1 to 200 characters without spaces", param_hint="--model")
    if log_level.lower() not in ("debug", "info", "warning", "error"):
        raise typer.BadParameter("choose debug, info, warning or error", param_hint="--log-level")
    if options.engine == "gguf" and options.path is None:
        raise typer.BadParameter("the gguf engine needs a model file", param_hint="--path")
    if options.max_step_tokens < options.max_seqs:
        raise typer.BadParameter("must be at least --max-seqs", param_hint="--max-step-tokens")


def _serve(options: EngineOptions, settings: WorkerSettings, place: _Place) -> None:
    """Bind, load, serve. The port is taken before the model is read, so that a taken one shows at once."""
    from engines.worker.server import bind, run

    def leave(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)  # while loading; the server sets its own
    signal.signal(signal.SIGINT, leave)
    try:
        listener = bind(place.host, place.port)
        with listener:
            loaded = load_engine(options)
            run(loaded, settings, listener, lambda: _announce(listener, settings, loaded))
    except CannotStart as error:
        logs.write_sentence(f"warmlane worker: {error}")
        raise typer.Exit(1) from None


def _announce(listener: socket.socket, settings: WorkerSettings, loaded: LoadedEngine) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if listener.family == socket.AF_INET6 else host
    line = ready_line(url=f"http://{shown}:{port}/v1", model=settings.name, engine=settings.engine)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    bounds = loaded.settings
    logs.get().info(
        "worker.ready",
        model=settings.name,
        engine=settings.engine,
        max_seqs=bounds.max_seqs,
        kv_tokens=bounds.kv_tokens,
        context_tokens=bounds.max_sequence_tokens,
    )
