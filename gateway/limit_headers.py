"""The `x-ratelimit-*` headers: what is left of the strictest limit of requests and of tokens."""

from math import ceil

from engines.contract import Headers
from policies.meters import Standing

_REQUESTS = (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests")
_TOKENS = (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens")


def limit_headers(requests: Standing | None, tokens: Standing | None) -> Headers:
    """Absent where there is no limit. Resets are whole seconds, rounded up."""
    found: Headers = []
    if requests is not None:
        found += _told(_REQUESTS, requests)
    if tokens is not None:
        found += _told(_TOKENS, tokens)
    return found


def _told(names: tuple[bytes, bytes, bytes], standing: Standing) -> Headers:
    limit, remaining, reset = names
    return [
        (limit, b"%d" % standing.limit),
        (remaining, b"%d" % standing.remaining),
        (reset, b"%ds" % ceil(standing.reset_s)),
    ]
