"""Which requests are the same, which may be given an earlier answer, and what a client asks of a cache. Pure."""

import hashlib
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from gateway.fields import LARGE_BYTES, reader
from gateway.request import InferenceRequest
from policies.tenant import ResponseCaching, Tenant

# What says nothing of the answer: who asks, how it is sent, where it is routed and kept.
_OF_THE_CALL = frozenset(
    {
        "model", "stream", "stream_options", "user", "metadata", "safety_identifier", "service_tier", "store",
        "prompt_cache_key", "prompt_cache_retention", "session_id",
    }
)  # fmt: skip
_number = reader(float | None)
_whole = reader(int | None)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request's `cache-control` says. `max_age_s`: of the answer that it takes; 0: only a new one."""

    keeps: bool = True
    max_age_s: float = float("inf")


_NO_WISH = Wish()


def wish_of(cache_control: bytes | None) -> Wish:
    """`no-store`: neither look nor keep; `no-cache`: answer anew and keep that; `max-age=N`: nothing older."""
    if cache_control is None:
        return _NO_WISH
    keeps, max_age_s = True, float("inf")
    for directive in cache_control.lower().split(b","):
        name, _, value = directive.strip().partition(b"=")
        if name == b"no-store":
            keeps, max_age_s = False, 0.0
        elif name == b"no-cache":
            max_age_s = 0.0
        elif name == b"max-age" and value.strip(b'"').isdigit() and len(value) < 16:
            max_age_s = min(max_age_s, float(value.strip(b'"')))
    return Wish(keeps, max_age_s)


def cache_key(request: InferenceRequest, model: str, tenant: Tenant) -> bytes | None:
    """What equal requests of one project have in common; None: this one is answered anew, whatever was said before.

    `model`: its real name. The tenant's secret salt is in it, so that an entry ends with the salt.
    """
    caching, fields = tenant.limits.response_cache, request.fields
    if caching is ResponseCaching.OFF or request.inputs is not None:
        return None
    if caching is ResponseCaching.REPEATABLE and not is_repeatable(fields):
        return None
    kept = sorted(name for name in fields if name not in _OF_THE_CALL)
    if sum(len(fields[name]) for name in kept) > LARGE_BYTES:
        return None  # the time that it takes to compare would be felt by others
    words = [tenant.project_id.encode(), tenant.cache_salt.encode(), model.encode(), request.surface.value.encode()]
    for name in kept:
        words += (name.encode(), _plain(fields[name]))
    drawn = hashlib.sha256()
    for word in words:
        drawn.update(b"%d:" % len(word))
        drawn.update(word)
    return drawn.digest()


def is_repeatable(fields: dict[str, Raw]) -> bool:
    """Whether the client asks for an answer that is the same every time: greedy, or drawn with a seed of its own."""
    temperature, top_k, seed = (fields.get(name) for name in ("temperature", "top_k", "seed"))
    if temperature is not None and _number(temperature) == 0:
        return True
    if top_k is not None and _whole(top_k) == 1:
        return True
    return seed is not None and _whole(seed) is not None


def _plain(value: Raw) -> bytes:
    """Without blanks between its parts; the order of keys stays, since a template may write it out."""
    return bytes(msgspec.json.format(bytes(value), indent=-1))
