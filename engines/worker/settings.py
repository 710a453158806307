"""The bounds of a worker's API half. Every number a client can run into stands here; the engine has its own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """`name`: the model as clients call it.

    `default_max_tokens`: output when a request names none, within the context. `max_body_bytes`, `body_timeout_s`: of a
    request's body. `max_preparing`: requests whose prompt is being made or waits for it. `max_pending`: pieces kept for
    a client that reads slowly. `prepare_threads`: rendering and tokenising happen there. `drain_s`: how long open
    requests may go on after a stop signal. `tool_format`, `reasoning_format`: how answers are read, a name out of
    family.py's, or auto.
    """

    name: str
    engine: str
    default_max_tokens: int
    drain_s: float = 30.0
    max_body_bytes: int = 16 << 20
    body_timeout_s: float = 30.0
    max_preparing: int = 256
    max_pending: int = 1024
    prepare_threads: int = 2
    vllm_metric_names: bool = False
    tool_format: str = "auto"
    reasoning_format: str = "auto"
