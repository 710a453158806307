"""An OpenID provider for tests: a real HTTP server on this machine with a discovery document, keys, and a pen."""

import asyncio
import json
import socket
import time
import warnings
from contextlib import asynccontextmanager

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

AUDIENCE = "warmlane-admin"
_RSA = [rsa.generate_private_key(65537, 2048) for _ in range(2)]  # making one takes a tenth of a second
_WEAK = rsa.generate_private_key(65537, 1024)
_EC = ec.generate_private_key(ec.SECP256R1())
_EDWARDS = ed25519.Ed25519PrivateKey.generate()


class Issuer:
    """`asked`: paths in order. `is_down`: connections are closed unanswered. `documents`: what is said instead."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.keys = {"first": _RSA[0]}
        self.more_keys: list = []
        self.asked: list[str] = []
        self.is_down = False
        self.documents: dict[str, bytes] = {}

    def rotate(self) -> None:
        """Another key, and the old one gone."""
        self.keys = {"second": _RSA[1]}

    def add_curves(self) -> None:
        """Keys of other kinds beside the others."""
        self.keys |= {"curve": _EC, "edwards": _EDWARDS}

    def add_weak(self) -> None:
        """A key that is too short."""
        self.keys["weak"] = _WEAK

    def claims(self, **changed) -> dict:
        """What a good token says; None leaves a claim out."""
        now = int(time.time())
        good = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now,
            "exp": now + 300,
            "roles": ["platform_admin"],
        }
        return {name: value for name, value in (good | changed).items() if value is not None}

    def token(self, kid="first", algorithm="RS256", headers=None, **changed) -> str:
        """A signed token."""
        key = {"first": _RSA[0], "second": _RSA[1], "curve": _EC, "edwards": _EDWARDS, "weak": _WEAK}.get(kid, _RSA[0])
        head = {} if kid is None else {"kid": kid}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jwt.warnings.InsecureKeyLengthWarning)  # the weak key is weak on purpose
            return jwt.encode(self.claims(**changed), key, algorithm, headers=head | (headers or {}))

    def public_pem(self) -> bytes:
        """The first key as everybody may have it."""
        return _RSA[0].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ")[1]
            self.asked.append(path)
            if not self.is_down:
                body = self.documents.get(path) or json.dumps(self._document(path)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _document(self, path: str) -> dict:
        if path == "/jwks":
            return {"keys": [*(self._jwk(kid, key) for kid, key in self.keys.items()), *self.more_keys]}
        return {"issuer": self.url, "jwks_uri": f"{self.url}/jwks", "authorization_endpoint": f"{self.url}/x"}

    @staticmethod
    def _jwk(kid: str, key) -> dict:
        kinds = {
            rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
            ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
            ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
        }
        kind = next(of for cls, of in kinds.items() if isinstance(key, cls))
        return json.loads(kind.to_jwk(key.public_key())) | {"kid": kid, "use": "sig"}


@asynccontextmanager
async def running_issuer():
    """An issuer that listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    issuer = Issuer(listener.getsockname()[1])
    server = await asyncio.start_server(issuer.answer, sock=listener)
    try:
        yield issuer
    finally:
        server.close()
        await server.wait_closed()
