"""What routing knows of a request's content: a chain of its prefix, or only its size and a home where none is kept."""

from cache_affinity.prefix import PrefixKey, prefix_key
from cache_affinity.ratio import TokenRatios
from gateway.request import InferenceRequest
from gateway.wanted import Inputs


def route_key(model: str, salt: str, request: InferenceRequest, ratios: TokenRatios) -> PrefixKey:
    """The key of a request. `ratios`: what a token of each model is worth in bytes."""
    if request.inputs is not None:
        return _place_key(model, salt, request.inputs, ratios)
    return prefix_key(model, salt, request.segments, home_segments=request.home_segments, home_hint=request.home_hint)


def _place_key(model: str, salt: str, inputs: Inputs, ratios: TokenRatios) -> PrefixKey:
    """No borders: nothing is kept of a text that is embedded or ranked. Equal inputs have the same home."""
    home = prefix_key(model, salt, (inputs.content,), max_borders=1).home
    num_bytes = inputs.num_bytes if inputs.num_tokens is None else ratios.of(model).bytes(inputs.num_tokens)
    return PrefixKey((), (), num_bytes, home)
