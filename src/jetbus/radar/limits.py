"""Limits on the requests of one address to Radar's server, and on their time.

    limit                     counts                                      beyond it
    connections_per_address   HTTP connections and tabs of an address     refused with 429, closed
    request_s                 time to send a request, head and body       408, closed
    stuck_s                   time without reading the response           aborted
    QUESTIONS_PER_ADDRESS     questions about the past at work            wait for their turn
    QUESTIONS_WAITING_MAX     those and the waiting ones of an address    refused with 429

A question keeps its turn until its answer has been read, so that unread answers do not pile up. Behind a
proxy all browsers have one address; ``jet radar --connections`` raises the first limit there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

CONNECTIONS_PER_ADDRESS = 200
REQUEST_S = 10.0
STUCK_S = 30.0
QUESTIONS_PER_ADDRESS = 2
QUESTIONS_AT_A_TIME = 6
"""Questions of all addresses at work; each has a thread."""
QUESTIONS_WAITING_MAX = 100
"""Questions of one address, at work or waiting; a page with many charts asks some dozens at once."""


class TooManyQuestions(Exception):
    """An address has too many questions that are not answered yet."""


class Questions:
    """Turns of the questions about the past, a few at a time of each address."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(QUESTIONS_AT_A_TIME)
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._open: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait until an address may ask, and keep its turn; raises ``TooManyQuestions``."""
        if self._open[address] >= QUESTIONS_WAITING_MAX:
            raise TooManyQuestions(
                f"{address} has {QUESTIONS_WAITING_MAX} questions that are not answered yet; ask again later"
            )
        self._open[address] += 1
        turns = self._turns.setdefault(address, asyncio.Semaphore(QUESTIONS_PER_ADDRESS))
        try:
            # Its own turn first: an address that waits for it must not keep others from a thread.
            async with turns, self._all:
                yield
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address], self._turns[address]


class BoundedConfig(Config):
    """Settings of a server that counts connections by address."""

    def __init__(
        self, app: Any, *, connections_per_address: int, request_s: float, stuck_s: float, **options: Any
    ) -> None:
        super().__init__(app, http=_BoundedHttp, ws=_BoundedWebSocket, **options)
        self.connections_per_address = connections_per_address
        self.request_s = request_s
        self.stuck_s = stuck_s
        self.open_connections: Counter[str] = Counter()


class _Timer:
    """A timer that runs, or does not."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop, wait_s: float, act: Any) -> None:
        if self._handle is None:
            self._handle = loop.call_later(wait_s, act)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _BoundedHttp(H11Protocol):
    """An HTTP connection that counts against its address and has to send and read in time."""

    config: BoundedConfig

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sending, self._stuck = _Timer(), _Timer()
        self._address: str | None = None
        """The address that this connection counts against; None if it was refused or has become a tab."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address, counts = _find_address(self.client), self.config.open_connections
        if counts[address] >= self.config.connections_per_address:
            self._refuse(429, f"{address} has {counts[address]} connections, which is the limit; close some")
            return
        counts[address] += 1
        self._address = address
        self._sending.start(self.loop, self.config.request_s, self._end_request)

    def data_received(self, data: bytes) -> None:
        if self._address is None:
            return
        # Data after a response is the next request; between the two, uvicorn limits the time.
        self._sending.start(self.loop, self.config.request_s, self._end_request)
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._sending.stop()

    def _end_request(self) -> None:
        self._refuse(408, f"the request was not complete after {self.config.request_s:g} s")

    def _refuse(self, status: int, text: str) -> None:
        """Answer without the application, which does not know of the request yet, and close."""
        body = f'{{"error":"{text}"}}'
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n{body}".encode())
        self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        # Its count goes on with the tab.
        self._sending.stop()
        self._address = None
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck.start(self.loop, self.config.stuck_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._sending.stop()
        self._stuck.stop()
        _leave(self.config, self._address)
        super().connection_lost(exc)


class _BoundedWebSocket(WebSocketsSansIOProtocol):
    """The WebSocket of a tab, which counts against its address and has to read in time."""

    config: BoundedConfig

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stuck = _Timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck.start(self.loop, self.config.stuck_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stuck.stop()
        _leave(self.config, _find_address(self.client))
        super().connection_lost(exc)


def _find_address(client: tuple[str, int] | None) -> str:
    return client[0] if client else ""


def _leave(config: BoundedConfig, address: str | None) -> None:
    if address is not None:
        config.open_connections[address] -= 1
        if not config.open_connections[address]:
            del config.open_connections[address]
