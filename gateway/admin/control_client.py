"""The supervisor's line to its gateway processes: HTTP over one Unix socket each.

Questions about one request go to all and the first that knows it answers; numbers are summed; orders go to all. A
gateway that does not answer within the time is an error, never a wait.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from gateway.admin.aggregate import merged_replicas, summed, summed_exposition
from gateway.prefix_report import PrefixList

T = TypeVar("T")

TIMEOUT_S = 2.0  # chosen: long for a local socket, short for a person who waits


class ControlError(Exception):
    """A gateway process did not answer, or failed; the message is fit for an operator."""


class GatewayControl:
    """All gateway processes of this node, asked over their control sockets.

    `sockets`: called at every question, because gateway processes come and go. `on_drain`: called with a replica's
    name and whether it is drained from now on, once a gateway that knows it has done so.
    """

    def __init__(
        self,
        sockets: Callable[[], Sequence[Path]],
        *,
        on_drain: Callable[[str, bool], None] = lambda _name, _is_drained: None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._sockets = sockets
        self._on_drain = on_drain
        self._timeout_s = timeout_s
        # There is no TLS on a Unix socket, and httpx would read all root certificates anew at every question.
        self._no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def statistics(self) -> dict[str, Any]:
        """The gateways' statistics, numbers summed key by key. Raises `ControlError`."""
        return summed([_object(answer) for answer in await self._successes("GET", "/statistics")])

    async def queue(self) -> dict[str, Any]:
        """What waits in the lanes, numbers summed key by key. Raises `ControlError`."""
        return summed([_object(answer) for answer in await self._successes("GET", "/queue")])

    async def prefixes(self) -> list[PrefixList]:
        """Where projects' prompts differ, as each gateway has seen it. Raises `ControlError`."""
        return [_decoded(answer, PrefixList) for answer in await self._successes("GET", "/prefixes")]

    async def metrics(self) -> str:
        """Prometheus text, samples of the same name and labels summed. Raises `ControlError`."""
        return summed_exposition([answer.text for answer in await self._successes("GET", "/metrics")])

    async def request(self, request_id: str) -> bytes | None:
        """The record of one request as JSON, None if no gateway remembers it. Raises `ControlError`."""
        return await self._first("GET", f"/requests/{_segment(request_id)}")

    async def receipt(self, request_id: str) -> bytes | None:
        """The routing receipt of one request as JSON, None if no gateway remembers it. Raises `ControlError`."""
        return await self._first("GET", f"/requests/{_segment(request_id)}/receipt")

    async def replicas(self) -> bytes:
        """The replicas as JSON `{data: […]}`: what each gateway has in flight there, summed. Raises `ControlError`."""
        answers = await self._successes("GET", "/replicas")
        if len(answers) == 1:
            return answers[0].content
        return msgspec.json.encode(merged_replicas([_object(answer) for answer in answers]))

    async def replicas_of_each(self) -> list[bytes]:
        """The replicas as JSON, as each gateway sees them. Raises `ControlError`."""
        return [answer.content for answer in await self._successes("GET", "/replicas")]

    async def drain(self, name: str) -> bytes | None:
        """Stop sending new work to a replica; its state as JSON, None if there is none of this name."""
        return await self._order(name, "drain", is_drained=True)

    async def resume(self, name: str) -> bytes | None:
        """Send work to a drained replica again; its state as JSON, None if there is none of this name."""
        return await self._order(name, "resume", is_drained=False)

    async def release(self, name: str) -> tuple[int, bytes]:
        """Give the cache of a drained replica free, at every gateway: (status, JSON). Raises `ControlError`.

        The first answer that is no success, else the first; 404 only if no gateway knows the replica.
        """
        answers = await self._ask_all("POST", f"/replicas/{_segment(name)}/release")
        known = [one for one in answers if one.status_code != httpx.codes.NOT_FOUND] or answers
        told = next((one for one in known if not one.is_success), known[0])
        return told.status_code, told.content

    async def explain(self, body: bytes) -> tuple[int, bytes]:
        """The decision that one gateway would make for a request now, without making it: (status, JSON)."""
        sockets = self._running()
        answer = await self._ask(sockets[0], "POST", "/routes/explain", body)
        return answer.status_code, answer.content

    async def warm(self, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Have replicas read a prefix, through one gateway: (status, JSON). Waits `timeout_s` and a little more."""
        answer = await self._ask(self._running()[0], "POST", "/prefixes/warm", body, timeout_s + self._timeout_s)
        return answer.status_code, answer.content

    async def refresh_directories(self) -> None:
        """Make every gateway read the store now; when this returns a revoked key is refused. Raises `ControlError`.

        Without a gateway there is nothing to do: each reads the store when it starts.
        """
        if self._sockets():
            await self._successes("POST", "/directory/refresh")

    async def set_fleet(self, fleet: bytes) -> None:
        """Tell every gateway which replicas exist (JSON). Raises `ControlError`."""
        await self._successes("PUT", "/fleet", fleet)

    async def set_settings(self, settings: bytes) -> None:
        """Put settings (JSON) into force at every gateway; without any it is enough that one finds them at its start.

        Raises `ControlError`.
        """
        if self._sockets():
            await self._successes("PUT", "/settings", settings)

    async def _order(self, name: str, order: str, *, is_drained: bool) -> bytes | None:
        answer = await self._first("POST", f"/replicas/{_segment(name)}/{order}")
        if answer is not None:
            self._on_drain(name, is_drained)
        return answer

    async def _first(self, method: str, path: str) -> bytes | None:
        """The first success; None if every gateway answers 404."""
        for answer in await self._ask_all(method, path):
            if answer.status_code != httpx.codes.NOT_FOUND:
                return _expect_success(answer).content
        return None

    async def _successes(self, method: str, path: str, body: bytes | None = None) -> list[httpx.Response]:
        """Every gateway's answer. Raises `ControlError` if one of them failed."""
        return [_expect_success(answer) for answer in await self._ask_all(method, path, body)]

    async def _ask_all(self, method: str, path: str, body: bytes | None = None) -> list[httpx.Response]:
        return list(await asyncio.gather(*(self._ask(socket, method, path, body) for socket in self._running())))

    async def _ask(
        self, socket: Path, method: str, path: str, body: bytes | None = None, timeout_s: float | None = None
    ) -> httpx.Response:
        timeout_s = timeout_s or self._timeout_s
        # A connection for each question: a gateway that was restarted has left none of the old ones alive.
        transport = httpx.AsyncHTTPTransport(verify=self._no_tls, uds=str(socket))
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            async with (
                asyncio.timeout(timeout_s),
                httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=timeout_s) as client,
            ):
                return await client.request(method, path, content=body, headers=headers)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise ControlError(f"a gateway process did not answer within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise ControlError("a gateway process cannot be reached; it may be starting or stopping") from error

    def _running(self) -> list[Path]:
        sockets = list(self._sockets())
        if not sockets:
            raise ControlError("no gateway process is running")
        return sockets


def _segment(value: str) -> str:
    """A path segment from a caller's value: nothing in it, dots included, can leave its segment."""
    return quote(value, safe="").replace(".", "%2E")


def _object(answer: httpx.Response) -> dict[str, Any]:
    return _decoded(answer, dict[str, Any])


def _decoded(answer: httpx.Response, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.MsgspecError as error:
        raise ControlError("a gateway process answered with something that is not a JSON object of the kind") from error


def _expect_success(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise ControlError(f"a gateway process failed with status {answer.status_code}")
    return answer
