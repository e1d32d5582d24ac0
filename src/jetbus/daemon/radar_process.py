"""Radar beside the daemon, for ``jetd --radar``: a child process that serves the page on sockets bound here.

Drawing ten million points of history holds Python's lock for longer than a message may wait, so Radar is not a thread
of the daemon. If it fails it is started again on the same sockets.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence

from jetbus.daemon.config import Config
from jetbus.daemon.peer_process import PeerProcess, find_url


class RadarProcess(PeerProcess):
    """The child process of Radar."""

    name = "Radar"
    module = "jetbus.radar.child"
    needed = ("starlette", "uvicorn", "pyarrow")
    extra = "radar"

    def __init__(self, config: Config, listening: Mapping[str, str], socks: Sequence[socket.socket]) -> None:
        words = ["--url", find_url("radar", config, listening)]
        for origin in config.ws_origins:
            words += ["--origin", origin]
        # Files are read without asking the daemon, so that they are passed on only if everybody may read them.
        if config.journal is not None and config.users is None and not config.journal_groups:
            words += ["--journal", str(config.journal)]
        self._scheme = "http"
        if config.tls_cert is not None:
            self._scheme = "https"
            words += ["--tls-cert", str(config.tls_cert)]
            words += ["--tls-key", str(config.tls_key)] if config.tls_key is not None else []
        self._socks = list(socks)
        numbers = [sock.fileno() for sock in self._socks]
        super().__init__([*words, *(word for number in numbers for word in ("--fd", str(number)))])
        self._descriptors = numbers

    @property
    def address(self) -> str:
        """Address of the page."""
        host, port = self._socks[0].getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        return f"{self._scheme}://{name}:{port}/"

    def renew_certificate(self) -> None:
        """Let the process read its certificate again."""
        self.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """End the process, and let go of its sockets."""
        try:
            await super().stop()
        finally:
            for sock in self._socks:
                sock.close()
