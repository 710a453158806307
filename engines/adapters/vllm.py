"""External vLLM servers."""

from msgspec import Raw

from engines.adapters.forms import text_part
from engines.adapters.load_text import read_load, vllm_names
from engines.adapters.plain import PlainAdapter, attempt_headers, raw_fields
from engines.adapters.surfaces import VLLM_PATHS
from engines.contract import Capabilities, Headers, LoadReport, Part, Steering

_NAMES = vllm_names(b"vllm:")
_FOR_ANOTHER = Raw(b'{"do_remote_decode":true,"do_remote_prefill":false}')


class VllmAdapter(PlainAdapter):
    """`has_priority_scheduling`: the server runs with `--scheduling-policy priority`.

    Without it vLLM refuses a request that has a priority, so none is sent. Cached tokens are reported only by servers
    started with `--enable-prompt-tokens-details`: absence is not zero.
    """

    kind = "vllm"
    health_path = "/health"
    load_path = "/metrics"
    paths = VLLM_PATHS

    def __init__(self, *, has_priority_scheduling: bool = False) -> None:
        self.capabilities = Capabilities(
            cache_salt=True, priority=has_priority_scheduling, tokenize=True, splits_prefill=True
        )

    def own_fields(self, steering: Steering) -> dict[str, Raw]:
        """The tenant's salt; the lane's rank as priority where the server knows priorities; where KV goes or lies."""
        fields = raw_fields(cache_salt=steering.cache_salt)
        if self.capabilities.priority:
            fields |= raw_fields(priority=steering.lane.rank)
        if steering.reads_only:
            fields |= raw_fields(max_tokens=1) | {"kv_transfer_params": _FOR_ANOTHER}
        elif steering.transfer:
            fields["kv_transfer_params"] = Raw(steering.transfer)
        return fields

    def own_parts(self, steering: Steering) -> list[Part]:
        """A stream's usage is told only to whoever asks."""
        return [text_part("stream_include_usage", "true")] if steering.is_streaming else []

    def own_headers(self, steering: Steering) -> Headers:
        """Attempt id (it wins over any id in the body) and trace."""
        return attempt_headers(steering)

    def read_load(self, body: bytes) -> LoadReport:
        """Running, waiting and KV use from vLLM's metrics."""
        return read_load(body, _NAMES)
