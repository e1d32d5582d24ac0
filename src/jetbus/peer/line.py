"""The line to a daemon: connects, frames what goes out and cuts up what comes in. One line is one connection.

TCP, TLS and Unix sockets use the length-prefixed stream, WebSocket the library's protocol without I/O. On lines of the
binary protocol an interpreter stands between the frames and the session, which speaks JSON.
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

from jetbus.errors import JetError, NotConnected
from jetbus.loops import keep_alive
from jetbus.peer.address import BINARY, Address
from jetbus.peer.interpreter import Interpreter, check_version
from jetbus.wire.framing import BINARY_STREAM, STREAM, StreamDecoder

MESSAGE_BYTES_MAX = 256 << 20
"""No daemon is expected to send more in one message."""


class HandshakeRefused(NotConnected):
    """An HTTP server is there, but it serves no WebSocket at that path."""


class Line(asyncio.Protocol):
    """One connection. ``on_messages`` gets what arrives, ``on_lost`` is called once at the end."""

    _before_open = "before it had introduced itself"

    def __init__(
        self, address: Address, on_messages: Callable[[list[bytes]], None], on_lost: Callable[[Line], None]
    ) -> None:
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._lost = asyncio.Event()
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._framing = BINARY_STREAM if address.binary else STREAM
        self._interpreter = Interpreter() if address.binary else None
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, _exc: Exception | None) -> None:
        self._refuse(NotConnected(f"the daemon closed the connection {self._before_open}"))
        self._lost.set()
        self._on_lost(self)

    async def introduce(self) -> None:
        """Do what must be done before the first message."""
        if self._interpreter is not None:
            await self._open

    def write(self, messages: list[bytes]) -> None:
        """Send messages."""
        self._write(self._said(messages))

    def _write(self, messages: list[bytes]) -> None:
        raise NotImplementedError

    def _said(self, messages: list[bytes]) -> list[bytes]:
        return messages if self._interpreter is None else self._interpreter.said(messages)

    def _hear(self, messages: list[bytes]) -> None:
        """Messages as they stand in their frames."""
        interpreter = self._interpreter
        if interpreter is None:
            self._on_messages(messages)
            return
        if messages and not self._open.done():
            self._check_info(messages[0])
        self._on_messages(interpreter.heard(messages))
        if interpreter.replies:
            replies, interpreter.replies = interpreter.replies, []
            self._write(replies)

    def _check_info(self, message: bytes) -> None:
        try:
            check_version(message)
        except NotConnected as problem:
            self._refuse(problem)
        except JetError:
            self._refuse(NotConnected("what listens there does not speak the binary protocol; try jet:// or ws://"))
        else:
            self._open.set_result(None)

    def _refuse(self, problem: NotConnected) -> None:
        if not self._open.done():
            self._open.set_exception(problem)
            self._open.exception()  # nobody may be waiting for it

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

    def __init__(
        self, address: Address, on_messages: Callable[[list[bytes]], None], on_lost: Callable[[Line], None]
    ) -> None:
        super().__init__(address, on_messages, on_lost)
        self._decoder = StreamDecoder(MESSAGE_BYTES_MAX, self._framing)

    def data_received(self, data: bytes) -> None:
        self._hear(self._decoder.feed(data))
        if self._decoder.overlong is not None:
            self._refuse(NotConnected("what listens there does not speak this protocol; is it the right port?"))
            self.transport.abort()

    def _write(self, messages: list[bytes]) -> None:
        self.transport.write(self._framing.framed(messages))

    def framed(self, message: bytes) -> bytes:
        """The bytes of one message."""
        return self._framing.framed(self._said([message]))


class WebSocketLine(Line):
    """A text frame a message, subprotocol ``jet``; binary messages with their length in binary frames."""

    _before_open = "during the WebSocket handshake"

    def __init__(
        self, address: Address, on_messages: Callable[[list[bytes]], None], on_lost: Callable[[Line], None]
    ) -> None:
        super().__init__(address, on_messages, on_lost)
        uri = parse_uri(str(address).removeprefix(f"{BINARY}+"))
        subprotocol = Subprotocol("jet-binary" if address.binary else "jet")
        self._protocol = ClientProtocol(uri, subprotocols=[subprotocol], max_size=MESSAGE_BYTES_MAX)
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
        if self._protocol.handshake_exc is not None and not self._open.done():
            self._on_response()  # cjet refuses with HTTP 1.0, of which the library tells no event
        self._send()
        if messages:
            self._hear(messages)

    def _write(self, messages: list[bytes]) -> None:
        if self._protocol.state is State.OPEN:
            for message in messages:
                if self._interpreter is None:
                    self._protocol.send_text(message)
                else:
                    self._protocol.send_binary(self._framing.header(len(message)) + message)
            self._send()

    def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._send()
        self.transport.close()

    def _on_response(self) -> None:
        problem = self._protocol.handshake_exc
        if problem is not None:
            reason = problem if isinstance(problem, InvalidHandshake) else type(problem).__name__
            self._refuse(HandshakeRefused(f"the WebSocket handshake was refused: {reason}"))
        elif self._interpreter is None:
            self._open.set_result(None)
        elif self._protocol.subprotocol is None:
            self._refuse(NotConnected("the daemon does not speak the binary protocol by WebSocket; try ws://"))

    def _on_frame(self, frame: Frame, messages: list[bytes]) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            message = b"".join(self._fragments)
            whole = self._interpreter is None
            messages += [message] if whole else StreamDecoder(MESSAGE_BYTES_MAX, self._framing).feed(message)
            self._fragments = []

    def _send(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            else:
                self.transport.close()


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
    try:
        return await _open_at(address, tls, on_messages, on_lost)
    except HandshakeRefused as problem:
        cjet = address.at_cjet_path()
        if cjet is None:
            raise
        try:
            return await _open_at(cjet, tls, on_messages, on_lost)
        except NotConnected:
            raise problem from None


async def _open_at(
    address: Address,
    tls: ssl.SSLContext | None,
    on_messages: Callable[[list[bytes]], None],
    on_lost: Callable[[Line], None],
) -> Line:
    loop = asyncio.get_running_loop()

    def make() -> Line:
        if address.websocket:
            return WebSocketLine(address, on_messages, on_lost)
        return StreamLine(address, on_messages, on_lost)

    line: Any
    if address.transport == "unix":
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
