"""What a request's headers ask for: its lane, its deadline, its place in a trace, its caller's own id. Pure.

A caller's label is a wish: the lane is bounded by the key, everything else by its form.
"""

import re

from gateway.errors import ClientError
from gateway.outcome import Outcome
from gateway.sink import Incoming
from policies.lane import Lane
from policies.tenant import Principal, Tenant

MAX_DEADLINE_MS = 86_400_000
_SAFE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def classify(incoming: Incoming, tier_lane: Lane | None, principal: Principal) -> Lane:
    """The lane that a header or `service_tier` asks for, else the key's own. Raises `ClientError` (400, 403)."""
    asked = incoming.header(b"x-warmlane-lane")
    lane = _named(asked) if asked is not None else tier_lane or principal.default_lane
    if not lane.is_within(principal.max_lane):
        raise ClientError(
            f"this key may use lanes up to {principal.max_lane.value}, not {lane.value}",
            status=403,
            code="lane_not_allowed",
            outcome=Outcome.FORBIDDEN,
        )
    return lane


def refuse_surface(incoming: Incoming, tenant: Tenant) -> None:
    """Raises `ClientError` (403) if the tenant may not use the surface that was asked."""
    allowed = tenant.limits.surfaces
    if allowed is not None and incoming.path not in allowed:
        raise ClientError(
            f"this project may not use {incoming.path}",
            status=403,
            code="surface_not_allowed",
            outcome=Outcome.FORBIDDEN,
        )


def read_deadline(incoming: Incoming) -> float | None:
    """When the first token must be there, monotonic seconds; None without a deadline. Raises `ClientError` (400)."""
    value = incoming.header(b"x-warmlane-deadline-ms")
    if value is None:
        return None
    if not value.isdigit() or len(value) > 9 or not 1 <= int(value) <= MAX_DEADLINE_MS:
        message = f"x-warmlane-deadline-ms must be a whole number from 1 to {MAX_DEADLINE_MS}"
        raise ClientError(message, param="x-warmlane-deadline-ms")
    return incoming.arrived_at + int(value) / 1000


def client_request_id(incoming: Incoming) -> str | None:
    """The caller's own id, kept for the record if it is short and harmless."""
    value = _only(incoming, b"x-request-id")
    return value.decode() if value is not None and _SAFE_ID.fullmatch(value) else None


def read_traceparent(incoming: Incoming) -> str | None:
    """The caller's W3C trace context, None if there is none, or several, or it is malformed."""
    value = _only(incoming, b"traceparent")
    return value.decode() if value is not None and _TRACEPARENT.fullmatch(value) else None


def _only(incoming: Incoming, name: bytes) -> bytes | None:
    values = [value for key, value in incoming.headers if key == name]
    return values[0] if len(values) == 1 else None


def _named(asked: bytes) -> Lane:
    try:
        return Lane(asked.decode("latin-1").strip().lower())
    except ValueError:
        names = ", ".join(lane.value for lane in Lane)
        raise ClientError(f"x-warmlane-lane must be one of {names}", param="x-warmlane-lane") from None
