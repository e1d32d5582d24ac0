"""Where a daemon is: the URLs a peer understands.

    jet://HOST:PORT   TCP, port 11122 unless given        ws://HOST:PORT/PATH    WebSocket, port 11123
    jets://HOST:PORT  the same with TLS                   wss://HOST:PORT/PATH   the same with TLS
    unix:///PATH      a socket file                       unix://@NAME           an abstract Unix socket

User and password may stand before the host: ``jet://ann:secret@host``.
"""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

DEFAULT_URL = "jet://localhost:11122"
_PORTS = {"jet": 11122, "jets": 11122, "ws": 11123, "wss": 11123}


class Address(NamedTuple):
    """A URL, taken apart."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    user: str | None = None
    password: str | None = None

    @property
    def tls(self) -> bool:
        return self.scheme in ("jets", "wss")

    @property
    def websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def read_url(url: str | None = None) -> Address:
    """The address of a URL; without one that of ``JET_URL``, and without that the local daemon's.

    >>> read_url("jet://plant")
    Address(scheme='jet', host='plant', port=11122, path='', user=None, password=None)
    """
    url = url or os.environ.get("JET_URL") or DEFAULT_URL
    scheme, found, rest = url.partition("://")
    if not found:
        scheme, rest = "jet", url
    if scheme == "unix":
        if not rest.strip("@/"):
            raise ValueError(f"{url!r} names no socket; write unix:///path/of/socket or unix://@name")
        return Address("unix", path=rest)
    if scheme not in _PORTS:
        raise ValueError(f"{url!r} is no address of a daemon; write jet://, jets://, ws://, wss:// or unix://")
    parts = urlsplit(f"{scheme}://{rest}")
    try:
        port = _PORTS[scheme] if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port:
        raise ValueError(f"{url!r} has no port between 1 and 65535")
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    path = (parts.path or "/") + (parts.query and f"?{parts.query}") if scheme in ("ws", "wss") else ""
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Address(scheme, parts.hostname, port, path, user, password)
