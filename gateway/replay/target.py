"""Where requests are sent: URL, key and model, as given, from the environment, or of the demo that runs here."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from gateway.admin.connection import DEFAULT_HOME, CommandFailed

_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
SURFACES = tuple(_PATHS)


@dataclass(frozen=True, slots=True)
class Target:
    """`url`: without `/v1`. `key`: empty for an engine that asks for none. `surface`: one of `SURFACES`."""

    url: str
    key: str
    model: str
    surface: str = "chat"

    @property
    def path(self) -> str:
        """Of what is asked."""
        return _PATHS[self.surface]

    @property
    def headers(self) -> dict[str, str]:
        """The key, if there is one."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def prompt(self, text: str) -> dict[str, object]:
        """The fields of a body that say it."""
        if self.surface == "completions":
            return {"prompt": text}
        return {"messages": [{"role": "user", "content": text}]}


class _Demo(msgspec.Struct):
    url: str = ""
    key: str = ""
    model: str = ""


def find_target(
    url: str | None, key: str | None, model: str | None, surface: str, environment: Mapping[str, str] = os.environ
) -> Target:  # fmt: skip
    """The target. What is not given is the demo's, its key only at its own address. Raises `CommandFailed`."""
    demo = _demo(Path(environment.get("WARMLANE_HOME") or DEFAULT_HOME) / "demo.json")
    bare = _bare(url or demo.url)
    if not bare:
        raise CommandFailed("no URL is known: give --url, or start the demo with `warmlane up`")
    is_demo = bare == _bare(demo.url)
    found = model or (demo.model if is_demo else "")
    if not found:
        raise CommandFailed(f"no model is known: give --model, one of those that {bare}/v1/models lists")
    return Target(bare, key or (demo.key if is_demo else ""), found, surface)


def _bare(url: str) -> str:
    """Without `/v1`. Raises `CommandFailed` for what is no URL."""
    if not url:
        return ""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise CommandFailed(f"the URL {url!r} cannot be read: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise CommandFailed(f"the URL must begin with http:// or https:// and name a host, not {url!r}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _demo(path: Path) -> _Demo:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Demo)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Demo()
