"""The signing keys of an OpenID provider: found by its discovery document, kept, and fetched again when they change.

A provider that is away costs nothing while its keys are known: they go on for a day. A key that is not known is asked
for at once, but not more often than every few seconds, so that made-up key ids send no flood to the provider.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

REFRESH_S = 300.0  # chosen: a key that the provider withdrew ends within five minutes
MAX_AGE_S = 86400.0  # chosen: so long keys are believed while the provider is away
COOLDOWN_S = 10.0
TIMEOUT_S = 3.0
MAX_DOCUMENT_BYTES = 256 * 1024
MAX_KEYS = 100
MIN_RSA_BITS = 2048
_DISCOVERY = "/.well-known/openid-configuration"
_KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}  # what signs with which algorithms


T = TypeVar("T")


class IssuerUnreachable(Exception):
    """The provider cannot be asked, or says nothing of use; the sentence is fit for a caller."""


class _Discovery(msgspec.Struct):
    issuer: str
    jwks_uri: str


class _Keys(msgspec.Struct):
    keys: list[dict[str, Any]]


class KeySet:
    """The keys of one issuer. `clock`: monotonic seconds. For one event loop; `close` lets go of the connections."""

    def __init__(
        self,
        issuer: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._issuer = issuer
        self._clock = clock
        self._client = httpx.AsyncClient(
            transport=transport, timeout=TIMEOUT_S, follow_redirects=False, headers={"accept": "application/json"}
        )
        self._keys: tuple[dict[str, Any], ...] = ()
        self._fetched_at = self._tried_at = float("-inf")
        self._failure = ""  # of the last try; empty: it succeeded
        self._fetching = asyncio.Lock()

    async def key(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """The key of this id, for this algorithm; None if the provider has none.

        Raises `IssuerUnreachable` when that is not known.
        """
        if self._clock() - self._fetched_at >= REFRESH_S:
            await self._refresh()
        if (found := self._find(kid, algorithm)) is None:
            await self._refresh()
            found = self._find(kid, algorithm)
        if found is None and self._failure:
            raise IssuerUnreachable(self._failure)
        return found

    async def close(self) -> None:
        """Harmless the second time."""
        await self._client.aclose()

    def _find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        if self._clock() - self._fetched_at >= MAX_AGE_S:
            return None
        fitting = [one for one in self._keys if _fits(one, kid, algorithm)]
        # A token without a key id is clear only where one key can be meant.
        return _loaded(fitting[0], algorithm) if len(fitting) == 1 else None

    async def _refresh(self) -> None:
        """Ask once for all who wait. A failure leaves the keys as they are."""
        asked_at = self._clock()
        async with self._fetching:
            if self._tried_at > asked_at or self._clock() - self._tried_at < COOLDOWN_S:
                return
            self._tried_at = self._clock()
            try:
                async with asyncio.timeout(2 * TIMEOUT_S):
                    self._keys = await self._fetch()
            except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
                reason = str(error) if isinstance(error, _Unusable) else type(error).__name__
                self._failure = f"the OpenID provider {self._issuer} cannot be asked for its keys ({reason})"
            else:
                self._fetched_at, self._failure = self._clock(), ""

    async def _fetch(self) -> tuple[dict[str, Any], ...]:
        found = _parsed(await self._get(self._issuer.rstrip("/") + _DISCOVERY), _Discovery)
        if found.issuer != self._issuer:
            raise _Unusable("its discovery document names another issuer")
        if urlsplit(found.jwks_uri).scheme != "https" and not self._is_beside(found.jwks_uri):
            raise _Unusable("its keys are not at an https:// address")
        keys = _parsed(await self._get(found.jwks_uri), _Keys).keys
        return tuple(keys[:MAX_KEYS])

    def _is_beside(self, url: str) -> bool:
        """Whether it is at the issuer's own address: plain http is for this machine (settings)."""
        mine, its = urlsplit(self._issuer), urlsplit(url)
        return (mine.scheme, mine.netloc) == (its.scheme, its.netloc)

    async def _get(self, url: str) -> bytes:
        async with self._client.stream("GET", url) as answer:
            if answer.status_code != httpx.codes.OK:
                raise _Unusable(f"status {answer.status_code}")
            content = bytearray()
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MAX_DOCUMENT_BYTES:
                    raise _Unusable("its answer is too large")
            return bytes(content)


class _Unusable(ValueError):
    """What the provider said cannot be used."""


def _parsed(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _Unusable("its answer is not what it should be") from error


def _fits(key: dict[str, Any], kid: str | None, algorithm: str) -> bool:
    """Whether a JWK may have signed this: its own word on use and algorithm counts, and secrets are no keys here."""
    return (
        key.get("kty") == _KINDS[algorithm[:2]]
        and (kid is None or key.get("kid") == kid)
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
    )


def _loaded(key: dict[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """The key for use; None for one that is malformed, of the wrong curve, or too short to be trusted."""
    try:
        loaded = jwt.PyJWK(key, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(loaded.key, RSAPublicKey) and loaded.key.key_size < MIN_RSA_BITS:
        return None
    return loaded
