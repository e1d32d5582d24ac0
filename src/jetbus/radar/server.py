"""The HTTP server that Radar runs on, with TLS if it has a certificate."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from jetbus.radar.app import RadarSettings, create_app
from jetbus.radar.limits import CONNECTIONS_PER_ADDRESS, REQUEST_S, STUCK_S, BoundedConfig

log = logging.getLogger("jetbus.radar")


class CertificateError(Exception):
    """The certificate of a server, or its key, cannot be used."""


class ServerSettings(NamedTuple):
    """The certificate of a server, and its limits."""

    tls_cert: Path | None = None
    """PEM certificates; without them the server speaks plain HTTP."""
    tls_key: Path | None = None
    """PEM key of the certificate, unless it is in the same file."""
    connections_per_address: int = CONNECTIONS_PER_ADDRESS
    request_s: float = REQUEST_S
    stuck_s: float = STUCK_S

    @property
    def scheme(self) -> str:
        """Scheme of the address of the page."""
        return "http" if self.tls_cert is None else "https"


def serve(
    settings: RadarSettings,
    host: str,
    port: int,
    *,
    server: ServerSettings = ServerSettings(),  # noqa: B008 - it cannot be changed
    on_ready: Callable[[str], None],
    for_s: float | None = None,
) -> None:
    """Serve Radar until interrupted, or for so long; call ``on_ready`` with its address. Port 0 takes a free one."""
    # Here and not by uvicorn, so that the port is known, and open, before ``on_ready`` names it.
    running = make_server(settings, server)
    listening = _listen(host, port)
    if for_s is not None:
        timer = threading.Timer(for_s, _stop, [running])
        timer.daemon = True
        timer.start()
    name = f"[{host}]" if ":" in host else host
    base = settings.base.strip("/")
    on_ready(f"{server.scheme}://{name}:{listening.getsockname()[1]}/{base + '/' if base else ''}")
    running.run(sockets=[listening])


def serve_sockets(settings: RadarSettings, sockets: list[socket.socket], server: ServerSettings) -> None:
    """Serve Radar on sockets that listen already, until SIGTERM."""
    make_server(settings, server).run(sockets=sockets)


def make_server(settings: RadarSettings, server: ServerSettings) -> uvicorn.Server:
    """Return a server of the application; raises ``CertificateError``."""
    options: dict[str, Any] = {"log_level": "warning", "ws_max_size": 2**20, "proxy_headers": False}
    if server.tls_cert is not None:
        options |= {"ssl_certfile": str(server.tls_cert), "ssl_keyfile": server.tls_key and str(server.tls_key)}
    config = BoundedConfig(
        create_app(settings),
        connections_per_address=server.connections_per_address,
        request_s=server.request_s,
        stuck_s=server.stuck_s,
        **options,
    )
    try:
        config.load()
    except (OSError, ValueError) as problem:
        raise CertificateError(f"the certificate {server.tls_cert} or its key cannot be used: {problem}") from None
    if config.ssl is not None:
        _reload_on_hangup(config.ssl, server)
    return uvicorn.Server(config)


def _reload_on_hangup(context: ssl.SSLContext, server: ServerSettings) -> None:
    """Use the certificate as it is in its file then, for new connections, on SIGHUP."""

    def reload(_number: int, _frame: object) -> None:
        try:
            context.load_cert_chain(str(server.tls_cert), server.tls_key and str(server.tls_key))
        except OSError as problem:
            log.error("%s cannot be used, the certificate stays as it was: %s", server.tls_cert, problem)
        else:
            log.info("%s is used from now on", server.tls_cert)

    signal.signal(signal.SIGHUP, reload)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    listening.listen(128)
    return listening


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True
