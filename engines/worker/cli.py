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

from engines.core.eviction import EvictionPolicy
from engines.core.latency_guard import LatencySettings
from engines.hardware import cores_here
from engines.launch.ready_line import ready_line
from engines.launch.tether import die_with_parent
from engines.step_cost import StepCost
from engines.worker.engine_loaders import CannotStart
from engines.worker.engine_options import EngineOptions, Speculation
from engines.worker.family import REASONING_FORMATS, TOOL_FORMATS
from engines.worker.kv_events import KvEventSettings
from engines.worker.loaded import LoadedEngine, load_engine
from engines.worker.settings import WorkerSettings
from observability import logs

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_CORES = cores_here()
_KV = KvEventSettings()
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


_Engine = Annotated[str, typer.Option(help="Which engine: gguf or fake.")]
_Model = Annotated[str | None, typer.Option(help="Name by which clients call the model; default: the file's.")]
_Path = Annotated[Path | None, typer.Option(help="Model file, for gguf.")]
_Host = Annotated[str, typer.Option(help="Address to listen on.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")]
_MaxSeqs = Annotated[int, typer.Option(min=1, max=256, help="Sequences computed at once.")]
_KvTokens = Annotated[int, typer.Option(min=1, help="Tokens that the KV cache holds.")]
_HostKvMb = Annotated[
    int | None,
    typer.Option(min=0, max=1 << 20, help="MiB of memory for KV that is evicted; default: some that is free, fake: 0."),
]
_Eviction = Annotated[EvictionPolicy, typer.Option(help="What is evicted first: unused for long, or used only once.")]
_MaxStepTokens = Annotated[int, typer.Option(min=1, help="Tokens computed in one step.")]
_MaxWaiting = Annotated[int, typer.Option(min=0, help="Requests that may wait for a seat, bulk and others each.")]
_ContextTokens = Annotated[int | None, typer.Option(min=1, help="Longest sequence; default: the model's.")]
_BlockSize = Annotated[int, typer.Option(min=1, max=1024, help="Tokens in a block of the prefix cache.")]
_Threads = Annotated[int, typer.Option(min=1, max=512, help="Most threads; what a step takes of them is measured.")]
_ThreadsBatch = Annotated[
    int | None,
    typer.Option(min=1, max=512, help="Threads for steps of several tokens; then --threads is for the others."),
]
_Home = Annotated[Path | None, typer.Option(help="Folder with a native build; default: WARMLANE_HOME or .warmlane.")]
_ItlP95S = Annotated[
    float | None,
    typer.Option(min=0.001, help="Gap between an interactive request's tokens that bulk may cause, seconds."),
]
_MaxStepS = Annotated[float | None, typer.Option(min=0.001, help="Longest step while only bulk is open, seconds.")]
_StepLog = Annotated[Path | None, typer.Option(help="File that gets a line of JSON for each step.")]
_MaxDrafts = Annotated[
    int | None,
    typer.Option(min=0, max=64, help="Tokens guessed ahead for a sequence in a step; default: 8."),
]
_Speculation = Annotated[
    Speculation | None,
    typer.Option(help="How tokens are guessed ahead: ngram, or off; default: ngram, fake: off."),
]
_DefaultMaxTokens = Annotated[
    int | None, typer.Option(min=1, help="Output when a request names no max_tokens; default: the context.")
]
_MaxBodyMb = Annotated[float, typer.Option(min=0.001, help="Largest request body.")]
_DrainS = Annotated[float, typer.Option(min=0, help="Seconds open requests get after a stop signal.")]
_VllmMetricNames = Annotated[bool, typer.Option("--vllm-metric-names", help="Metrics under vllm: too.")]
_KvEvents = Annotated[bool, typer.Option("--kv-events", help="Publish what becomes of the KV cache, as vLLM does.")]
_KvEventsEndpoint = Annotated[str, typer.Option(help="Where KV events are published; `*` takes a free port.")]
_KvReplayEndpoint = Annotated[str, typer.Option(help="Where KV events can be asked for again.")]
_KvBufferSteps = Annotated[
    int, typer.Option(min=1, max=1_000_000, help="Batches of KV events kept for who missed some.")
]
_KvIntHashes = Annotated[bool, typer.Option("--kv-events-int-hashes", help="Names of blocks as numbers.")]
_Embeddings = Annotated[bool, typer.Option("--embeddings", help="gguf: serve embeddings too, the mean of its vectors.")]
_ToolFormat = Annotated[str, typer.Option(help=f"How tool calls are written: {', '.join(TOOL_FORMATS)}.")]
_ReasoningFormat = Annotated[
    str, typer.Option(help=f"How reasoning is marked: {', '.join(REASONING_FORMATS)}; none leaves it in the answer.")
]
_CheckWhenIdle = Annotated[
    bool, typer.Option("--check-when-idle", help="Verify all accounting of KV whenever nothing is open; for tests.")
]
_DieWithParent = Annotated[bool, typer.Option("--die-with-parent", help="End when the starting process dies.")]
_FakeBaseS = Annotated[float, typer.Option(min=0, help="fake: seconds of every step.")]
_FakePerRowS = Annotated[float, typer.Option(min=0, help="fake: seconds a decoded token adds.")]
_FakePerPrefillTokenS = Annotated[float, typer.Option(min=0, help="fake: seconds a prompt token adds.")]
_FakeEosEvery = Annotated[int, typer.Option(min=0, help="fake: end about once in so many tokens, 0 never.")]
_LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]


