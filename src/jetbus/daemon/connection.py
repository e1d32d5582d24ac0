"""Connections: bytes from a socket to the bus, for the length-prefixed streams and for WebSocket.

All faces are thin: framing is in ``wire.framing`` and in the WebSocket library, meaning is in the bus. A connection
that breaks the framing gets the reason and is closed; one that sends nonsense inside its frames is answered and stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import select
import socket
from collections.abc import Sequence
from time import monotonic as clock
from time import thread_time as processor_time
from time import time
from typing import TYPE_CHECKING, cast

from websockets.exceptions import InvalidMessage, ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from jetbus.bus.conditions import DUE, PUT_OFF, READY, REFUSED
from jetbus.daemon.credentials import certificate_names, peer_credentials
from jetbus.daemon.deflate import INFLATING_SLICE_BYTES, DeflatingTransport, find_deflate
from jetbus.daemon.logins import login_address
from jetbus.daemon.origins import is_allowed
from jetbus.daemon.outbox import SocketOutbox
from jetbus.daemon.upgrade_logins import find_user
from jetbus.errors import InvalidRequest
from jetbus.wire.binary import (
    ADD_METHOD,
    ADD_STATE,
    EVENT,
    FETCH_STATES,
    INFO_MESSAGE,
    NOTIFY_STATE,
    REMOVE_METHOD,
    REMOVE_STATE,
    REQUEST,
)
from jetbus.wire.dialects import BINARY, CLASSIC
from jetbus.wire.framing import BINARY_STREAM, BINARY_WEBSOCKET, STREAM, WEBSOCKET, Framing, StreamDecoder

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.session import Session
    from jetbus.daemon.daemon import Daemon

log = logging.getLogger("jetbus.connection")
_ws_log = logging.getLogger("jetbus.websocket")

REASON_CHARS = 100
"""A close frame has no room for more of a reason."""
WS_SLICE_BYTES = 4 * 1024
"""Bytes between two looks at the clock for WebSocket, whose frames take longer to decode and may have six bytes."""
FRAGMENT_BYTES = 64
"""Memory that a fragment of a WebSocket message takes beside its bytes."""
SLICE_BYTES = 64 * 1024
"""Bytes that are decoded and handled between two looks at the clock, and that are read while messages wait."""
ORIGIN_CHARS_SHOWN = 200
_FUNCTION_AT = {bytes([EVENT]): 1, bytes([REQUEST]): 5}
_ADDS = (ADD_STATE, REMOVE_STATE, ADD_METHOD, REMOVE_METHOD)
_HEAD_END = b"\r\n\r\n"
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 27\r\n\r\nthis is no HTTP/1.1 request"


class Connection(asyncio.Protocol):
    """Connection of any kind: a transport, an outbox and, once the peer may speak, a session."""

    framing: Framing
    slice_bytes = SLICE_BYTES
    dialect = CLASSIC
    """Dialect of a peer that has not shown another one yet."""

    def __init__(self, daemon: Daemon, kind: str) -> None:
        self._daemon = daemon
        self._bus = daemon.bus
        self._serving = daemon.bus.serving
        self._bus_receive = daemon.bus.receive
        self._turns = daemon.turns
        self._flow = daemon.flow
        self.kind = kind
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.outbox: SocketOutbox = cast(SocketOutbox, None)
        self.session: Session | None = None
        self.address = ""
        self.host = ""
        """The address without the port; peers on Unix sockets have none."""
        self._unread = b""
        """Bytes from the socket that wait for the next turn."""
        self.is_heavy = False
        """Its address has used more than its share: it is served in the order of the heavy connections only."""
        self._used_s = 0.0
        """Processor time used in turns among the heavy connections since all that was read was handled."""
        self._linger_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.address, self.host = _address_text(name), name[0] if isinstance(name, tuple) else ""
        self.outbox = SocketOutbox(self.transport, self._flow)
        self.outbox.on_abort = self._on_abort
        # Also for one that is refused below: accepting it has taken the loop's time all the same.
        self._turns.welcome()
        if not self._daemon.admit(self):
            self._refuse_connection()

    def _refuse_connection(self) -> None:
        """Close a connection that is one too many."""
        self.transport.abort()

    def _open_session(self) -> Session:
        session = self._bus.connect(self.outbox, self.framing, self.dialect, self._login_address())
        if self.dialect.is_binary:
            self._bus_receive = self._bus.receive_binary
            session.send(INFO_MESSAGE)
        session.released = self._on_released
        session.awaits_order = self._awaits_order
        # A process or certificate may be a user's already; ``authenticate`` can still replace that.
        session.auth = self._auth_without_password()
        self.outbox.audiences = session.fetches.values()
        self.outbox.has_session = True
        self.outbox.account = session.account
        self.outbox.label = f"peer #{session.number} ({self.kind} {self.address})"
        self.session = session
        self._daemon.opened(self)
        return session

    @property
    def shares_turns_with(self) -> str:
        """The address whose heavy connections share their turns."""
        return self.session.address if self.session is not None else self.host

    def _login_address(self) -> str:
        """Return what logins of this peer are counted by: its host or, on a Unix socket, the user of its process."""
        peer = self.transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            return login_address(peer[0])
        credentials = peer_credentials(self.transport.get_extra_info("socket"))
        return f"uid {credentials.uid}" if credentials is not None else self.kind

    def _auth_without_password(self) -> Auth | None:
        """Return the rights of the user that the process or certificate of the peer belongs to, if there is one."""
        users = self._daemon.bus.permissions.users
        if users is None:
            return None
        names = certificate_names(self.transport.get_extra_info("peercert"))
        if names:
            return users.auth_of_certificate(names)
        credentials = peer_credentials(self.transport.get_extra_info("socket"))
        radar = self._daemon.radar
        # Radar passes on the requests of visitors, who have the rights they log in with, not those of its process.
        if credentials is None or (radar is not None and credentials.pid == radar.pid):
            return None
        return users.auth_of_process(credentials)

    def connection_lost(self, exc: Exception | None) -> None:
        self.outbox.close()
        self._daemon.lost(self)
        self._report_read()  # it will never read what it was sent
        self._turns.catch_up(self)
        # A peer that has closed in order after its last message: what it sent still counts, also if it does not take
        # the answers any more, which resets the connection. A reset without that drops what waits.
        session = self.session
        if session is not None and (exc is None or session.ended) and self.has_rest:
            self._linger(session)
            return
        self._leave()
        self._forget()

    def _forget(self) -> None:
        """Free what has arrived and not been handled.

        Transports and timers may refer to a connection for a while after it is lost, and cycles are collected late.
        """
        self._unread = b""
        self._daemon.inbound.forget(self)

    def _on_abort(self) -> None:
        """Handle nothing more of a peer that the daemon closes."""
        self._unread = b""
        if self.session is not None:
            self._serving.close(self.session)

    def close_for(self, reason: str) -> None:
        """Close the connection because a limit is reached; the reason is sent to the peer and logged."""
        log.warning("%s is closed: %s", self.outbox.label or f"connection from {self.address}", reason)
        if self.session is not None:
            self._refuse(self.session, reason)
        self._hang_up(reason)
        self._forget()

    def _held_bytes(self) -> int:
        """Bytes that were read and are not handled yet."""
        waiting = self.session.waiting if self.session is not None else ()
        return len(self._unread) + sum(map(len, waiting))

    def eof_received(self) -> bool:
        """Leave, or stay half open until the next turns have handled all that was sent."""
        self._turns.catch_up(self)
        session = self.session
        if session is None or not self.has_rest:
            self._leave()
            return False
        self._linger(session)
        return True

    def _linger(self, session: Session) -> None:
        """Handle what the peer has sent before it closed for ``linger_ms_max`` at the most."""
        self._serving.end(session)
        self._limit_lingering()

    def _limit_lingering(self) -> None:
        if self._linger_timer is None:
            seconds = self._daemon.config.linger_ms_max / 1e3
            self._linger_timer = self._daemon.loop.call_later(seconds, self._drop_rest)

    @property
    def has_rest(self) -> bool:
        """True if something that the peer has sent is not handled yet."""
        session = self.session
        return session is not None and not session.condition.is_over and (bool(self._unread) or session.has_rest)

    def _leave(self) -> None:
        """Remove the peer from the bus as soon as it is known to be gone: closing may wait for what is yet to write."""
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        session = self.session
        if session is not None and not session.gone:
            self._daemon.losing(self)
            self._turns.serve()
            self._bus.disconnect(session)

    def pause_writing(self) -> None:
        self.outbox.pause()

    def resume_writing(self) -> None:
        self.outbox.resume()
        if not self.outbox.slow:
            self._report_read()

    def _report_read(self) -> None:
        """Go on in the next turn with a peer that has waited because it left too much unread."""
        if self.session is not None and self._serving.has_read(self.session):
            self._turns.defer(self)

    # -- what arrives

    def data_received(self, data: bytes) -> None:
        session = self.session
        if session is None or session.condition.is_over:
            return
        # Older bytes wait already, or it is served in its turn only: these have to wait behind them.
        if self.is_heavy or self._unread:
            self._unread += data
            self._wait_for_turn(session)
            return
        turns, flow = self._turns, self._flow
        turns.serve()
        flow.gather()
        self._read(session, data)
        flow.gathered()

    def _decode(self, data: bytes) -> list[bytes]:
        """Return the messages that ``data`` completes."""
        raise NotImplementedError

    @property
    def _breaks_off(self) -> bool:
        """True if nothing more can be decoded, so that the connection is closed when all messages are handled."""
        return False

    def _after(self, session: Session) -> None:
        """Do what is to be done once all messages of ``_decode`` are handled or wait."""

    def _read(self, session: Session, data: bytes) -> None:
        """Handle what was read, slice by slice, until the turn is over."""
        serving, turns, size = self._serving, self._turns, self.slice_bytes
        for at in range(0, len(data), size):
            if session.condition.is_over:
                return
            # Not before the first slice: every turn must get at least something done.
            if at and (session.condition is not READY or clock() > serving.turn_ends):
                self._unread = data[at:]
                self._wait_for_turn(session)
                return
            messages = self._decode(data[at : at + size])
            if turns.collecting:
                turns.collect(self, messages)
            elif messages and len(messages[0]) > SLICE_BYTES and not self.is_heavy:
                self._unread = data[at + size :]
                self._postpone(session, messages)
                return
            else:
                self._pass_on(session, messages)
            self._after(session)

    def _postpone(self, session: Session, messages: list[bytes]) -> None:
        """Handle messages, the first of which is long, when it is their turn among the heavy connections.

        To check and decode a long message cannot be cut. Many connections that complete one each between two looks at
        the sockets would keep all others waiting for their sum.
        """
        self._serving.postpone(session, messages)
        self._wait_for_turn(session)

    def _wait_for_turn(self, session: Session) -> None:
        """Handle no more now; read no more until what has been read is handled."""
        if session.condition.is_over:
            self._unread = b""
            return
        self.is_heavy = True
        # A session that waits for something else is continued by ``_on_released``.
        if session.condition is DUE or session.condition is READY:
            self._turns.defer(self)
        self._pause_reading(session)
        # The rest stays in the buffers of the kernel, where it costs the daemon nothing and slows down its sender.
        self._daemon.inbound.note(self, self._held_bytes())

    def take_turn(self, ends: float) -> None:
        """Go on with what has waited, until it is handled or the turn is over, at the instant ``ends``."""
        session, turns = self.session, self._turns
        if session is None or (session.condition is not DUE and session.condition is not READY):
            return
        # Nothing is read from it now, so that the end of what it sends is not seen otherwise.
        if self._linger_timer is None and _has_closed(self.transport.get_extra_info("socket")):
            self._limit_lingering()
        used_s = processor_time()
        turns.serve_until(ends)
        self._pass_on(session, self._serving.next_turn(session))
        if self._unread and session.condition is READY:
            data, self._unread = self._unread, b""
            self._read(session, data)
        if session.ended:
            turns.catch_up(self)
        self._used_s += processor_time() - used_s
        if self._unread or session.condition is not READY:
            return
        self.is_heavy = turns.count_use(self.shares_turns_with, self._used_s)
        self._used_s = 0.0
        self._after(session)
        self._daemon.inbound.note(self, self._held_bytes())
        if session.ended:
            self._finish()
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _drop_rest(self) -> None:
        """Leave, although not all that the peer has sent is handled."""
        allowed = self._daemon.config.linger_ms_max
        log.warning("%s has closed, and its requests take longer than linger_ms_max = %d", self.outbox.label, allowed)
        self._bus.limit_hits["linger_ms_max"] += 1
        self._on_abort()
        self._finish()

    def _finish(self) -> None:
        """Leave, now that all that the peer has sent is handled."""
        self._leave()
        self._forget()
        self._flow.flush()
        self.transport.close()

    def _receive(self, session: Session, messages: list[bytes]) -> None:
        """Handle messages at once, or when it is their turn."""
        turns, flow = self._turns, self._flow
        if turns.collecting:
            turns.collect(self, messages)
        elif turns.answering:
            self._pass_on(session, messages)  # within its turn
        else:
            turns.serve()
            flow.gather()
            self._pass_on(session, messages)
            flow.gathered()

    def handle(self, messages: list[bytes], ends: float = math.inf) -> None:
        """Handle messages that were collected, in a turn that is over at the instant ``ends`` at the latest."""
        session = self.session
        if session is not None and messages and not session.condition.is_over:
            self._turns.serve(ends)
            self._pass_on(session, messages)

    def begin_fetch(self, ends: float = math.inf) -> None:
        """Begin the fetch that was put off, if there is one, in a turn that is over at the instant ``ends``."""
        session = self.session
        if session is not None and session.condition is PUT_OFF:
            self._turns.serve(ends)
            self._serving.begin_fetch(session)
            self._on_released()

    def _awaits_order(self) -> bool:
        """Return True if a fetch has to wait until all that was sent before it has been read, on every connection."""
        if self._turns.answering:
            return False
        self._turns.put_off(self)
        return True

    def is_fetch(self, message: bytes) -> bool:
        """Return True if a message begins a fetch."""
        return (_function(message) == FETCH_STATES) if self.dialect.is_binary else b'"fetch"' in message

    def _is_add(self, message: bytes) -> bool:
        """Return True if a message adds or removes an element."""
        if self.dialect.is_binary:
            return _function(message) in _ADDS
        return b'"add"' in message or b'"remove"' in message

    def _is_change(self, message: bytes) -> bool:
        return (_function(message) == NOTIFY_STATE) if self.dialect.is_binary else b'"change"' in message

    def find_last_changes(self, messages: list[bytes]) -> int:
        """Return the index of the first change behind all messages that add or remove."""
        changes_at = len(messages)
        for at in range(len(messages) - 1, -1, -1):
            if self._is_add(messages[at]):
                break
            if self._is_change(messages[at]):
                changes_at = at
        return changes_at

    def _pass_on(self, session: Session, messages: list[bytes]) -> None:
        journaling, now = self._daemon.journaling, self._bus.now
        if journaling is not None:
            journaling.tick()
        try:
            if session.fresh:
                messages = self._bus.receive_first(session, messages, now)
            self._bus_receive(session, messages, now)
        except Exception:
            self._fail()
        if session.condition is not READY:
            self._settle(session)

    def _fail(self) -> None:
        """Close a connection for a defect of the daemon: one peer is lost for it, and not the whole bus."""
        log.exception("%s is closed: the daemon failed to handle a message", self.outbox.label)
        self.outbox.abort()

    def _settle(self, session: Session) -> None:
        """Do what the condition of a session asks for that handles no more messages now."""
        condition = self._serving.settle(session, bool(self._unread))
        if condition is DUE:
            self._wait_for_turn(session)
        elif condition is REFUSED:
            # After the messages before it have been answered.
            self._refuse(session, session.refusal)
            self._hang_up(session.refusal)
        elif sum(map(len, session.waiting)) > SLICE_BYTES:
            self._pause_reading(session)

    def _pause_reading(self, session: Session) -> None:
        """Read no more, if there is still something to be read from: a lost transport need not say that it closes."""
        if not session.ended and not self.transport.is_closing():
            self.transport.pause_reading()

    def _on_released(self) -> None:
        """Handle what has arrived while its messages waited, then read on."""
        session = self.session
        if session is None:
            return
        messages = self._serving.take_waiting(session)
        if messages:
            self._receive(session, messages)
        if session.condition is not READY:
            self._settle(session)
        elif self._unread or session.ended or self._breaks_off:
            self._wait_for_turn(session)  # a peer that has closed leaves in its next turn
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _refuse(self, session: Session, problem: str) -> None:
        """Send the reason for which the connection will be closed."""
        self._bus.answer_error(session, b"", InvalidRequest({"reason": problem}))
        self.outbox.flush()

    def _hang_up(self, _reason: str) -> None:
        """Close the connection; the reason has been sent."""
        self._on_abort()
        self.transport.close()


class StreamConnection(Connection):
    """TCP and Unix sockets."""

    framing = STREAM

    def __init__(self, daemon: Daemon, kind: str) -> None:
        super().__init__(daemon, kind)
        self._decoder = StreamDecoder(daemon.config.message_bytes_max, self.framing)
        self._holds = 0
        """Bytes of an unfinished message that have been counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.transport.is_closing():
            self._open_session()

    def _decode(self, data: bytes) -> list[bytes]:
        messages = self._decoder.feed(data)
        if not messages or self._holds:
            self._count_unfinished()
        return messages

    def _read(self, session: Session, data: bytes) -> None:
        if self._turns.collecting:
            super()._read(session, data)
            return
        decoder = self._decoder
        data = decoder.join(data)
        at = self._pass_on_stream(session, data)
        if session.condition is READY:
            decoder.keep(data, at)
            if not at or self._holds:
                self._count_unfinished()
        elif session.condition is DUE:
            self._unread = data[at:]
        else:
            self._serving.hold_back(session, self._decode(data[at:]))
        if session.condition is not READY:
            self._settle(session)
        if decoder.overlong is not None:
            self._after(session)

    def _pass_on_stream(self, session: Session, data: bytes) -> int:
        """Let the bus handle the frames of a buffer; return where the first one is that is not handled."""
        bus, journaling, allowed = self._bus, self._daemon.journaling, self._daemon.config.message_bytes_max
        if journaling is not None:
            journaling.tick()
        # A long message waits among the heavy connections, see ``turns``.
        long_bytes = allowed if self.is_heavy else SLICE_BYTES
        try:
            return bus.receive_stream(session, data, bus.now, bytes_max=allowed, long_bytes=long_bytes)
        except Exception:
            self._fail()
            return len(data)

    def _count_unfinished(self) -> None:
        """Count the bytes of an unfinished message.

        Most reads complete a message; only what is longer than a read is worth counting.
        """
        self._holds = self._decoder.pending_bytes
        self._daemon.inbound.note(self, self._held_bytes())

    def _held_bytes(self) -> int:
        return super()._held_bytes() + self._decoder.pending_bytes

    @property
    def _breaks_off(self) -> bool:
        return self._decoder.overlong is not None

    def _after(self, session: Session) -> None:
        if not self._breaks_off or self.has_rest:
            return
        self._turns.catch_up(self)
        if self.has_rest or session.condition.is_over:
            return  # the reason is sent behind the answers to what came before it
        self._daemon.bus.limit_hits["message_bytes_max"] += 1
        allowed = self._daemon.config.message_bytes_max
        reason = f"a message of {self._decoder.overlong} bytes; message_bytes_max = {allowed} are allowed"
        self._refuse(session, reason)
        self._hang_up(reason)

    def _forget(self) -> None:
        super()._forget()
        self._decoder.clear()


