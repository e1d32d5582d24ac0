"""The web application: the page, the browser's WebSocket, logins, and the HTTP API of the past.

Everything is served from one origin and by relative addresses, so that it works behind a proxy and under a sub-path.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from jetbus.errors import Invalid, JetError, LoginRefused, NotAllowed
from jetbus.journal import BadInstant, JournalError
from jetbus.peer import PeerAsync
from jetbus.radar import boards
from jetbus.radar.archive import BusArchive, LocalArchive
from jetbus.radar.history import ArchiveHistory
from jetbus.radar.limits import Questions, TooManyQuestions
from jetbus.radar.logins import COOKIE, HistorySource, Login, Logins, NoHistory
from jetbus.radar.mirror import BusMirror
from jetbus.radar.openapi import OPENAPI
from jetbus.radar.security import SecurityHeaders, is_allowed_origin
from jetbus.radar.tab import TabSession

log = logging.getLogger("jetbus.radar")

LOGIN_BYTES_MAX = 10_000
NOT_BUILT = "The page of Radar has not been built: run `make radar` in the checkout, or install jetbus from a wheel."
PART_BYTES = 1 << 16
"""Length of the parts in which an answer is sent."""
LOGIN_SHAPE = 'a login is a JSON object such as {"user": "ann", "password": "..."}'


@dataclass(frozen=True)
class RadarSettings:
    """The bus to show, its journal, where below its origin the page is, and other pages that may connect."""

    url: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Login and certificates, as the peers take them."""
    journal: Path | None = None
    origins: tuple[str, ...] = ()
    boards: Path | None = None
    """Directory of board files that everybody may open by name."""
    base: str = ""
    """Prefix of the path of all addresses, for a proxy that passes it on."""


class LoginForm(msgspec.Struct):
    """The body of a login."""

    user: str
    password: str


def create_app(settings: RadarSettings) -> Starlette:
    """Return the application for one bus; raises ``NotAJournal`` if the settings name a directory that has none.

    >>> app = create_app(RadarSettings(url="jet://localhost"))          # doctest: +SKIP
    """
    radar = _Radar(settings)
    routes: list[BaseRoute] = [
        Route("/", radar.show_page),
        WebSocketRoute("/ws", radar.serve_browser),
        # Next to the page, not below api/: a cookie without a path is for the folder of the address that sets it, so
        # it is sent to all of Radar and to nothing else, whatever sub-path a proxy has put before it.
        Route("/login", radar.log_in, methods=["POST"]),
        Route("/logout", radar.log_out, methods=["POST"]),
        Route("/api/openapi.json", lambda _request: JSONResponse(OPENAPI)),
        *(Route(f"/api/{name}", radar.answer(read), methods=["GET"]) for name, read in QUESTIONS.items()),
        *boards.make_routes(settings.boards),
        # The folder may be missing in a checkout; ``show_page`` says how to build it.
        Mount("/assets", StaticFiles(directory=_static(), check_dir=False)),
    ]
    base = "/" + settings.base.strip("/")
    return Starlette(
        routes=routes if base == "/" else [Mount(base, routes=routes)],
        middleware=[Middleware(SecurityHeaders, origins=settings.origins)],
        lifespan=radar.lifespan,
    )


Read = Callable[[ArchiveHistory, Request], Response]
QUESTIONS: dict[str, Read] = {
    "journal": ArchiveHistory.describe_journal,
    "series": ArchiveHistory.read_series,
    "bands": ArchiveHistory.read_bands,
    "events": ArchiveHistory.read_events,
    "last": ArchiveHistory.read_last,
    "changes": ArchiveHistory.read_changes,
    "tree": ArchiveHistory.read_tree,
    "search": ArchiveHistory.search,
    "differences": ArchiveHistory.read_differences,
    "export": ArchiveHistory.export,
}
"""Addresses below ``api/`` that the past answers."""


def _static() -> Path:
    return Path(str(resources.files("jetbus.radar") / "static" / "assets"))


