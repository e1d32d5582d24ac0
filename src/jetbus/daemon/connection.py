"""Connections: bytes from a socket to the bus, for the length-prefixed streams and for WebSocket.

All faces are thin: framing is in ``wire.framing`` and in the WebSocket library, meaning is in the bus. A connection
that breaks the framing is told why and closed; one that sends nonsense inside its frames is answered and lives on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from websockets.exceptions import InvalidMessage, ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from jetbus.daemon.outbox import SocketOutbox
from jetbus.errors import InvalidRequest
from jetbus.wire.binary import INFO_MESSAGE
from jetbus.wire.dialects import BINARY, CLASSIC
from jetbus.wire.framing import BINARY_STREAM, BINARY_WEBSOCKET, STREAM, WEBSOCKET, Framing, StreamDecoder

if TYPE_CHECKING:
    from jetbus.bus.session import Session
    from jetbus.daemon.daemon import Daemon

log = logging.getLogger("jetbus.connection")
_ws_log = logging.getLogger("jetbus.websocket")

HANDSHAKE_S = 10.0
"""How long a WebSocket peer may take to introduce itself."""
WAITING_BYTES = 64 * 1024
"""How much is read from a peer whose messages wait for a slow service; the rest stays in the socket."""
_HEAD_END = b"\r\n\r\n"
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 27\r\n\r\nthis is no HTTP/1.1 request"


class Connection(asyncio.Protocol):
    """What all kinds share: a transport, an outbox and, once the peer may speak, a session."""

    framing: Framing
    dialect = CLASSIC
    """What a peer is taken to speak at first."""

    def __init__(self, daemon: Daemon, kind: str) -> None:
        self._daemon = daemon
        self._bus = daemon.bus
        self._turns = daemon.turns
        self.kind = kind
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.outbox: SocketOutbox = cast(SocketOutbox, None)
        self.session: Session | None = None
        self.address = ""
        self._left = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.address = _address_text(transport.get_extra_info("peername"))
        self.outbox = SocketOutbox(self.transport, self._daemon.flow)
        if not self._daemon.admit(self):
            self.transport.abort()

    def _open_session(self) -> Session:
        session = self._bus.connect(self.outbox, self.framing, self.dialect)
        if self.dialect.is_binary:
            session.send(INFO_MESSAGE)
        session.released = self._on_released
        self.outbox.audiences = session.fetches.values()
        self.outbox.label = f"peer #{session.number} ({self.kind} {self.address})"
        self.session = session
        self._daemon.opened(self)
        return session

    def connection_lost(self, _exc: Exception | None) -> None:
        self.outbox.close()
        self._catch_up()
        self._leave()
        self._daemon.lost(self)

    def eof_received(self) -> None:
        self._catch_up()
        self._leave()

    def _leave(self) -> None:
        """Remove the peer from the bus as soon as it is known to be gone: closing may wait for what is yet to write."""
        if not self._left:
            self._left = True
            self._daemon.losing(self)
            if self.session is not None:
                self._bus.disconnect(self.session)

    def _catch_up(self) -> None:
        """Handle all that has arrived, out of turn; nothing more will."""
        turns, messages = self._turns, self._turns.take(self)
        handling, turns.handling = turns.handling, True
        self.handle(messages)
        turns.handling = handling
        self.outbox.flush()  # before the transport is closed

    def pause_writing(self) -> None:
        self.outbox.pause()

    def resume_writing(self) -> None:
        self.outbox.resume()

    def _receive(self, session: Session, messages: list[bytes]) -> None:
        """Handle messages at once, or when it is their turn."""
        turns, flow = self._turns, self._daemon.flow
        if turns.fair and not turns.handling:
            turns.collect(self, messages)
            return
        turns.serve(self)
        flow.gather()
        self._pass_on(session, messages)
        flow.gathered()

    def handle(self, messages: list[bytes]) -> None:
        """Handle a fetch that was put off, then messages, since it is their turn."""
        session = self.session
        if session is None or session.gone:
            return
        self._turns.serve(self)
        if session.put_off is not None:
            session.put_off()
        self._pass_on(session, messages)

    def _pass_on(self, session: Session, messages: list[bytes]) -> None:
        now = self._daemon.now()
        receive = self._bus.receive_binary if self.dialect.is_binary else self._bus.receive
        try:
            if session.fresh and messages:
                receive(session, messages[:1], now)
                session.fresh = False
                messages = messages[1:]
            receive(session, messages, now)
        except Exception:
            log.exception("%s is closed: the daemon failed on what it sent", self.outbox.label)
            self.transport.abort()
        if session.refused:
            self._refuse(session, session.refused)
            self._hang_up(session.refused)
        elif session.held and sum(map(len, session.waiting)) > WAITING_BYTES and not self.transport.is_closing():
            self.transport.pause_reading()

    def _on_released(self) -> None:
        """A slow service has answered: take in what has arrived meanwhile, then read on."""
        session = self.session
        if session is None or session.gone:
            return
        waiting, session.waiting = session.waiting, []
        if waiting:
            self._receive(session, waiting)
        if not session.held and not self.transport.is_closing():
            self.transport.resume_reading()

    def _refuse(self, session: Session, problem: str) -> None:
        """Say what is wrong."""
        self._bus.answer_error(session, b"", InvalidRequest({"reason": problem}))
        self.outbox.flush()

    def _hang_up(self, _reason: str) -> None:
        """Close, for a reason that has been told."""
        self.transport.close()


class StreamConnection(Connection):
    """TCP and Unix sockets."""

    framing = STREAM

    def __init__(self, daemon: Daemon, kind: str) -> None:
        super().__init__(daemon, kind)
        self._decoder = StreamDecoder(daemon.config.message_bytes_max, self.framing)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.transport.is_closing():
            self._open_session()

    def data_received(self, data: bytes) -> None:
        session = self.session
        if session is None or session.gone:
            return
        self._receive(session, self._decoder.feed(data))
        if self._decoder.overlong is not None:
            self._catch_up()
            self._daemon.bus.limit_hits["message_bytes_max"] += 1
            allowed = self._daemon.config.message_bytes_max
            reason = f"a message of {self._decoder.overlong} bytes; message_bytes_max = {allowed} are allowed"
            self._refuse(session, reason)
            self._hang_up(reason)


class BinaryConnection(StreamConnection):
    """TCP and Unix sockets of peers that speak binary."""

    framing = BINARY_STREAM
    dialect = BINARY


class WebSocketConnection(Connection):
    """WebSocket, and the plain HTTP pages /health and /metrics on the same port."""

    framing = WEBSOCKET

    def __init__(self, daemon: Daemon, kind: str) -> None:
        super().__init__(daemon, kind)
        config = daemon.config
        # Only browsers tell an origin; who tells none is no web page.
        origins = [None, *map(Origin, config.ws_origins)] if config.ws_origins else None
        self._protocol = ServerProtocol(
            origins=origins,
            select_subprotocol=_select_subprotocol,
            max_size=config.message_bytes_max,
            logger=_ws_log,
        )
        self._fragments: list[bytes] = []
        self._heard = True
        self._head_end = b""
        """The last bytes of the handshake that have arrived."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._daemon.loop.call_later(HANDSHAKE_S, self._check_handshake)

    def _check_handshake(self) -> None:
        if self._protocol.state is State.CONNECTING:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._protocol.state is State.CONNECTING:
            following = self._shake_hands(data)
            if following is None:
                self._send_protocol()
                return
            data = following
        self._protocol.receive_data(data)
        messages: list[bytes] = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._on_frame(event, messages)
        if self.session is not None and not self.session.gone:
            self._receive(self.session, messages)
        if self._protocol.state is not State.OPEN:
            self._catch_up()
        self._send_protocol()

    def _shake_hands(self, data: bytes) -> bytes | None:
        """Take in the handshake, however it is cut; gives what follows it, None if there is no WebSocket (yet).

        What follows is kept from the WebSocket library until the handshake is answered: it would answer a ping first.
        """
        protocol, seen = self._protocol, self._head_end
        found = (seen + data).find(_HEAD_END)
        end = len(data) if found < 0 else found + len(_HEAD_END) - len(seen)
        self._head_end = (seen + data)[1 - len(_HEAD_END) :]
        if seen or data[:1].isalpha():
            protocol.receive_data(data[:end])
        else:
            protocol.receive_eof()  # whatever this is, a request starts with its method
        if isinstance(protocol.handshake_exc, InvalidMessage):
            self.outbox.put(_BAD_REQUEST)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._on_request(event)
        return data[end:] if protocol.state is State.OPEN else None

    def eof_received(self) -> None:
        super().eof_received()
        self._protocol.receive_eof()
        self._send_protocol()

    def ping(self) -> None:
        """Ask for a sign of life; without one since the last time, the peer is gone."""
        if self._protocol.state is not State.OPEN:
            return
        held = self.session is not None and self.session.held  # it may be that nothing is read from it, no pong either
        if self._heard or held:
            self._protocol.send_ping(b"")
            self._send_protocol()
        else:
            log.info("peer at %s answers no pings; closed", self.address)
            self.transport.abort()
        self._heard = False

    def _hang_up(self, reason: str) -> None:
        self._protocol.fail(CloseCode.PROTOCOL_ERROR, reason)
        self._send_protocol()

    def goodbye(self) -> None:
        """Close as the WebSocket protocol wants it."""
        if self._protocol.state is State.OPEN:
            with contextlib.suppress(ProtocolError):
                self._protocol.send_close(CloseCode.GOING_AWAY, "the daemon stops")
            self._send_protocol()

    def _on_request(self, request: Request) -> None:
        if "Upgrade" in request.headers:
            response = self._protocol.accept(request)
        else:
            response = self._page(request.path.partition("?")[0])
        self._protocol.send_response(response)
        self._send_protocol()
        self.outbox.flush()  # before a pong, which does not wait for the outbox
        if self._protocol.state is State.OPEN:
            if self._protocol.subprotocol == BINARY_SUBPROTOCOL:
                self.framing, self.dialect = BINARY_WEBSOCKET, BINARY
                self._protocol.max_message_size = self._daemon.config.message_bytes_max + BINARY_STREAM.length.size
            self._open_session()

    def _page(self, path: str) -> Response:
        page = self._daemon.page(path)
        if page is None:
            return self._protocol.reject(404, "a Jet daemon: connect by WebSocket, or see /health and /metrics\n")
        response = self._protocol.reject(200, page.text)
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = page.content_type
        return response

    def _on_frame(self, frame: Frame, messages: list[bytes]) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if frame.opcode is Opcode.PING and self._protocol.state is State.OPEN:
                self._send_pongs()
            return
        if self.dialect.is_binary and frame.opcode is Opcode.TEXT:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "the binary protocol has no text messages")
        elif frame.fin and not self._fragments:
            messages += self._frames_in(bytes(frame.data))
        else:
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                messages += self._frames_in(b"".join(self._fragments))
                self._fragments = []

    def _frames_in(self, data: bytes) -> list[bytes]:
        """The messages in a WebSocket message: one of JSON, or any number of binary ones with their lengths."""
        if not self.dialect.is_binary:
            return [data]
        decoder = StreamDecoder(self._daemon.config.message_bytes_max, self.framing)
        messages = decoder.feed(data)
        if decoder.pending_bytes or decoder.overlong is not None:
            self._protocol.fail(CloseCode.PROTOCOL_ERROR, "a frame does not end with its WebSocket message")
        return messages

    def _send_pongs(self) -> None:
        """Answer pings ahead of all messages: they ask whether the daemon lives, not what there is to read.

        The outbox writes whole frames only, so there is always room for one between two writes.
        """
        pongs = b"".join(self._protocol.data_to_send())
        if pongs:
            self.transport.write(pongs)

    def _send_protocol(self) -> None:
        """Send what the WebSocket library has to say: handshake, pongs, close frames."""
        closing = False
        for data in self._protocol.data_to_send():
            if data:
                self.outbox.put(data)
            else:
                closing = True
        sent = self._protocol.close_sent
        if closing and sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
            self._daemon.bus.limit_hits["message_bytes_max"] += 1
        if closing or self._protocol.close_expected():
            self.outbox.flush()
            self.transport.close()


BINARY_SUBPROTOCOL = "jet-binary"


def _select_subprotocol(_protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    known = [name for name in offered if name in ("jet", BINARY_SUBPROTOCOL)]
    return known[0] if known else None


def _address_text(peername: object) -> str:
    if isinstance(peername, tuple):
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "local"
