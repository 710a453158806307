"""The frame around every request that the model answers: counted while it is open, and one line at its end.

Whatever happens inside, leaving it gives back the count that a drain waits for and turns the entry into metric and log
line.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from engines.worker.errors import ApiError
from engines.worker.exchange import ClientGone, Exchange
from engines.worker.request_log import RequestEntry, open_entry
from engines.worker.service import Service
from observability import logs

Respond = Callable[[Exchange, bytes, RequestEntry], Coroutine[Any, Any, None]]


async def answer_request(
    service: Service, exchange: Exchange, surface: str, *, check: Callable[[], None], respond: Respond
) -> None:
    """Answer one request. `surface`: its route's name in logs.

    `check` raises `ApiError` where the body need not be read. `respond` sends the answer of a body; it is cancelled
    when the client leaves, and may raise `ApiError`.
    """
    entry = open_entry(exchange, surface, service.clock())
    with service.open_request():
        try:
            check()
            async with service.until_stopped():
                body = await exchange.read_body(service.settings.max_body_bytes, service.settings.body_timeout_s)
            await exchange.while_connected(respond(exchange, body, entry))
            entry.complete()
        except ClientGone:
            entry.leave()
        except ApiError as error:
            entry.end_with(error)
            await exchange.send_error(error)
        finally:
            service.metrics.ended(entry.outcome)
            entry.write(logs.get(), service.clock())
