"""The engine kinds that can be attached, by the name that configuration uses."""

from engines.adapters.llama_server import LlamaServerAdapter
from engines.adapters.openai import OpenAIAdapter
from engines.adapters.vllm import VllmAdapter
from engines.adapters.warmlane import WarmlaneAdapter
from engines.contract import EngineAdapter

ADAPTERS: dict[str, EngineAdapter] = {
    adapter.kind: adapter for adapter in (WarmlaneAdapter(), VllmAdapter(), LlamaServerAdapter(), OpenAIAdapter())
}


def adapter_for(kind: str) -> EngineAdapter:
    """The adapter of that engine kind. Raises ValueError naming the known ones."""
    try:
        return ADAPTERS[kind]
    except KeyError:
        raise ValueError(f"engine {kind!r} is not one of {', '.join(sorted(ADAPTERS))}") from None
