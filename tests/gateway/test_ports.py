"""Ports, taken or free."""

import contextlib
import errno

import pytest

from engines.launch.ready_line import ready_line
from gateway.ports import PortUnusable, _why, announced_port, check_port, listen_on, reachable_url


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
