"""A signed message to the one configured address, as the Standard Webhooks convention has it.

`webhook-signature` is `v1,` and the base64 of HMAC-SHA256 over `ID.TIMESTAMP.BODY`. The address comes from the
settings alone, redirects are not followed, and nothing of an answer is read but its status.
"""

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Callable

import httpx

from gateway.admin_settings import AlertsSection
from gateway.settings import ConfigError

TIMEOUT_S = 5.0
_MIN_SECRET_BYTES = 16


class WebhookFailed(Exception):
    """It was not taken. `is_final`: the receiver wants no more of it (410)."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class Webhook:
    """One receiver. `clock`: Unix seconds. `close` lets go of its connections."""

    def __init__(
        self,
        url: str,
        secret: bytes,
        *,
        clock: Callable[[], float] = time.time,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._secret = secret
        self._clock = clock
        self._client = httpx.AsyncClient(transport=transport, timeout=TIMEOUT_S, follow_redirects=False)

    async def send(self, message_id: str, body: bytes) -> None:
        """Return once the receiver has taken it (2xx). Raises `WebhookFailed`."""
        timestamp = str(int(self._clock()))
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
            "webhook-signature": signature(self._secret, message_id, timestamp, body),
        }
        try:
            async with self._client.stream("POST", self._url, content=body, headers=headers) as answer:
                status = answer.status_code
        except httpx.HTTPError as error:
            raise WebhookFailed(type(error).__name__) from error
        if not 200 <= status < 300:
            raise WebhookFailed(f"status {status}", is_final=status == httpx.codes.GONE)

    async def close(self) -> None:
        """Harmless the second time."""
        await self._client.aclose()


def signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """What a receiver compares."""
    signed = hmac.new(secret, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(signed).decode()


def webhook_of(section: AlertsSection) -> Webhook | None:
    """The configured receiver, None where there is none. Raises `ConfigError` for a secret that is missing or weak."""
    secret = webhook_secret(section)
    return None if secret is None else Webhook(section.webhook_url, secret)


def webhook_secret(section: AlertsSection) -> bytes | None:
    """What signs, None without a receiver. Raises `ConfigError` for one that is missing or weak."""
    if not section.webhook_url:
        return None
    text = os.environ.get(section.webhook_secret_env, "").strip()
    try:
        secret = base64.b64decode(text[6:], validate=True) if text.startswith("whsec_") else text.encode()
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"alerts: {section.webhook_secret_env} begins with whsec_ but is not base64") from error
    if len(secret) < _MIN_SECRET_BYTES:
        raise ConfigError(f"alerts: {section.webhook_secret_env} must hold a secret of at least 16 bytes")
    return secret
