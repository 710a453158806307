"""Addresses where no engine is: those that only this link, this machine's metadata service or nobody answers. Pure.

Private addresses and the loopback are where engines live, so they are fine. Names are not looked up: what a name server
says is its operator's affair.
"""

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def no_engine_at(host: str) -> str | None:
    """Why no engine can be at this host (of a URL, without brackets), None if one can be, or if it is a name."""
    address = _address(host)
    if address is None:
        return None
    if address.is_link_local:
        return f"{host} is a link-local address: machines keep their metadata and credentials there, not engines"
    if address.is_unspecified:
        return f"{host} is an address to listen on, not to connect to; use 127.0.0.1"
    return f"{host} is a multicast address" if address.is_multicast else None


def _address(host: str) -> Address | None:
    """The address as the operating system would read it: also one number, hexadecimal or octal parts."""
    try:
        address: Address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except (OSError, ValueError):
            return None
    return (address.version == 6 and address.ipv4_mapped) or address
