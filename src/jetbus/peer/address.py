"""Addresses of daemons: the URLs that a peer understands, and the login there.

``DaemonAddress`` is what users, options and files name. Each URL in it is an ``Endpoint``, a place to connect to.

    jet://HOST:PORT   TCP, port 11122 unless given        ws://HOST:PORT/PATH    WebSocket, port 11123
    jets://HOST:PORT  the same with TLS                   wss://HOST:PORT/PATH   the same with TLS
    unix:///PATH      a socket file                       unix://@NAME           an abstract Unix socket
    jetb://HOST:PORT  TCP, binary protocol, port 11124    jetbs://HOST:PORT      the same with TLS
    jetb+ws://..., jetb+wss://..., jetb+unix://...        the binary protocol on the other transports

User and password may stand before the host: ``jet://ann:secret@host``. Several addresses, which are tried in turn, are
separated by commas: ``jet://a,b:11125`` shares scheme, login and path, ``jet://a,ws://b`` does not.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from jetbus.errors import NotConnected

DEFAULT_URL = "jet://localhost:11122"
BINARY = "jetb"
CJET_PATH = "/api/jet/"
"""Path at which cjet serves WebSocket clients; other daemons do so at any path."""
_PORTS = {"jet": 11122, "jets": 11122, "ws": 11123, "wss": 11123, "jetb": 11124, "jetbs": 11124}
_PORTS |= {"jetb+ws": 11123, "jetb+wss": 11123}
_TLS = {"jet": "jets", "ws": "wss", "jetb": "jetbs", "jetb+ws": "jetb+wss"}
"""Each scheme without TLS, and the one with TLS."""
_SCHEMES = "jet://, jets://, ws://, wss://, unix:// or, for the binary protocol, jetb://"


class Endpoint(NamedTuple):
    """A place to connect to: the parts of one URL."""

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

    def with_tls_changed(self) -> Endpoint | None:
        """Return the same address with TLS, or without if it has TLS; None for a Unix socket."""
        other = _TLS.get(self.scheme) or {tls: plain for plain, tls in _TLS.items()}.get(self.scheme)
        return None if other is None else self._replace(scheme=other)

    def at_cjet_path(self) -> Endpoint | None:
        """Return the address with cjet's path, to try when a daemon refuses one without a path."""
        return self._replace(path=CJET_PATH) if self.websocket and not self.binary and self.path == "/" else None

    def __str__(self) -> str:
        if self.transport == "unix":
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(frozen=True)
class DaemonAddress:
    """A daemon and the login there. As text it is the URL, without a password.

    A ``url`` of None is that of ``JET_URL`` or the local daemon. One with several addresses names all of them.
    """

    url: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return ", ".join(map(str, read_urls(self.url)))


class Unreachable(NotConnected):
    """No program listens at an address; a daemon that starts later may."""


class NoAnswer(Unreachable):
    """The program at an address does not answer as a daemon does; perhaps it has another scheme."""


ADDRESSES_MAX = 16
"""Addresses of one peer."""


def read_url(url: str | None = None) -> Endpoint:
    """Parse a URL; the first one if there are several. Without one, use ``JET_URL``; without that, the local daemon.

    >>> read_url("jet://plant")
    Endpoint(scheme='jet', host='plant', port=11122, path='', user=None, password=None)
    """
    return read_urls(url)[0]


def read_urls(url: str | None = None) -> tuple[Endpoint, ...]:
    """Parse URLs that are separated by commas.

    >>> [str(one) for one in read_urls("jet://a,b:11125,ws://c")]
    ['jet://a:11122', 'jet://b:11125', 'ws://c:11123/']
    """
    if url is not None and not isinstance(url, str):
        example = f"jet://localhost:{url}" if isinstance(url, int) else DEFAULT_URL
        raise TypeError(f"the address of a daemon is a text such as {example!r}, not {url!r}")
    url = url or os.environ.get("JET_URL") or DEFAULT_URL
    found = tuple(parts for one in _ANOTHER_URL.split(url) for parts in _read_group(one))
    if len(found) > ADDRESSES_MAX:
        raise ValueError(f"{url!r} has {len(found)} addresses; give at most {ADDRESSES_MAX}")
    return found


_ANOTHER_URL = re.compile(r",\s*(?=[a-z+]+://)")
"""A comma before a scheme: the text after it is a URL of its own."""


def _read_group(url: str) -> list[Endpoint]:
    """Parse a URL that may have several hosts."""
    scheme, found, rest = url.partition("://")
    if scheme in ("unix", f"{BINARY}+unix") or "," not in rest + scheme:
        return [_read_one(url)]
    scheme, rest = (f"{scheme}://", rest) if found else ("", url)
    place, slash, path = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    return [_read_one(f"{scheme}{login}{at}{host.strip()}{slash}{path}") for host in hosts.split(",")]


def _read_one(url: str) -> Endpoint:
    scheme, found, rest = url.partition("://")
    if not found:
        # ``host:port`` alone means TCP.
        scheme, rest = "jet", url
    if scheme in ("unix", f"{BINARY}+unix"):
        if not rest.strip("@/"):
            raise ValueError(f"{url!r} names no socket; use unix:///path/of/socket or unix://@name")
        return Endpoint(scheme, path=rest)
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
    return Endpoint(scheme, parts.hostname, port, path, user, password)


# -- why no daemon could be reached


def explain_failure(address: Endpoint, error: Exception, option: str = "url") -> str:
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


def _explain_certificate(address: Endpoint, problem: str) -> str:
    text = f"the certificate of the daemon at {address} is not trusted: {problem}"
    if "mismatch" in problem:
        return f"{text}; connect by a name that is in the certificate"
    if "expired" in problem or "not yet valid" in problem:
        return f"{text}; renew it, or correct the clock of this machine"
    return f"{text}; trust the authority that signed it, with --ca FILE or tls= in Python"


def describe_failures(problems: list[NotConnected]) -> NotConnected:
    """Return one error for several addresses that could not be reached; it may pass if one of them may."""
    if len(problems) == 1:
        return problems[0]
    kind = Unreachable if any(isinstance(problem, Unreachable) for problem in problems) else NotConnected
    return kind(f"none of {len(problems)} addresses has a daemon: " + "; ".join(map(str, problems)))


def explain_silence(address: Endpoint, within_s: float) -> str:
    """Describe a daemon that was connected to and did not answer in time."""
    text = f"no answer from a daemon at {address} within {within_s:g} s"
    return f"{text}; {suggest_tls(address)}is that a Jet daemon?"


def explain_closing(address: Endpoint) -> str:
    """Describe a connection that was closed before the daemon had answered anything."""
    text = f"{address} closed the connection before it answered"
    return f"{text}; {suggest_tls(address)}is that a Jet daemon?"


def suggest_tls(address: Endpoint) -> str:
    """Return the advice to use TLS, for an address without; a daemon with TLS closes such connections at once."""
    other = None if address.tls else address.with_tls_changed()
    return "" if other is None else f"if it speaks TLS, use {other}; otherwise, "
