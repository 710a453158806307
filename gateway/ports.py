"""Ports, taken or free, known before anything slow is started."""

import contextlib
import errno
import socket

from engines.launch.ready_line import ReadyLine

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class PortUnusable(Exception):
    """A listener cannot be had; the message names the address and how to move it."""


def listen_on(host: str, port: int, *, remedy: str) -> socket.socket:
    """A bound TCP socket, not yet listening; port 0 takes any free one. Raises `PortUnusable`.

    `remedy`: how a person moves the port, such as "--port or WARMLANE_PORT".
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise PortUnusable(f"the address {host} is not known on this machine") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # NOTE: only listening tells: two sockets may be bound with SO_REUSEADDR, a second listener is refused.
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise PortUnusable(_why(host, port, remedy, error)) from error
    return bound


def check_port(host: str, port: int, *, remedy: str) -> None:
    """Raises `PortUnusable` unless the port could be listened on just now."""
    with contextlib.closing(listen_on(host, port, remedy=remedy)):
        pass


def reserve(host: str, port: int, *, remedy: str) -> socket.socket:
    """A socket that keeps a port for several processes which listen on it; it never listens itself.

    Port 0 chooses one for all of them. While it is open no program that does not share its ports can take this one, not
    even when all processes are being started again. Raises `PortUnusable`.
    """
    kept = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((host, port))
    except OSError as error:
        kept.close()
        raise PortUnusable(_why(host, port, remedy, error)) from error
    return kept


def reachable_url(host: str, port: int) -> str:
    """The URL by which a program on this machine reaches a listener: a wildcard address becomes the loopback."""
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def announced_port(ready: ReadyLine) -> int:
    """The port in the URL of a ready line, 0 if it has none."""
    digits = ready.base_url.rpartition(":")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def _why(host: str, port: int, remedy: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken; choose another with {remedy}"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs rights that this user does not have; choose another with {remedy}"
    return f"port {port} on {host} cannot be used: {error.strerror}"
