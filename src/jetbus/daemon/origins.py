"""Origins: which web pages may open a WebSocket to the daemon.

A browser lets every page connect to every host, also to this machine, and tells the server the page's origin. Without a
check any page in a browser could use a daemon that only listens on loopback. So a request with an origin is
refused unless the origin is

- a loopback address or ``localhost``: a page of this machine,
- the daemon's own machine: the host in the origin is the host that was asked for, and is an address or the name of this
  machine. Any other name may have been made to point here by the page's own name server,
- one of ``ws_origins``, where ``*`` is every origin.

Programs that are no browsers send no origin and are not concerned.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit


def is_allowed(origin: str | None, host: str, allowed: Collection[str]) -> bool:
    """Return True if a page of that origin may connect; ``host`` is the host that the browser asked for."""
    if origin is None or "*" in allowed:
        return True
    if origin.rstrip("/").lower() in {one.rstrip("/").lower() for one in allowed}:
        return True
    name = _host_of(origin)
    if not name:
        return False
    return is_loopback(name) or (name == _host_of(f"//{host}") and (_is_address(name) or name in _own_names()))


def _host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Return True if a host is this machine, for every name server.

    >>> is_loopback("localhost"), is_loopback("127.0.0.9"), is_loopback("localhost.example.com")
    (True, True, False)
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, f"{name}.local"}
