"""What a key's secret looks like, how it is read from headers, and what is derived from secrets.

Only a secret's SHA-256 and its prefix are ever stored. A secret has 256 random bits, so a plain hash is enough, and
finding it by its hash takes the same time however much of a guess is right. No message here repeats what was sent.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

MAX_CREDENTIAL_BYTES = 512  # chosen: ours have 56; a JWT for people does not come here
SERVER_SECRET_BYTES = 32
_ID_PART = 8
_RANDOM_BYTES = 32
_VISIBLE = re.compile(rb"[\x21-\x7e]+")


class CredentialFault(Enum):
    """Why no credential could be read from a request's headers."""

    MISSING = "missing"
    AMBIGUOUS = "ambiguous"  # two headers that could each be the credential
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Secret:
    """A new secret, shown once. `prefix` is safe to store and show: it comes from the key's id."""

    text: str
    prefix: str
    digest: bytes

    def __repr__(self) -> str:
        return f"<Secret {self.prefix}…>"


def new_id(kind: str) -> str:
    """A fresh id such as `proj_3f0c…`: 80 random bits in hex, so ids cannot be guessed or counted."""
    return f"{kind}_{secrets.token_hex(10)}"


def new_secret(key_id: str) -> Secret:
    """A fresh secret for a key: `wl-`, eight digits of its id, and 43 url-safe characters (256 random bits)."""
    prefix = f"wl-{key_id.rpartition('_')[2][:_ID_PART]}"
    text = f"{prefix}-{secrets.token_urlsafe(_RANDOM_BYTES)}"
    return Secret(text, prefix, digest(text.encode()))


def new_server_secret() -> bytes:
    """The secret of a new installation: 32 random bytes."""
    return secrets.token_bytes(SERVER_SECRET_BYTES)


def digest(credential: bytes) -> bytes:
    """What is stored of a secret and looked up by: its SHA-256, 32 bytes."""
    return hashlib.sha256(credential).digest()


def cache_salt(server_secret: bytes, domain: str) -> str:
    """The salt of a cache domain, 32 hex digits: nobody without the server's secret can tell or choose it.

    128 bits of an HMAC in hex, which every engine takes; vLLM's rule is the strictest (engines.md, trap 5).
    """
    return hmac.new(server_secret, b"cache-salt" + domain.encode(), hashlib.sha256).hexdigest()[:32]


def read_credential(headers: Iterable[tuple[bytes, bytes]], most_bytes: int | None = None) -> bytes | CredentialFault:
    """The one credential in a request's headers (names in lower case, as ASGI gives them).

    `Authorization: Bearer X` (the scheme in any case) or `x-api-key: X`, or both if they are the same. A repeated
    header, another scheme, more than `most_bytes` (512), or anything but visible ASCII is refused.
    """
    authorization: bytes | None = None
    api_key: bytes | None = None
    for name, value in headers:
        if name == b"authorization":
            if authorization is not None:
                return CredentialFault.AMBIGUOUS
            authorization = value
        elif name == b"x-api-key":
            if api_key is not None:
                return CredentialFault.AMBIGUOUS
            api_key = value
    if authorization is None and api_key is None:
        return CredentialFault.MISSING
    most = most_bytes or MAX_CREDENTIAL_BYTES
    found = {_plain(value, most) for value in (_bearer(authorization), api_key) if value is not None}
    if None in found:
        return CredentialFault.MALFORMED
    return found.pop() or CredentialFault.MALFORMED if len(found) == 1 else CredentialFault.AMBIGUOUS


def _bearer(authorization: bytes | None) -> bytes | None:
    """What follows the scheme; empty, and so malformed, if the scheme is another."""
    if authorization is None:
        return None
    scheme, _, credential = authorization.strip(b" \t").partition(b" ")
    return credential if scheme.lower() == b"bearer" else b""


def _plain(value: bytes, most_bytes: int) -> bytes | None:
    """The value without surrounding blanks, if it can be a credential at all."""
    value = value.strip(b" \t")
    return value if len(value) <= most_bytes and _VISIBLE.fullmatch(value) else None