class _Radar:
    """The handlers of one application, with their shared objects."""

    def __init__(self, settings: RadarSettings) -> None:
        self._settings = settings
        self._shared: HistorySource | None = None
        """The past in a journal that the settings name: the same for all."""
        if settings.journal is not None:
            archive = LocalArchive(settings.journal)
            self._shared = HistorySource(lambda: archive)
        self._logins = Logins()
        self.questions = Questions()
        self._anybody = self._make_login(None, settings.options)

    def _make_login(self, user: str | None, options: dict[str, Any]) -> Login:
        source = self._shared or HistorySource(lambda: BusArchive(self._settings.url, options))
        return Login(user, lambda: BusMirror(self._settings.url, options), source)

    def find_login(self, connection: HTTPConnection) -> Login:
        """Return the login of a browser's cookie, or that of Radar itself."""
        return self._logins.find(connection.cookies.get(COOKIE)) or self._anybody

    async def _close_logins(self, logins: list[Login]) -> None:
        for login in logins:
            # A journal that the settings name is shared by all logins and outlives each of them.
            if login.history is not self._shared:
                await run_in_threadpool(login.history.close)

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Close the journals with the application."""
        yield
        await self._close_logins([self._anybody, *self._logins.take_all()])
        if self._shared is not None:
            self._shared.close()

    # -- the page, its WebSocket, and logins

    async def show_page(self, _request: Request) -> Response:
        page = resources.files("jetbus.radar") / "static" / "index.html"
        if not page.is_file():
            return HTMLResponse(f"<!doctype html><title>Radar</title><p>{NOT_BUILT}", status_code=503)
        return HTMLResponse(page.read_text(encoding="utf-8"), headers={"cache-control": "no-cache"})

    async def serve_browser(self, websocket: WebSocket) -> None:
        """Bridge one tab to the bus until either side leaves."""
        # Before ``accept``: cookies come with a WebSocket of any page, so a page elsewhere would act as this user.
        if not is_allowed_origin(websocket.headers, self._settings.origins):
            await websocket.close(1008, "this origin is not allowed")
            return
        await websocket.accept()
        session = TabSession(self.find_login(websocket), websocket.send_text)
        running = asyncio.create_task(session.run())
        try:
            await session.serve(websocket.receive_text)
        except (WebSocketDisconnect, WebSocketDisconnected):
            pass  # the second comes after a message of the session met a connection that was lost
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def log_in(self, request: Request) -> Response:
        """Check a user's password with the daemon, and give the browser a cookie for it."""
        if not is_allowed_origin(request.headers, self._settings.origins):
            return _refuse(403, "this origin is not allowed")
        try:
            body = await _read_body(request)
            form = msgspec.json.decode(body, type=LoginForm)
        except msgspec.MsgspecError:
            return _refuse(400, LOGIN_SHAPE)
        options = {**self._settings.options, "user": form.user, "password": form.password}
        # Radar does not know users of its own: a password is right if the daemon accepts it.
        peer = PeerAsync(self._settings.url, name="radar login", **options)
        try:
            await peer.connect()
        except JetError as problem:
            return _refuse(401, str(problem))
        except OSError as problem:
            return _refuse(503, f"the daemon is not reachable: {problem}")
        finally:
            await peer.close()
        token, gone = self._logins.add(self._make_login(form.user, options))
        await self._close_logins(gone)
        response = JSONResponse({"user": form.user})
        # A proxy that ends TLS passes the request on as plain HTTP and says so in a header. Over plain HTTP all the
        # way, a browser would not send back a cookie that is ``secure``.
        is_secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
        response.set_cookie(COOKIE, token, path=None, httponly=True, samesite="strict", secure=is_secure)
        return response

    async def log_out(self, request: Request) -> Response:
        """Forget the login of a browser."""
        if not is_allowed_origin(request.headers, self._settings.origins):
            return _refuse(403, "this origin is not allowed")
        gone = self._logins.remove(request.cookies.get(COOKIE))
        if gone is not None:
            await self._close_logins([gone])
        response = JSONResponse({"user": None})
        response.set_cookie(COOKIE, "", max_age=0, path=None, httponly=True, samesite="strict")
        return response

    # -- the past

    def answer(self, read: Read) -> _Question:
        """Return the application that answers one kind of question."""
        return _Question(self, read)

    async def ask(self, read: Read, request: Request) -> Response:
        """Answer a question in a thread, and turn errors into JSON."""
        login = self.find_login(request)
        try:
            # ``get`` runs in the thread, too: it opens the journal when it is asked for the first time.
            return await run_in_threadpool(lambda: read(login.history.get(), request))
        except NoHistory as problem:
            return _refuse(_find_status(problem.cause, login, 404), str(problem))
        except (BadInstant, ValueError) as problem:
            return _refuse(400, str(problem))
        except (JournalError, JetError, OSError) as problem:
            return _refuse(_find_status(problem, login, 503), str(problem))


class _Question:
    """ASGI application for one kind of question about the past, asked by some addresses at a time.

    The answer is sent in parts, each when the one before it has left, and the turn lasts until it has been sent: an
    answer that is not read is in memory once, and not for long.
    """

    def __init__(self, radar: _Radar, read: Read) -> None:
        self._radar = radar
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        try:
            async with self._radar.questions.turn(client[0] if client else ""):
                response = await self._radar.ask(self._read, Request(scope, receive))
                await response(scope, receive, _send_in_parts(send))
        except TooManyQuestions as problem:
            await _refuse(429, str(problem))(scope, receive, send)


def _send_in_parts(send: Send) -> Send:
    """Return a ``send`` that cuts long bodies: the server waits for the reader between two messages only."""

    async def send_parts(message: Message) -> None:
        body = message.get("body", b"")
        if len(body) <= PART_BYTES:
            await send(message)
            return
        for start in range(0, len(body), PART_BYTES):
            part, is_last = body[start : start + PART_BYTES], start + PART_BYTES >= len(body)
            await send({**message, "body": part, "more_body": not is_last or message.get("more_body", False)})

    return send_parts


def _find_status(problem: BaseException | None, login: Login, otherwise: int) -> int:
    """Return the HTTP status for a refusal of the daemon."""
    if isinstance(problem, LoginRefused):
        return 401
    if isinstance(problem, NotAllowed):
        # Another login may help whoever has none; one that is known lacks the right.
        return 401 if login.user is None else 403
    return 400 if isinstance(problem, Invalid) and otherwise != 404 else otherwise


def _refuse(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status)


async def _read_body(request: Request) -> bytes:
    body = b""
    # Part by part, because ``request.body()`` would take any length.
    async for part in request.stream():
        body += part
        if len(body) > LOGIN_BYTES_MAX:
            raise msgspec.ValidationError("a login is short")
    return body
