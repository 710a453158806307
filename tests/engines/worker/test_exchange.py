"""One HTTP request: bounded in, cancellable throughout."""

import asyncio

import msgspec
import pytest

from engines.worker.errors import ApiError, invalid, unavailable
from engines.worker.exchange import ClientGone, Exchange
from tests.engines.worker.scripted import AsgiConnection


def exchange(connection: AsgiConnection) -> Exchange:
    return Exchange(connection.scope, connection.receive, connection.send)


async def test_a_body_is_read_in_pieces_up_to_its_bound():
    """The bound itself still passes."""
    assert await exchange(AsgiConnection(b"ab", b"", b"cd")).read_body(4, 30) == b"abcd"


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"5")]])
async def test_a_body_over_the_bound_is_a_413(headers):
    """Known from the header where there is one, else as soon as it is read."""
    with pytest.raises(ApiError) as caught:
        await exchange(AsgiConnection(b"abc", b"de", headers=headers)).read_body(4, 30)
    assert caught.value.status == 413


async def test_a_body_that_does_not_arrive_is_a_408():
    """A connection that only opens cannot hold a place for ever."""
    connection = AsgiConnection()
    waiting = exchange(connection)
    with pytest.raises(ApiError) as caught:
        await waiting.read_body(4, 0.01)
    assert caught.value.status == 408
    await waiting.send_error(caught.value)
    assert (b"connection", b"close") in connection.sent[0]["headers"]


async def test_a_packed_body_is_refused():
    """Unpacking is a bomb that nobody asked for."""
    with pytest.raises(ApiError) as caught:
        await exchange(AsgiConnection(b"x", headers=[(b"content-encoding", b"gzip")])).read_body(4, 30)
    assert caught.value.status == 415


async def test_a_client_may_leave_while_sending():
    """Half a body is nobody's request."""
    connection = AsgiConnection()
    connection.leave()
    with pytest.raises(ClientGone):
        await exchange(connection).read_body(4, 30)


async def test_work_ends_when_the_client_leaves():
    """And has been cleaned up before anybody is told."""
    connection = AsgiConnection()
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    running = asyncio.ensure_future(exchange(connection).while_connected(work()))
    await asyncio.sleep(0)
    connection.leave()
    with pytest.raises(ClientGone):
        await running
    assert ended == [True]


async def test_finished_work_wins_over_a_client_that_leaves_at_the_same_moment():
    """An answer that was complete is complete."""
    connection = AsgiConnection()
    connection.leave()

    async def work():
        return None

    await exchange(connection).while_connected(work())


async def test_a_failure_of_the_work_is_raised():
    """Not swallowed by the watch."""

    async def work():
        raise invalid("x", "no")

    with pytest.raises(ApiError):
        await exchange(AsgiConnection()).while_connected(work())


async def test_cancelling_the_exchange_cancels_the_work():
    """A server that shuts down leaves nothing running."""
    ended = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.ensure_future(exchange(AsgiConnection()).while_connected(work()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


async def test_an_error_before_the_answer_has_a_status():
    """With retry-after where waiting helps."""
    connection = AsgiConnection()
    await exchange(connection).send_error(unavailable("later", code="queue_full", retry_after_s=3))
    assert connection.status == 503
    assert (b"retry-after", b"3") in connection.sent[0]["headers"]
    error = msgspec.json.decode(connection.body)["error"]
    assert error == {"message": "later", "type": "service_unavailable", "param": None, "code": "queue_full"}


async def test_an_error_inside_a_stream_is_its_last_event():
    """It carries the status, and no end marker follows that would look like success."""
    connection = AsgiConnection()
    streaming = exchange(connection)
    await streaming.start_events()
    await streaming.send_events([b"{}"])
    await streaming.send_error(unavailable("stopping", code="stopping"))
    assert connection.body.startswith(b'data: {}\n\ndata: {"error":')
    assert b'"code":503' in connection.body
    assert b"[DONE]" not in connection.body
    assert not connection.sent[-1].get("more_body", False)


async def test_headers_of_the_first_spelling_win():
    """A second header of the same name changes nothing."""
    connection = AsgiConnection(headers=[(b"x-request-id", b"one"), (b"x-request-id", b"two")])
    assert exchange(connection).header(b"x-request-id") == "one"
