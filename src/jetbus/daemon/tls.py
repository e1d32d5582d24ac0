"""Accepting TLS connections, which count from their first moment on.

A server of the event loop makes a TLS connection known when its handshake is complete. Until then it would not be
counted, and strangers could open as many as the system has files. So the daemon accepts these sockets itself::

    accept --> handshake (counted like a connection, ended after handshake_s) --> Connection
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetbus.daemon.connection import Connection
    from jetbus.daemon.daemon import Daemon

log = logging.getLogger("jetbus.connection")

RETRY_S = 1.0
"""Time without accepting after the system had no file or memory left for a connection."""


class TlsServer:
    """A listening socket for connections with TLS."""

    def __init__(
        self,
        daemon: Daemon,
        listener: socket.socket,
        get_context: Callable[[], ssl.SSLContext | None],
        make: Callable[[], Connection],
    ) -> None:
        self._daemon = daemon
        self._listener = listener
        self._get_context = get_context
        """Returns the present certificate, which may be renewed while the daemon runs."""
        self._make = make
        self._accepting = daemon.loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections; those that exist stay."""
        self._accepting.cancel()
        self._listener.close()

    async def _accept(self) -> None:
        daemon = self._daemon
        while True:
            try:
                sock, address = await daemon.loop.sock_accept(self._listener)
            except OSError as problem:
                log.error("cannot accept a connection: %s; trying again in %g s", problem.strerror, RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            if not daemon.has_room_for_handshake(f"{address[0]}:{address[1]}"):
                sock.close()
                continue
            handshake = daemon.loop.create_task(self._shake_hands(sock))
            daemon.handshakes.add(handshake)
            handshake.add_done_callback(daemon.handshakes.discard)

    async def _shake_hands(self, sock: socket.socket) -> None:
        # A peer that speaks no TLS, or not in time, is closed by the loop; ``ssl.SSLError`` is an ``OSError``, too.
        with contextlib.suppress(OSError):
            await self._daemon.loop.connect_accepted_socket(
                self._make, sock, ssl=self._get_context(), ssl_handshake_timeout=self._daemon.config.handshake_s
            )
