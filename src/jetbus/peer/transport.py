"""Transports: one connection to a daemon each. They frame payloads on the way out and cut up bytes on the way in.

TCP, TLS and Unix sockets carry a length before each payload. WebSocket uses the protocol of the ``websockets`` library
without its I/O. Neither looks into a payload, except for one thing: a daemon that speaks the binary protocol
introduces itself first, and that greeting shows whether the peer is at the right port.
"""

from __future__ import annotations

import asyncio
import os
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
from jetbus.peer.address import BINARY, Endpoint, NoAnswer, explain_closing, suggest_tls
from jetbus.peer.binary import check_version
from jetbus.wire.framing import BINARY_STREAM, STREAM, StreamDecoder

MESSAGE_BYTES_MAX = 256 << 20
"""Limit of one message; no daemon is expected to send more."""

OnPayloads = Callable[[list[bytes]], None]
OnLost = Callable[["Transport"], None]


class HandshakeRefused(NotConnected):
    """An HTTP server is there, but it serves no WebSocket at that path."""


class Transport(asyncio.Protocol):
    """One connection. ``on_payloads`` gets the payloads that arrive, ``on_lost`` is called once at the end."""

    def __init__(self, address: Endpoint, on_payloads: OnPayloads, on_lost: OnLost) -> None:
        self._address = address
        self._on_payloads = on_payloads
        self._on_lost = on_lost
        self._lost = asyncio.Event()
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the daemon has greeted the peer; it has the error if the daemon is not one to talk to."""
        self._is_binary = address.binary
        self._framing = BINARY_STREAM if address.binary else STREAM
        self._stream: asyncio.Transport = cast(asyncio.Transport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stream = cast(asyncio.Transport, transport)
        keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, _exc: Exception | None) -> None:
        self._refuse(NoAnswer(explain_closing(self._address)))
        self._lost.set()
        self._on_lost(self)

    async def open(self) -> None:
        """Exchange the bytes that precede the first message."""
        if self._is_binary:
            await self._open

    def write(self, payloads: list[bytes]) -> None:
        """Write payloads."""
        raise NotImplementedError

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the socket has not taken yet."""
        return self._stream.get_write_buffer_size()

    def _receive(self, payloads: list[bytes]) -> None:
        if self._is_binary and payloads and not self._open.done():
            # The greeting ends here: a session does not know of it.
            self._check_greeting(payloads.pop(0))
        if payloads:
            self._on_payloads(payloads)

    def _check_greeting(self, frame: bytes) -> None:
        try:
            check_version(frame)
        except NotConnected as error:
            self._refuse(error)
        except JetError:
            text = f"what listens at {self._address} does not speak the binary protocol"
            self._refuse(NoAnswer(f"{text}; {suggest_tls(self._address)}try jet:// or ws://"))
        else:
            self._open.set_result(None)

    def _refuse(self, error: NotConnected) -> None:
        if not self._open.done():
            self._open.set_exception(error)
            self._open.exception()  # else the loop reports that it was never retrieved

    def close(self) -> None:
        """Send all queued payloads, then close."""
        self._stream.close()

    def abort(self) -> None:
        """Close at once, whatever is left."""
        self._stream.abort()

    def abandon(self) -> None:
        """Let go of the socket in a forked process, where closing it properly would end the parent's connection."""
        # The number stays in use, so that the event loop, which still knows it, cannot close another file by it.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, self._stream.get_extra_info("socket").fileno(), inheritable=False)
        os.close(nothing)

    async def wait_closed(self, within_s: float) -> None:
        """Wait until the connection is closed; abort it if that takes too long."""
        try:
            await asyncio.wait_for(self._lost.wait(), within_s)
        except TimeoutError:
            self.abort()


class StreamTransport(Transport):
    """TCP, TLS or Unix socket: a length before each payload."""

    def __init__(self, address: Endpoint, on_payloads: OnPayloads, on_lost: OnLost) -> None:
        super().__init__(address, on_payloads, on_lost)
        self._decoder = StreamDecoder(MESSAGE_BYTES_MAX, self._framing)

    def data_received(self, data: bytes) -> None:
        self._receive(self._decoder.feed(data))
        # The first bytes of another protocol, read as a length, are far above the limit.
        if self._decoder.overlong is not None:
            self._refuse(
                NoAnswer(f"what listens at {self._address} does not speak this protocol; is it the right port?")
            )
            self.abort()

    def write(self, payloads: list[bytes]) -> None:
        self._stream.write(self._framing.join(payloads))

    # For a blocking peer, which writes to the socket in threads of its callers; see ``threads``.

    def frame(self, payload: bytes) -> bytes:
        """Return the bytes of a payload with its length."""
        return self._framing.join([payload])

    def get_idle_socket(self) -> int | None:
        """Return the file number of the socket; None while the event loop has something to write to it."""
        if self._stream.is_closing() or self._stream.get_write_buffer_size():
            return None
        return cast(int, self._stream.get_extra_info("socket").fileno())

    def write_bytes(self, data: bytes) -> None:
        """Write bytes that are framed already."""
        self._stream.write(data)


