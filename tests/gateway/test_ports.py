"""Ports, taken or free."""

import contextlib
import errno
import socket

import pytest

from engines.launch.ready_line import ready_line
from gateway import server
from gateway.ports import PortUnusable, _why, announced_port, check_port, listen_on, reachable_url, reserve


def test_a_taken_port_is_named_with_the_way_to_move_it():
    """The sentence of the contract."""
    with contextlib.closing(listen_on("127.0.0.1", 0, remedy="--port")) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortUnusable, match=f"port {port} on 127.0.0.1 is taken; choose another with --port or X"):
            check_port("127.0.0.1", port, remedy="--port or X")
    check_port("127.0.0.1", port, remedy="--port")


def test_an_address_that_is_not_ours_is_a_clear_error():
    """A wrong host in the configuration."""
    with pytest.raises(PortUnusable, match=r"192\.0\.2\.1"):
        check_port("192.0.2.1", 0, remedy="--port")
    with pytest.raises(PortUnusable, match="not known"):
        check_port("no such host", 0, remedy="--port")


def test_a_privileged_port_is_a_clear_error():
    """Port 80 without the rights to it."""
    assert "rights" in _why("h", 80, "--port", OSError(errno.EACCES, "Permission denied"))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
        ("gateway.example", "http://gateway.example:8080"),
    ],
)
def test_a_wildcard_is_reached_by_the_loopback(host, url):
    """The printed curl must work."""
    assert reachable_url(host, 8080) == url


def test_the_announced_port_is_read_from_the_url():
    """A restarted gateway comes back on it."""
    assert announced_port(ready_line(url="http://127.0.0.1:41234/v1")) == 41234
    assert announced_port(ready_line(url="http://[::1]:41234/v1")) == 41234
    assert announced_port(ready_line(url="http://example")) == 0


def test_a_port_is_kept_for_processes_that_share_it():
    """All of them listen on the one that was chosen; a program of another kind is refused it, they all restart on it."""
    with contextlib.closing(reserve("127.0.0.1", 0, remedy="--port")) as kept:
        port = kept.getsockname()[1]
        shared = [server.listen("127.0.0.1", port, is_shared=True) for _ in range(3)]
        for one in shared:
            one.listen()
        with pytest.raises(PortUnusable, match="is taken"):
            check_port("127.0.0.1", port, remedy="--port")
        with pytest.raises(OSError, match="in use"):
            server.listen("127.0.0.1", port)
        for one in shared:
            one.close()
        again = server.listen("127.0.0.1", port, is_shared=True)
        again.close()


def test_a_shared_port_gets_no_connections_before_its_server_starts():
    """A process that cannot serve yet must not take what the others could serve at once."""
    with contextlib.closing(server.listen("127.0.0.1", 0, is_shared=True)) as bound:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(bound.getsockname())
        bound.listen()
        socket.create_connection(bound.getsockname()).close()


def test_a_taken_port_cannot_be_kept():
    """The supervisor says so before it starts anything."""
    with (
        contextlib.closing(listen_on("127.0.0.1", 0, remedy="--port")) as taken,
        pytest.raises(PortUnusable, match="is taken; choose another with --port"),
    ):
        reserve("127.0.0.1", taken.getsockname()[1], remedy="--port")
    reserve("::1", 0, remedy="--port").close()
