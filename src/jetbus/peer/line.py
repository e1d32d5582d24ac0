"""The line to a daemon: connects, frames what goes out and cuts up what comes in. One line is one connection.

TCP, TLS and Unix sockets use the length-prefixed stream, WebSocket the library's protocol without I/O.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from jetbus.errors import NotConnected
from jetbus.peer.address import Address
from jetbus.wire.framing import STREAM, StreamDecoder

MESSAGE_BYTES_MAX = 256 << 20
"""No daemon is expected to send more in one message."""
KEEPALIVE = (("TCP_KEEPIDLE", 12), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 2))
"""A daemon whose machine is gone is noticed after 18 s."""


class Line(asyncio.Protocol):
    """One connection. ``on_messages`` gets what arrives, ``on_lost`` is called once at the end."""

    def __init__(self, on_messages: Callable[[list[bytes]], None], on_lost: Callable[[Line], None]) -> None:
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._lost = asyncio.Event()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        _keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, _exc: Exception | None) -> None:
        self._lost.set()
        self._on_lost(self)

    async def introduce(self) -> None:
        """Do what must be done before the first message."""

    def write(self, messages: list[bytes]) -> None:
        """Send messages."""
        raise NotImplementedError

    def close(self) -> None:
        """Send what is left, then close."""
        self.transport.close()

    async def closed(self, within_s: float) -> None:
        """Wait until it is closed; what cannot be sent in time is given up."""
        try:
            await asyncio.wait_for(self._lost.wait(), within_s)
        except TimeoutError:
            self.transport.abort()


class StreamLine(Line):
    """Length and message, one after the other."""

    def __init__(self, on_messages: Callable[[list[bytes]], None], on_lost: Callable[[Line], None]) -> None:
        super().__init__(on_messages, on_lost)
        self._decoder = StreamDecoder(MESSAGE_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        self._on_messages(self._decoder.feed(data))
        if self._decoder.overlong is not None:
            self.transport.abort()

    def write(self, messages: list[bytes]) -> None:
        header = STREAM.header
        self.transport.write(b"".join([piece for message in messages for piece in (header(len(message)), message)]))


class WebSocketLine(Line):
    """A text frame a message, subprotocol ``jet``."""

    def __init__(
        self, address: Address, on_messages: Callable[[list[bytes]], None], on_lost: Callable[[Line], None]
    ) -> None:
        super().__init__(on_messages, on_lost)
        self._protocol = ClientProtocol(
            parse_uri(str(address)), subprotocols=[Subprotocol("jet")], max_size=MESSAGE_BYTES_MAX
        )
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fragments: list[bytes] = []

    async def introduce(self) -> None:
        self._protocol.send_request(self._protocol.connect())
        self._send()
        await self._open

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        messages: list[bytes] = []
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._on_response()
            elif isinstance(event, Frame):
                self._on_frame(event, messages)
        self._send()
        if messages:
            self._on_messages(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._open.done():
            self._open.set_exception(NotConnected("the daemon closed the connection during the WebSocket handshake"))
        super().connection_lost(exc)

    def write(self, messages: list[bytes]) -> None:
        if self._protocol.state is State.OPEN:
            for message in messages:
                self._protocol.send_text(message)
            self._send()

    def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._send()
        self.transport.close()

    def _on_response(self) -> None:
        if self._open.done():
            return
        problem = self._protocol.handshake_exc
        if problem is None:
            self._open.set_result(None)
        else:
            reason = problem if isinstance(problem, InvalidHandshake) else type(problem).__name__
            self._open.set_exception(NotConnected(f"the WebSocket handshake was refused: {reason}"))

    def _on_frame(self, frame: Frame, messages: list[bytes]) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            messages.append(b"".join(self._fragments))
            self._fragments = []

    def _send(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            else:
                self.transport.close()


def _keep_alive(sock: socket.socket | None) -> None:
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _unix_socket(path: str) -> socket.socket:
    """A connected Unix socket; uvloop knows no abstract names itself."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, "\0" + path[1:] if path.startswith("@") else path)
    except BaseException:
        sock.close()
        raise
    return sock


async def open_line(
    address: Address,
    tls: ssl.SSLContext | None,
    on_messages: Callable[[list[bytes]], None],
    on_lost: Callable[[Line], None],
) -> Line:
    """Connect to a daemon."""
    loop = asyncio.get_running_loop()

    def make() -> Line:
        if address.websocket:
            return WebSocketLine(address, on_messages, on_lost)
        return StreamLine(on_messages, on_lost)

    line: Any
    if address.scheme == "unix":
        _, line = await loop.create_unix_connection(make, sock=await _unix_socket(address.path))
    else:
        context = (tls or ssl.create_default_context()) if address.tls else None
        _, line = await loop.create_connection(make, address.host, address.port, ssl=context)
    try:
        await line.introduce()
    except BaseException:
        line.transport.abort()
        raise
    return cast(Line, line)
