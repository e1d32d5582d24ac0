"""Probe of an address where no daemon answered as expected, to find the right scheme.

A daemon listens at several ports, one for each protocol, and none of them explains itself to a peer of another: it
closes the connection, or waits for more. So after a connection has failed, and only then, the listener is asked once
in each protocol::

    greeting          a binary daemon speaks first
    info              a JSON daemon answers a request
    GET, upgrade      a WebSocket server answers with 101

without TLS and with it. Nothing secret is sent, and certificates are not checked, since nothing is trusted either.
Everything blocks, for a few seconds at most; an event loop runs it in a thread.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from jetbus.errors import JetError
from jetbus.peer.address import CJET_PATH, Endpoint
from jetbus.wire.framing import BINARY_STREAM, STREAM, Framing, StreamDecoder

if TYPE_CHECKING:
    import ssl

STEP_S = 0.5
"""Time limit for each step."""
ANSWER_BYTES_MAX = 65_536
"""Bytes of an answer that are looked at."""
_INFO = b'{"id":1,"method":"info","params":{}}'
_UPGRADE = (
    "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: amV0YnVzIHByb2JpbmcgYQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: jet\r\n\r\n"
)
_NAMES = {"jet": "Jet in JSON", "ws": "Jet by WebSocket", "jetb": "Jet's binary protocol"}


def suggest_address(address: Endpoint) -> str | None:
    """Return the advice to use the address under which a daemon answers there; None if none does."""
    for use_tls in (False,) if address.transport == "unix" else (address.tls, not address.tls):
        for name in ("jetb", "jet", "ws"):
            found = _make_address(address, name, use_tls)
            if found is not None and found.scheme != address.scheme and _answers(found):
                return f"what listens there speaks {_NAMES[name]}{' with TLS' if use_tls else ''}: use {found}"
    return None


def _make_address(address: Endpoint, name: str, use_tls: bool) -> Endpoint | None:
    """Return the address with another protocol."""
    if address.transport == "unix":
        return None if name == "ws" else address._replace(scheme="unix" if name == "jet" else "jetb+unix")
    scheme = {"jet": "jets", "ws": "wss", "jetb": "jetbs"}[name] if use_tls else name
    path = (address.path or "/") if name == "ws" else ""
    return Endpoint(scheme, address.host, address.port, path)


def _answers(address: Endpoint) -> bool:
    """Return True if a daemon answers in the protocol of an address."""
    try:
        with _open(address) as sock:
            if address.websocket:
                return _answers_upgrade(sock, address, address.path)
            if address.binary:
                return _has_greeting(sock)
            return _answers_info(sock)
    except (OSError, UnicodeError):
        return False


def _answers_upgrade(sock: socket.socket, address: Endpoint, path: str) -> bool:
    sock.sendall((_UPGRADE % (path, address.host)).encode())
    answer = sock.recv(ANSWER_BYTES_MAX)
    if answer.startswith(b"HTTP/1.1 101"):
        return True
    if not answer.startswith(b"HTTP/") or path == CJET_PATH:
        return False
    with _open(address) as other:  # cjet has WebSockets at a path of its own, which peers try, too
        return _answers_upgrade(other, address, CJET_PATH)


def _has_greeting(sock: socket.socket) -> bool:
    from jetbus.peer.binary import check_version

    with suppress(JetError, IndexError):
        check_version(_read_frames(sock, BINARY_STREAM)[0])
        return True
    return False


def _answers_info(sock: socket.socket) -> bool:
    sock.sendall(STREAM.join([_INFO]))
    return any(frame.lstrip()[:1] in (b"{", b"[") for frame in _read_frames(sock, STREAM))


def _read_frames(sock: socket.socket, framing: Framing) -> list[bytes]:
    return StreamDecoder(ANSWER_BYTES_MAX, framing).feed(sock.recv(ANSWER_BYTES_MAX))


def _open(address: Endpoint) -> socket.socket:
    if address.transport == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(STEP_S)
        sock.connect("\0" + address.path[1:] if address.path.startswith("@") else address.path)
        return sock
    sock = socket.create_connection((address.host, address.port), STEP_S)
    return _make_tls().wrap_socket(sock, server_hostname=address.host) if address.tls else sock


def _make_tls() -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
