"""The engine kinds that can be attached, by the name that configuration uses."""

from engines.adapters.llama_server import LlamaServerAdapter
from engines.adapters.openai import OpenAIAdapter
from engines.adapters.vllm import VllmAdapter
from engines.adapters.warmlane import WarmlaneAdapter
from engines.contract import EngineAdapter

ADAPTERS: dict[str, EngineAdapter] = {
    adapter.kind: adapter for adapter in (WarmlaneAdapter(), VllmAdapter(), LlamaServerAdapter(), OpenAIAdapter())
}
_VLLM_WITH_PRIORITY = VllmAdapter(has_priority_scheduling=True)


def adapter_for(kind: str, *, has_priority: bool = False) -> EngineAdapter:
    """The adapter of that engine kind. Raises ValueError naming the known ones, and for a priority none would get.

    `has_priority`: this server was started so that it orders requests by priority. Our workers always do.
    """
    if has_priority and kind in ADAPTERS:
        if kind == VllmAdapter.kind:
            return _VLLM_WITH_PRIORITY
        if not ADAPTERS[kind].capabilities.priority:
            raise ValueError(f"engine {kind!r} knows no priorities")
    try:
        return ADAPTERS[kind]
    except KeyError:
        raise ValueError(f"engine {kind!r} is not one of {', '.join(sorted(ADAPTERS))}") from None
