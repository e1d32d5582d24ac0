"""Where a daemon is: the URLs a peer understands.

    jet://HOST:PORT   TCP, port 11122 unless given        ws://HOST:PORT/PATH    WebSocket, port 11123
    jets://HOST:PORT  the same with TLS                   wss://HOST:PORT/PATH   the same with TLS
    unix:///PATH      a socket file                       unix://@NAME           an abstract Unix socket
    jetb://HOST:PORT  TCP, binary protocol, port 11124    jetbs://HOST:PORT      the same with TLS
    jetb+ws://..., jetb+wss://..., jetb+unix://...        the binary protocol on the other transports

User and password may stand before the host: ``jet://ann:secret@host``.
"""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

DEFAULT_URL = "jet://localhost:11122"
BINARY = "jetb"
CJET_PATH = "/api/jet/"
"""Where cjet serves WebSocket clients; all others do so at any path."""
_PORTS = {"jet": 11122, "jets": 11122, "ws": 11123, "wss": 11123, "jetb": 11124, "jetbs": 11124}
_PORTS |= {"jetb+ws": 11123, "jetb+wss": 11123}
_SCHEMES = "jet://, jets://, ws://, wss://, unix:// or, for the binary protocol, jetb://"


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
        return self.scheme in ("jets", "jetbs") or self.transport == "wss"

    @property
    def websocket(self) -> bool:
        return self.transport in ("ws", "wss")

    @property
    def binary(self) -> bool:
        return self.scheme.startswith(BINARY)

    @property
    def transport(self) -> str:
        """The scheme without the protocol that is spoken."""
        return self.scheme.removeprefix(f"{BINARY}+")

    def at_cjet_path(self) -> Address | None:
        """The same address with cjet's path, to be tried when a daemon refuses an address without any."""
        return self._replace(path=CJET_PATH) if self.websocket and not self.binary and self.path == "/" else None

    def __str__(self) -> str:
        if self.transport == "unix":
            return f"{self.scheme}://{self.path}"
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
    if scheme in ("unix", f"{BINARY}+unix"):
        if not rest.strip("@/"):
            raise ValueError(f"{url!r} names no socket; write unix:///path/of/socket or unix://@name")
        return Address(scheme, path=rest)
    if scheme not in _PORTS:
        raise ValueError(f"{url!r} is no address of a daemon; write {_SCHEMES}")
    parts = urlsplit(f"{scheme}://{rest}")
    try:
        port = _PORTS[scheme] if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not port:
        raise ValueError(f"{url!r} has no port between 1 and 65535")
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    path = (parts.path or "/") + (parts.query and f"?{parts.query}") if scheme.endswith(("ws", "wss")) else ""
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Address(scheme, parts.hostname, port, path, user, password)
