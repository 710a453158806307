"""Clients that read slowly or not at all."""

import asyncio
import json
import socket

import pytest

from tests.gateway.client import Client
from tests.gateway.kit import chat
from tests.scripted_engine import Reply, sse

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)

BIG = sse(json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 16_000}, "finish_reason": None}]}))


async def slow_client(gateway, *, stream=True):
    """A client with a small receive buffer, which asks for a stream and reads nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", gateway.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    client = Client(reader, writer)
    gateway.clients.append(client)
    client.send(chat(stream=stream), key=gateway.key)
    return client


@both_ways
async def test_a_client_that_does_not_read_pauses_the_engine(launch):
    """Memory stays bounded: what is not read stays in the engine's socket, and goes on when the client reads."""
    gateway = await launch()
    count = 800
    done = [sse(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})), sse("[DONE]")]
    gateway.script(Reply([BIG] * count + done, headers=[("content-type", "text/event-stream")]))
    client = await slow_client(gateway)
    request = await gateway.received()
    upstream = gateway.parts.fleet.connection("r1").upstream
    [carrier] = [one for one in upstream._connections if one.exchange is not None]
    await gateway.until(lambda: carrier._is_paused)
    await request.until_finished()  # the engine wrote all of it into its own buffers
    [connection] = gateway.server.server_state.connections
    assert connection.transport.get_write_buffer_size() < 2_000_000
    assert gateway.in_flight["requests"] == 1
    client.reader._limit = 2**20
    got = await client.answer()
    assert (len(got.text), got.is_done) == (16_000 * count, True)


@both_ways
async def test_a_client_that_never_reads_does_not_hold_its_seat_for_ever(launch):
    """After the idle timeout it is given up as gone; the engine is told to stop, and is not to blame."""
    gateway = await launch(timeouts={"idle_s": 0.2})
    gateway.script(Reply([BIG] * 800 + [asyncio.Event()], headers=[("content-type", "text/event-stream")]))
    await slow_client(gateway)
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.status) == ("client_gone", 499)
    await gateway.until_quiet()
    assert gateway.parts.router.pool.get("r1").breaker._num_faults == 0


async def test_a_complete_answer_that_nobody_reads_is_given_up(launch):
    """What waits in our memory for a client that does not read is dropped after the idle timeout."""
    gateway = await launch(timeouts={"idle_s": 0.2})
    body = {"choices": [{"index": 0, "message": {"content": "x" * 30_000_000}, "finish_reason": "stop"}]}
    gateway.script(Reply([json.dumps(body).encode()], headers=[("content-type", "application/json")]))
    client = await slow_client(gateway, stream=False)
    await gateway.until_recorded(1)
    await gateway.until(lambda: not gateway.server.server_state.connections)
    client.close()