@app.command(epilog=_EXAMPLE)
def worker(  # noqa: PLR0917  # typer passes options by name
    engine: _Engine = "gguf",
    model: _Model = None,
    path: _Path = None,
    host: _Host = "127.0.0.1",
    port: _Port = 0,
    max_seqs: _MaxSeqs = 8,
    kv_tokens: _KvTokens = 16384,
    host_kv_mb: _HostKvMb = None,
    eviction: _Eviction = EvictionPolicy.LRU,
    max_step_tokens: _MaxStepTokens = 512,
    max_waiting: _MaxWaiting = 1024,
    context_tokens: _ContextTokens = None,
    block_size: _BlockSize = 16,
    threads: _Threads = _CORES,
    threads_batch: _ThreadsBatch = None,
    home: _Home = None,
    itl_p95_s: _ItlP95S = None,
    max_step_s: _MaxStepS = None,
    step_log: _StepLog = None,
    speculation: _Speculation = None,
    max_drafts: _MaxDrafts = None,
    default_max_tokens: _DefaultMaxTokens = None,
    max_body_mb: _MaxBodyMb = 16,
    drain_s: _DrainS = 30,
    vllm_metric_names: _VllmMetricNames = False,
    kv_events: _KvEvents = False,
    kv_events_endpoint: _KvEventsEndpoint = _KV.endpoint,
    kv_events_replay_endpoint: _KvReplayEndpoint = _KV.replay_endpoint,
    kv_events_buffer_steps: _KvBufferSteps = _KV.max_batches,
    kv_events_int_hashes: _KvIntHashes = False,
    embeddings: _Embeddings = False,
    tool_format: _ToolFormat = "auto",
    reasoning_format: _ReasoningFormat = "auto",
    check_when_idle: _CheckWhenIdle = False,
    die_with_parent_: _DieWithParent = False,
    fake_base_s: _FakeBaseS = 0,
    fake_per_row_s: _FakePerRowS = 0,
    fake_per_prefill_token_s: _FakePerPrefillTokenS = 0,
    fake_eos_every: _FakeEosEvery = 97,
    log_level: _LogLevel = "info",
) -> None:
    """Serve one model over OpenAI's API until SIGTERM or Ctrl-C, then finish what is open and end."""
    if die_with_parent_:
        die_with_parent(os.getppid())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor's affair, however it was sent
    published = KvEventSettings(
        kv_events_endpoint, kv_events_replay_endpoint, has_int_hashes=kv_events_int_hashes,
        max_batches=kv_events_buffer_steps,
    ) if kv_events else None  # fmt: skip
    options = EngineOptions(
        engine=engine, path=path, name=model or (path.stem if path is not None else engine),
        max_seqs=max_seqs, kv_tokens=kv_tokens, max_step_tokens=min(max_step_tokens, kv_tokens),
        threads=threads, threads_batch=threads_batch, home=home, block_size=block_size, max_waiting=max_waiting,
        context_tokens=context_tokens, latency=LatencySettings(itl_p95_s=itl_p95_s, max_step_s=max_step_s),
        step_log=step_log, fake_cost=StepCost(fake_base_s, fake_per_row_s, fake_per_prefill_token_s),
        speculation=speculation, max_drafts=max_drafts, fake_eos_every=fake_eos_every, kv_events=published,
        host_kv_mb=host_kv_mb, eviction=eviction, serves_embeddings=embeddings, checks_when_idle=check_when_idle,
    )  # fmt: skip
    settings = WorkerSettings(
        name=options.name, engine=engine, drain_s=drain_s, default_max_tokens=default_max_tokens or kv_tokens,
        max_body_bytes=int(max_body_mb * (1 << 20)), vllm_metric_names=vllm_metric_names,
        tool_format=tool_format, reasoning_format=reasoning_format,
    )  # fmt: skip
    _check_usage(options, log_level)
    _check_formats(tool_format, reasoning_format)
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


def _check_formats(tool_format: str, reasoning_format: str) -> None:
    for hint, given, known in (
        ("--tool-format", tool_format, TOOL_FORMATS),
        ("--reasoning-format", reasoning_format, REASONING_FORMATS),
    ):
        if given not in known:
            raise typer.BadParameter(f"{given} is not a format; choose from {', '.join(known)}", param_hint=hint)


def _serve(options: EngineOptions, settings: WorkerSettings, place: _Place) -> None:
    """Bind, load, serve. The port is taken before the model is read, so that a taken one shows at once."""
    from engines.worker.server import bind, run

    def leave(*_: object) -> None:
        os._exit(0)  # an exception would be dropped where it meets a finalizer or a callback of the library

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
    logs.get().debug(  # the ready line is for everybody; this adds what only an operator asks for
        "worker.ready",
        model=settings.name,
        engine=settings.engine,
        max_seqs=loaded.max_seqs,
        kv_tokens=loaded.num_blocks * loaded.block_size,
        context_tokens=loaded.max_tokens,
    )