class WebSocketTransport(Transport):
    """WebSocket: a text frame per message, or a binary frame that has a length before the payload, too."""

    def __init__(self, address: Endpoint, on_payloads: OnPayloads, on_lost: OnLost) -> None:
        super().__init__(address, on_payloads, on_lost)
        uri = parse_uri(str(address).removeprefix(f"{BINARY}+"))
        subprotocol = Subprotocol("jet-binary" if address.binary else "jet")
        self._protocol = ClientProtocol(uri, subprotocols=[subprotocol], max_size=MESSAGE_BYTES_MAX)
        self._fragments: list[bytes] = []

    async def open(self) -> None:
        self._protocol.send_request(self._protocol.connect())
        self._flush()
        await self._open

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        payloads: list[bytes] = []
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._check_handshake()
            elif isinstance(event, Frame):
                self._receive_frame(event, payloads)
        if self._protocol.handshake_exc is not None and not self._open.done():
            self._check_handshake()  # cjet refuses with HTTP 1.0, which the library does not report
        self._flush()
        if payloads:
            self._receive(payloads)

    def write(self, payloads: list[bytes]) -> None:
        if self._protocol.state is State.OPEN:
            for payload in payloads:
                if self._is_binary:
                    self._protocol.send_binary(self._framing.header(len(payload)) + payload)
                else:
                    self._protocol.send_text(payload)
            self._flush()

    def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._flush()
        self._stream.close()

    def _check_handshake(self) -> None:
        error = self._protocol.handshake_exc
        if error is not None:
            reason = error if isinstance(error, InvalidHandshake) else type(error).__name__
            self._refuse(HandshakeRefused(f"the WebSocket handshake was refused: {reason}"))
        elif not self._is_binary:
            self._open.set_result(None)
        elif self._protocol.subprotocol is None:
            self._refuse(NotConnected("the daemon does not speak the binary protocol by WebSocket; try ws://"))

    def _receive_frame(self, frame: Frame, payloads: list[bytes]) -> None:
        # The library answers pings and closing by itself; the answers go out with ``_flush``.
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            message = b"".join(self._fragments)
            if self._is_binary:
                payloads += StreamDecoder(MESSAGE_BYTES_MAX, self._framing).feed(message)
            else:
                payloads.append(message)
            self._fragments = []

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            # An empty item is the library's sign that nothing more will be sent.
            if data:
                self._stream.write(data)
            else:
                self._stream.close()


async def _open_unix_socket(path: str) -> socket.socket:
    """Connect to a Unix socket; uvloop itself cannot connect to abstract names."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, "\0" + path[1:] if path.startswith("@") else path)
    except BaseException:
        sock.close()
        raise
    return sock


async def open_transport(
    address: Endpoint, tls: ssl.SSLContext | None, on_payloads: OnPayloads, on_lost: OnLost
) -> Transport:
    """Connect to a daemon."""
    try:
        return await _open_at(address, tls, on_payloads, on_lost)
    except HandshakeRefused as error:
        # cjet has WebSockets at a path of its own. If it is not there either, the first refusal is the one that helps.
        cjet = address.at_cjet_path()
        if cjet is None:
            raise
        try:
            return await _open_at(cjet, tls, on_payloads, on_lost)
        except NotConnected:
            raise error from None


async def _open_at(
    address: Endpoint, tls: ssl.SSLContext | None, on_payloads: OnPayloads, on_lost: OnLost
) -> Transport:
    loop = asyncio.get_running_loop()
    kind = WebSocketTransport if address.websocket else StreamTransport

    def make() -> Transport:
        return kind(address, on_payloads, on_lost)

    transport: Any
    if address.transport == "unix":
        _, transport = await loop.create_unix_connection(make, sock=await _open_unix_socket(address.path))
    else:
        context = (tls or ssl.create_default_context()) if address.tls else None
        _, transport = await loop.create_connection(make, address.host, address.port, ssl=context)
    try:
        await transport.open()
    except BaseException:
        transport.abort()
        raise
    return cast(Transport, transport)
