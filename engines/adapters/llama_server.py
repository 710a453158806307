"""External llama.cpp servers (`llama-server`): one shared slot pool, no salt, no priority, no request id.

Its cache cannot be separated by tenant: routing keeps tenants that must not observe each other off one server.
"""

from msgspec import Raw

from engines.adapters.load_text import RUNNING, WAITING, read_load
from engines.adapters.plain import PlainAdapter
from engines.adapters.steering import folded
from engines.adapters.surfaces import LLAMA_SERVER_PATHS, TOKENIZE
from engines.contract import Capabilities, LoadReport, Steering

_NAMES = {b"llamacpp:requests_processing": RUNNING, b"llamacpp:requests_deferred": WAITING}

# Its own steering: LoRA scales by number.
_STEERING = frozenset({"lora", "slot_id"})

# What the standard's fields of /tokenize are called there; unlike vLLM it adds no special tokens unless told to.
_TOKENIZE_NAMES = {"prompt": "content", "add_special_tokens": "add_special", "return_token_strs": "with_pieces"}


class LlamaServerAdapter(PlainAdapter):
    """`/metrics` answers only where the server runs with `--metrics`."""

    kind = "llama-server"
    capabilities = Capabilities(reports_cached_tokens=True)
    health_path = "/health"
    load_path = "/metrics"
    paths = LLAMA_SERVER_PATHS

    def forwards(self, name: str) -> bool:
        """Whether a client's field is passed on."""
        return folded(name) not in _STEERING and super().forwards(name)

    def input_fields(self, fields: dict[str, Raw], steering: Steering) -> dict[str, Raw]:
        """As everywhere, but for its own words of /tokenize."""
        kept = super().input_fields(fields, steering)
        if steering.surface == TOKENIZE:
            kept = {_TOKENIZE_NAMES.get(name, name): value for name, value in kept.items()}
            if bytes(kept.get("add_special", b"null")) == b"null":
                kept["add_special"] = Raw(b"true")
        return kept

    def read_load(self, body: bytes) -> LoadReport:
        """Busy slots and deferred requests; it does not say how full its cache is."""
        return read_load(body, _NAMES)
