"""How a shell command finds the admin plane and asks it, with every failure one sentence."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

TIMEOUT_S = 30.0  # chosen: the admin plane gives up on a gateway after 2 s
DEFAULT_HOME = ".warmlane"
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class CommandFailed(Exception):
    """One sentence for stderr; the command ends with exit code 1."""


class NotFound(CommandFailed):
    """What was asked for is not there (404)."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the admin plane is and the token that opens it. `url` has no /admin/v1."""

    url: str
    token: str


class _Demo(msgspec.Struct):
    """The parts of `demo.json` that matter here; `make run` writes it."""

    admin: str
    admin_token: str


def find_connection(url: str | None, token: str | None, environment: Mapping[str, str] = os.environ) -> Connection:
    """The admin plane: as given, else from WARMLANE_ADMIN_URL and _TOKEN, else from `demo.json` in the home folder.

    Raises `CommandFailed` when none of them says it.
    """
    url = url or environment.get("WARMLANE_ADMIN_URL")
    token = token or environment.get("WARMLANE_ADMIN_TOKEN")
    if not (url and token):
        demo = _demo(Path(environment.get("WARMLANE_HOME") or DEFAULT_HOME) / "demo.json")
        if demo is not None:
            # NOTE: the token of the demo is only for the demo's own address.
            token = token or (demo.admin_token if url in (None, "", demo.admin) else None)
            url = url or demo.admin
    if not url:
        raise CommandFailed(
            "no admin plane is known: give --url or WARMLANE_ADMIN_URL, or start one with `warmlane up`"
        )
    if not token:
        raise CommandFailed("no admin token is known: give --token or WARMLANE_ADMIN_TOKEN")
    _check(url, token)
    return Connection(url.rstrip("/").removesuffix("/admin/v1"), token)


def _check(url: str, token: str) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise CommandFailed(f"the admin URL {url!r} cannot be read: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise CommandFailed(f"the admin URL must begin with http:// or https:// and name a host, not {url!r}")
    if not (token.isascii() and token.isprintable()):
        raise CommandFailed("the admin token must be visible ASCII characters")


def _demo(path: Path) -> _Demo | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Demo)
    except OSError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}") from error


class AdminClient:
    """Asks the admin plane. Every failure is a `CommandFailed` with the server's own sentence, if it gave one."""

    def __init__(self, connection: Connection, transport: httpx.BaseTransport | None = None) -> None:
        self._client = httpx.Client(
            base_url=f"{connection.url}/admin/v1",
            headers={"authorization": f"Bearer {connection.token}"},
            timeout=TIMEOUT_S,
            transport=transport,
            trust_env=httpx.URL(connection.url).host
            not in _LOOPBACK,  # the token must not pass a proxy on its way home
        )
        self._url = connection.url

    def ask_if_allowed(self, path: str) -> dict[str, Any]:
        """The JSON object at this path; an empty one where it cannot be had, as by who may not read it."""
        try:
            return self.ask("GET", path)
        except CommandFailed:
            return {}

    def ask(
        self, method: str, path: str, *, body: Any = None, query: dict[str, Any] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:  # fmt: skip
        """The JSON object answered. `body`: a value to send as JSON, or bytes that are JSON already."""
        content = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        try:
            answer = self._client.request(method, path, content=content, params=query, timeout=timeout_s)
        except httpx.TransportError as error:
            raise CommandFailed(_unreachable(self._url, error)) from error
        try:
            value = msgspec.json.decode(answer.content, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise CommandFailed(
                f"{self._url} did not answer like an admin plane (status {answer.status_code})"
            ) from error
        if not answer.is_success:
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                raise CommandFailed(f"{self._url} does not take this token: {_sentence(value, 401)}")
            raise (NotFound if answer.status_code == 404 else CommandFailed)(_sentence(value, answer.status_code))
        return value

    def list_all(self, path: str, query: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Every item of a list, page after page."""
        items: list[dict[str, Any]] = []
        after: str | None = None
        while True:
            page = self.ask("GET", path, query={**(query or {}), "limit": 1000, **({"after": after} if after else {})})
            items += page.get("data") or []
            after = page.get("next_cursor")
            if not after:
                return items

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()


def _unreachable(url: str, error: httpx.TransportError) -> str:
    said = f"the admin plane at {url} cannot be reached: {error or 'no answer'}"
    if not isinstance(error, httpx.ConnectError):
        return said  # somebody is there
    remedy = " start it with `make run` or `warmlane up`" if httpx.URL(url).host in _LOOPBACK else ""
    return f"{said}; is it running?{remedy}"


def _sentence(value: dict[str, Any], status: int) -> str:
    error = value.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(message, str):
        return f"the admin plane answered with status {status}"
    param = error.get("param") if isinstance(error, dict) else None
    return f"{message} ({param})" if param and param not in message else message
