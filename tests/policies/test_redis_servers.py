"""What connects to a real Redis is let go of, whoever is cancelled meanwhile."""

import asyncio

import pytest

from policies.redis_address import parse_address
from policies.redis_servers import Servers
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures


async def test_a_connection_is_closed_though_who_lets_go_is_cancelled(redis_server):  # noqa: F811
    """As of a sentinel that has answered when the others' answers are enough: it is cancelled while it closes."""
    servers = Servers(parse_address(redis_server.url), 1, 5.0)
    connections = []

    async def work(redis):
        connection = await redis.connection_pool.get_connection()
        await redis.connection_pool.release(connection)
        connections.append(connection)

    await servers.run(work, None)
    assert connections[0].is_connected
    leaving = asyncio.create_task(servers._forget(set()))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await servers.close()
    assert not connections[0].is_connected
