"""External llama.cpp servers (`llama-server`): one shared slot pool, no salt, no priority, no request id.

Its cache cannot be separated by tenant: routing keeps tenants that must not observe each other off one server.
"""

from engines.adapters.load_text import RUNNING, WAITING, read_load
from engines.adapters.plain import PlainAdapter
from engines.adapters.steering import folded
from engines.contract import Capabilities, LoadReport

_NAMES = {b"llamacpp:requests_processing": RUNNING, b"llamacpp:requests_deferred": WAITING}

# Its own steering: LoRA scales by number.
_STEERING = frozenset({"lora", "slot_id"})


class LlamaServerAdapter(PlainAdapter):
    """`/metrics` answers only where the server runs with `--metrics`."""

    kind = "llama-server"
    capabilities = Capabilities(reports_cached_tokens=True)
    health_path = "/health"
    load_path = "/metrics"

    def forwards(self, name: str) -> bool:
        """Whether a client's field is passed on."""
        return folded(name) not in _STEERING and super().forwards(name)

    def read_load(self, body: bytes) -> LoadReport:
        """Busy slots and deferred requests; it does not say how full its cache is."""
        return read_load(body, _NAMES)
