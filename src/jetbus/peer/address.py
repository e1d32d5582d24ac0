"""Addresses of daemons: the URLs that a peer understands.

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
"""Path at which cjet serves WebSocket clients; other daemons do so at any path."""
_PORTS = {"jet": 11122, "jets": 11122, "ws": 11123, "wss": 11123, "jetb": 11124, "jetbs": 11124}
_PORTS |= {"jetb+ws": 11123, "jetb+wss": 11123}
_TLS = {"jet": "jets", "ws": "wss", "jetb": "jetbs", "jetb+ws": "jetb+wss"}
"""Each scheme without TLS, and the one with TLS."""
_SCHEMES = "jet://, jets://, ws://, wss://, unix:// or, for the binary protocol, jetb://"


class UrlParts(NamedTuple):
    """The parts of a URL."""

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
        """The scheme without the prefix of the binary protocol."""
        return self.scheme.removeprefix(f"{BINARY}+")

    def with_tls_changed(self) -> UrlParts | None:
        """Return the same address with TLS, or without if it has TLS; None for a Unix socket."""
        other = _TLS.get(self.scheme) or {tls: plain for plain, tls in _TLS.items()}.get(self.scheme)
        return None if other is None else self._replace(scheme=other)

    def at_cjet_path(self) -> UrlParts | None:
        """Return the address with cjet's path, to try when a daemon refuses one without a path."""
        return self._replace(path=CJET_PATH) if self.websocket and not self.binary and self.path == "/" else None

    def __str__(self) -> str:
        if self.transport == "unix":
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def read_url(url: str | None = None) -> UrlParts:
    """Parse a URL. Without one, use ``JET_URL``; without that, the local daemon.

    >>> read_url("jet://plant")
    UrlParts(scheme='jet', host='plant', port=11122, path='', user=None, password=None)
    """
    if url is not None and not isinstance(url, str):
        example = f"jet://localhost:{url}" if isinstance(url, int) else DEFAULT_URL
        raise TypeError(f"the address of a daemon is a text such as {example!r}, not {url!r}")
    url = url or os.environ.get("JET_URL") or DEFAULT_URL
    scheme, found, rest = url.partition("://")
    if not found:
        # ``host:port`` alone means TCP.
        scheme, rest = "jet", url
    if scheme in ("unix", f"{BINARY}+unix"):
        if not rest.strip("@/"):
            raise ValueError(f"{url!r} names no socket; use unix:///path/of/socket or unix://@name")
        return UrlParts(scheme, path=rest)
    if scheme not in _PORTS:
        raise ValueError(f"{url!r} is not the address of a daemon; use {_SCHEMES}")
    parts = urlsplit(f"{scheme}://{rest}")
    try:
        # ``urlsplit`` checks the port only now that it is read.
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
    return UrlParts(scheme, parts.hostname, port, path, user, password)


# -- why nobody could be reached


def explain_failure(address: UrlParts, error: Exception, option: str = "url") -> str:
    """Describe a connection that could not be made: the cause, and the next step."""
    # SSLError names the cause in its reason; its other texts name lines of OpenSSL.
    reason = str(getattr(error, "reason", None) or "")
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return _explain_certificate(address, str(getattr(error, "verify_message", "")).rstrip("."))
    if reason and address.tls:
        text = f"what listens at {address} does not speak TLS ({reason.lower().replace('_', ' ')})"
        return f"{text}; use {address.with_tls_changed()} if it is a daemon"
    cause = getattr(error, "strerror", None) or str(error)
    return f"no daemon at {address} ({cause}); start one with `jetd`, or give its {option}"


def _explain_certificate(address: UrlParts, problem: str) -> str:
    text = f"the certificate of the daemon at {address} is not trusted: {problem}"
    if "mismatch" in problem:
        return f"{text}; connect by a name that is in the certificate"
    if "expired" in problem or "not yet valid" in problem:
        return f"{text}; renew it, or correct the clock of this machine"
    return f"{text}; trust the authority that signed it, with --ca FILE or tls= in Python"


def explain_closing(address: UrlParts) -> str:
    """Describe a connection that was closed before the daemon had answered anything."""
    text = f"{address} closed the connection before it answered"
    return f"{text}; {suggest_tls(address)}is that a Jet daemon?"


def suggest_tls(address: UrlParts) -> str:
    """Return the advice to use TLS, for an address without; a daemon with TLS closes such connections at once."""
    other = None if address.tls else address.with_tls_changed()
    return "" if other is None else f"if it speaks TLS, use {other}; otherwise, "
