"""Our own workers: salted caches, lanes as priorities, one trace."""

from msgspec import Raw

from engines.adapters.load_text import read_load, vllm_names
from engines.adapters.plain import PlainAdapter, attempt_headers, raw_fields
from engines.adapters.surfaces import WORKER_PATHS
from engines.contract import Capabilities, Headers, LoadReport, Steering

_NAMES = vllm_names(b"warmlane:")


class WarmlaneAdapter(PlainAdapter):
    """A worker started by `warmlane up` or `warmlane worker`."""

    kind = "warmlane"
    capabilities = Capabilities(
        cache_salt=True, priority=True, reports_cached_tokens=True, tokenize=True, leaves_bulk_out=True
    )
    health_path = "/health"
    load_path = "/metrics"
    paths = WORKER_PATHS
    tells_tasks = True

    def own_fields(self, steering: Steering) -> dict[str, Raw]:
        """The tenant's salt, and the lane's rank as priority: lower is served first."""
        return raw_fields(cache_salt=steering.cache_salt, priority=steering.lane.rank)

    def own_headers(self, steering: Steering) -> Headers:
        """Attempt id and trace."""
        return attempt_headers(steering)

    def read_load(self, body: bytes) -> LoadReport:
        """Running, waiting and KV use from the worker's metrics."""
        return read_load(body, _NAMES)
