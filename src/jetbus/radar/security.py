"""Protection against other pages and hostile values: headers of every answer, and the origin of WebSockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOREIGN_HOST = "this Radar is for its own machine; start it with --origin and the address that the browser shows"
# Scripts, styles and connections of this origin only, nothing inline: a value that got into the page as HTML could
# neither run nor send anything elsewhere.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "font-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """ASGI middleware that adds ``HEADERS`` to every response, and refuses requests for hosts that this is not."""

    def __init__(self, app: ASGIApp, origins: Sequence[str] = ()) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if not is_allowed_host(Headers(scope=scope).get("host", ""), scope.get("server"), self._origins):
            if scope["type"] == "http":
                await JSONResponse({"error": FOREIGN_HOST}, status_code=403)(scope, receive, send)
            else:
                # Before it was accepted, which answers the handshake with HTTP 403.
                await send({"type": "websocket.close", "code": 1008, "reason": FOREIGN_HOST})
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def is_allowed_host(host: str, server: tuple[str, int | None] | None, origins: Sequence[str]) -> bool:
    """Return True if a request may name this host.

    A page elsewhere can let its own name resolve to 127.0.0.1 and would then be of the same origin as a Radar of this
    machine. So a request over loopback has to name an address, localhost, or the host of an allowed origin.
    """
    if server is None or not _is_loopback(server[0]) or "*" in origins:
        return True
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost") or name in {urlsplit(one).hostname for one in origins}:
        return True
    return _is_address(name)


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_allowed_origin(headers: Mapping[str, str], origins: Sequence[str]) -> bool:
    """Return True for a page of this very host, an allowed origin, or a client other than a browser.

    Browsers let any page open a WebSocket to any host, and name the page only by ``Origin``.
    """
    origin = headers.get("origin")
    if origin is None or origin in origins or "*" in origins:
        return True
    # Behind a proxy the host that the browser knows is in x-forwarded-host.
    hosts = {headers.get("host"), headers.get("x-forwarded-host")}
    return urlsplit(origin).netloc in hosts
