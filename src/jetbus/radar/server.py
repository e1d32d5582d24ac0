"""The HTTP server that Radar runs on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import uvicorn

from jetbus.radar.app import RadarSettings, create_app


def serve(
    settings: RadarSettings, host: str, port: int, *, on_ready: Callable[[str], None], for_s: float | None = None
) -> None:
    """Serve Radar until interrupted, or for so long; call ``on_ready`` with its address. Port 0 takes a free one."""
    # Here and not by uvicorn, so that the port is known, and open, before ``on_ready`` names it.
    listening = _listen(host, port)
    server = _make_server(settings)
    if for_s is not None:
        timer = threading.Timer(for_s, _stop, [server])
        timer.daemon = True
        timer.start()
    name = f"[{host}]" if ":" in host else host
    base = settings.base.strip("/")
    on_ready(f"http://{name}:{listening.getsockname()[1]}/{base + '/' if base else ''}")
    server.run(sockets=[listening])


def serve_sockets(settings: RadarSettings, sockets: list[socket.socket]) -> None:
    """Serve Radar on sockets that listen already, until SIGTERM."""
    _make_server(settings).run(sockets=sockets)


def _make_server(settings: RadarSettings) -> uvicorn.Server:
    config = uvicorn.Config(create_app(settings), log_level="warning", ws_max_size=2**20, proxy_headers=False)
    return uvicorn.Server(config)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(address)
    listening.listen(128)
    return listening


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True