class BinaryConnection(StreamConnection):
    """TCP and Unix sockets of peers that speak binary."""

    framing = BINARY_STREAM
    dialect = BINARY

    def _read(self, session: Session, data: bytes) -> None:
        Connection._read(self, session, data)


class WebSocketConnection(Connection):
    """WebSocket, and the plain HTTP pages /health and /metrics on the same port."""

    framing = WEBSOCKET
    slice_bytes = WS_SLICE_BYTES

    def __init__(self, daemon: Daemon, kind: str) -> None:
        super().__init__(daemon, kind)
        config = daemon.config
        self._protocol = ServerProtocol(
            select_subprotocol=_select_subprotocol,
            extensions=[daemon.deflate],
            max_size=config.message_bytes_max,
            logger=_ws_log,
        )
        self._fragments: list[bytes] = []
        self._fragment_bytes = 0
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._heard = True
        self._holds = 0
        """Bytes of an unfinished message that have been counted."""
        self._pages_only = False
        """One connection too many: it may ask for /health and /metrics, which must answer especially then."""
        self._deflates = False
        """Its messages are compressed."""
        self._user: str | None = None
        """User whom the request that opened the WebSocket has proved."""
        self._head_end = b""
        """The last bytes of the handshake that have arrived."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handshake_timer = self._daemon.loop.call_later(self._daemon.config.handshake_s, self._check_handshake)

    def _refuse_connection(self) -> None:
        self._pages_only = self._daemon.admit_for_page(self)
        if not self._pages_only:
            self.transport.abort()

    def _check_handshake(self) -> None:
        if self._protocol.state is State.CONNECTING:
            self.outbox.abort()

    def _forget(self) -> None:
        super()._forget()
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._fragments = []
        self._daemon.deflate.peers -= self._deflates
        self._deflates = False
        # The parser is a generator that refers to its protocol: the two would keep each other, and what was read.
        self._protocol.reader.buffer.clear()
        self._protocol.parser.close()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._protocol.state is State.CONNECTING:
            following = self._shake_hands(data)
            if following is None:
                self._send_protocol()
                return
            data = following
        if self.session is None:
            self._protocol.receive_data(data)  # what follows a page is discarded
            return
        if self.session.fresh and len(data) > self.slice_bytes:
            self._unread += data  # no turn at once for one of many new connections
            self._wait_for_turn(self.session)
            return
        super().data_received(data)

    def _decode(self, data: bytes) -> list[bytes]:
        messages: list[bytes] = []
        protocol = self._protocol
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Frame):
                self._on_frame(event, messages)
        if protocol.writes and protocol.state is State.OPEN:
            self._send_pongs()
        if not messages or self._holds:
            self._holds = self._unfinished_bytes()
            self._daemon.inbound.note(self, self._held_bytes())
        return messages

    def _held_bytes(self) -> int:
        return super()._held_bytes() + self._unfinished_bytes()

    def _unfinished_bytes(self) -> int:
        return len(self._protocol.reader.buffer) + self._fragment_bytes

    @property
    def _breaks_off(self) -> bool:
        return self._protocol.state is not State.OPEN

    def _after(self, _session: Session) -> None:
        if self._breaks_off:
            if self.has_rest:
                return  # the answer to a close frame waits for the answers to what came before it
            self._turns.catch_up(self)
        self._send_protocol()

    def _shake_hands(self, data: bytes) -> bytes | None:
        """Read the handshake, however it is cut; return what follows it, None if there is no WebSocket (yet).

        What follows is kept from the WebSocket library until the handshake is answered: it would answer a ping first.
        """
        protocol, seen = self._protocol, self._head_end
        found = (seen + data).find(_HEAD_END)
        end = len(data) if found < 0 else found + len(_HEAD_END) - len(seen)
        self._head_end = (seen + data)[1 - len(_HEAD_END) :]
        # The library would wait for a line end, perhaps for ever; bytes of another protocol have none.
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

    def eof_received(self) -> bool:
        if super().eof_received():
            return True
        self._protocol.receive_eof()
        self._send_protocol()
        return False

    def ping(self) -> None:
        """Send a ping; close the connection if nothing has arrived since the last one."""
        if self._protocol.state is not State.OPEN:
            return
        # While its messages wait, it may be that nothing is read from it, no pong either.
        waits = self.session is not None and self.session.condition is not READY
        if self._heard or waits:
            self._protocol.send_ping(b"")
            self._send_protocol()
        else:
            log.info("peer at %s does not answer pings; closed", self.address)
            self.outbox.abort()
        self._heard = False

    def _hang_up(self, reason: str) -> None:
        self._on_abort()
        self._protocol.fail(CloseCode.PROTOCOL_ERROR, reason[:REASON_CHARS])
        self._send_protocol()

    def goodbye(self) -> None:
        """Start the closing handshake of WebSocket."""
        if self._protocol.state is State.OPEN:
            with contextlib.suppress(ProtocolError):
                self._protocol.send_close(CloseCode.GOING_AWAY, "the daemon stops")
            self._send_protocol()

    def _on_request(self, request: Request) -> None:
        # Health pages are served beyond the limit, peers are not.
        if self._pages_only and "Upgrade" in request.headers:
            response = self._protocol.reject(503, "there are too many connections (connections_max); try again later\n")
        elif "Upgrade" in request.headers:
            response = self._accept(request)
        else:
            response = self._page(request.path.partition("?")[0])
        self._protocol.send_response(response)
        self._send_protocol()
        self.outbox.flush()  # before a pong, which does not wait for the outbox
        if self._protocol.state is State.OPEN:
            if self._protocol.subprotocol == BINARY_SUBPROTOCOL:
                self.framing, self.dialect = BINARY_WEBSOCKET, BINARY
                # A binary message has its length inside the WebSocket frame, too.
                self._protocol.max_message_size = self._daemon.config.message_bytes_max + BINARY_STREAM.length.size
            deflate = find_deflate(self._protocol.extensions)
            if deflate is not None:
                self._deflates, self.slice_bytes = True, INFLATING_SLICE_BYTES
                self._daemon.deflate.peers += 1
                self.outbox.write_to(DeflatingTransport(self.transport, deflate))
            self._open_session()

    def _accept(self, request: Request) -> Response:
        """Accept a WebSocket, unless it is opened by a web page of a foreign origin."""
        origins = request.headers.get_all("Origin")
        host = request.headers.get_all("Host")
        allowed = self._daemon.config.ws_origins
        if len(origins) > 1 or not is_allowed(origins[0] if origins else None, host[0] if host else "", allowed):
            origin = ", ".join(origins)[:ORIGIN_CHARS_SHOWN]
            log.debug("WebSocket from %s refused: its page is of the origin %r, see ws_origins", self.address, origin)
            return self._protocol.reject(
                403, "pages of this origin may not connect; ws_origins of the daemon lists those that may\n"
            )
        response = self._protocol.accept(request)
        daemon = self._daemon
        self._user = find_user(request.headers, self.host, daemon.config, daemon.login_key, time())
        return response

    def _auth_without_password(self) -> Auth | None:
        users = self._daemon.bus.permissions.users
        if self._user is None or users is None:
            return super()._auth_without_password()
        auth = users.auth_of(self._user)
        if auth is None:
            log.info("%s is logged in as %r by its request, but there is no such user", self.address, self._user)
        return auth

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
            return
        if self.dialect.is_binary and frame.opcode is Opcode.TEXT:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "the binary protocol has no text messages")
        elif frame.fin and not self._fragments:
            messages += self._frames_in(bytes(frame.data))
        else:
            self._fragments.append(bytes(frame.data))
            self._fragment_bytes += len(frame.data) + FRAGMENT_BYTES
            if frame.fin:
                messages += self._frames_in(b"".join(self._fragments))
                self._fragments, self._fragment_bytes = [], 0

    def _frames_in(self, data: bytes) -> list[bytes]:
        """Return the messages in a WebSocket message: one of JSON, or any number of binary ones with their lengths."""
        if not self.dialect.is_binary:
            return [data]
        decoder = StreamDecoder(self._daemon.config.message_bytes_max, self.framing)
        # A new decoder each time: messages do not continue in the next WebSocket message.
        messages = decoder.feed(data)
        if decoder.pending_bytes or decoder.overlong is not None:
            self._protocol.fail(CloseCode.PROTOCOL_ERROR, "a frame does not end with its WebSocket message")
        return messages

    def _send_pongs(self) -> None:
        """Answer pings ahead of all messages: they ask whether the daemon lives, not what there is to read.

        The outbox writes whole frames only, so there is always room for one between two writes.
        """
        pongs = b"".join(self._protocol.data_to_send())
        if pongs and not self.outbox.closed:
            self.transport.write(pongs)

    def _send_protocol(self) -> None:
        """Send the output of the WebSocket library: handshake, pongs, close frames."""
        closing = False
        for data in self._protocol.data_to_send():
            if data:
                self.outbox.put(data)
            else:
                closing = True
        sent = self._protocol.close_sent
        if closing and sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
            self._daemon.bus.limit_hits["message_bytes_max"] += 1
        # The close frame stands behind all that was put into the outbox before; both are written first.
        if closing or self._protocol.close_expected():
            self.outbox.flush()
            self.transport.close()


BINARY_SUBPROTOCOL = "jet-binary"


def _select_subprotocol(_protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    known = [name for name in offered if name in ("jet", BINARY_SUBPROTOCOL)]
    return known[0] if known else None


def _has_closed(sock: socket.socket | None) -> bool:
    """Return True if the other end has closed the connection, or its half, whatever is still to be read."""
    if sock is None or sock.fileno() < 0 or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _function(message: bytes) -> int:
    """Return the function of a binary event or request; 0 for other messages."""
    at = _FUNCTION_AT.get(message[:1])
    return message[at] if at is not None and len(message) > at else 0


def _address_text(peername: object) -> str:
    if isinstance(peername, tuple):
        host, port = peername[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "local"
