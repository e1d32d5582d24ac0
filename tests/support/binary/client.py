"""Connections to a daemon's binary side: TCP, abstract Unix socket and WebSocket, with plain sockets.

Nothing of jetbus is imported here. Everything that arrives is kept in order in `inbox`, so that a test can wait for one
message and still see what came before it; messages that tell several events are taken apart.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from support.binary.layout import (
    ABSENT,
    ADD_METHOD,
    ADD_STATE,
    CALL,
    FETCH,
    GET,
    NOTIFY,
    SERVICE,
    SET,
    UNFETCH,
    Arrived,
    FetchEvent,
    Info,
    Parts,
    Refusal,
    Response,
    RoutedRequest,
    SortedNotification,
    Value,
    arrived_in,
    event,
    failure,
    framed,
    js,
    key,
    matches_in,
    options,
    packed,
    refusal_in,
    request,
    success,
    u32,
)
from support.rawws import BINARY, CLOSE, PING, PONG, RawWebSocket, frame

if TYPE_CHECKING:
    from types import TracebackType

    from support.daemon import Daemon

DEADLINE_S = 10.0
TRANSPORTS = ["tcp", "unix", "ws"]
Kind = TypeVar("Kind", Response, RoutedRequest, FetchEvent, SortedNotification)


class Closed(Exception):
    """The daemon closed this connection; over WebSocket with this code and reason."""

    def __init__(self, code: int | None = None, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class RawStream:
    """A stream socket: bytes out, chunks in."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, data: bytes) -> None:
        self.sock.settimeout(DEADLINE_S)
        self.sock.sendall(data)

    def chunk(self, deadline: float) -> bytes:
        self.sock.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionError:
            raise Closed from None
        if not data:
            raise Closed
        return data

    def close(self) -> None:
        self.sock.close()


class WebSocketStream(RawStream):
    """A WebSocket: what is sent goes into one binary message, and each that arrives must hold whole frames."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.raw = RawWebSocket(address)
        head = self.raw.open(Sec_WebSocket_Protocol="jet-binary").lower()
        assert "sec-websocket-protocol: jet-binary" in head, head
        super().__init__(self.raw.sock)

    def send(self, data: bytes) -> None:
        self.sock.settimeout(DEADLINE_S)
        self.sock.sendall(frame(data, BINARY))

    def chunk(self, deadline: float) -> bytes:
        while True:
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            arrived = self.raw.read()
            if arrived is None:
                raise Closed
            if arrived.opcode == CLOSE:
                code = int.from_bytes(arrived.payload[:2], "big") if arrived.payload else None
                raise Closed(code, arrived.payload[2:].decode())
            if arrived.opcode == PING:
                self._pong(arrived.payload)
                continue
            assert arrived.opcode == BINARY, arrived
            _assert_whole_frames(arrived.payload)
            return arrived.payload

    def _pong(self, payload: bytes) -> None:
        with contextlib.suppress(OSError):  # this end may have said that nothing more will come
            self.sock.sendall(frame(payload, PONG))


class BinaryPeer:
    """One connection to the daemon; its info has been read."""

    def __init__(self, line: RawStream) -> None:
        self.line = line
        self.inbox: deque[Arrived] = deque()
        self._buffer = bytearray()
        self._ids = itertools.count(1)
        self.greeting = self.receive()
        assert arrived_in(self.greeting) == [Info(1, 0, 0)]

    # Bytes and messages.

    def send(self, *messages: bytes) -> None:
        """Send messages, each in its frame, all in one piece."""
        self.line.send(framed(*messages))

    def send_raw(self, data: bytes) -> None:
        self.line.send(data)

    def receive(self, within_s: float = DEADLINE_S) -> bytes:
        """The next message as it came, without its length."""
        deadline = time.monotonic() + within_s
        (length,) = struct.unpack("<I", self._exactly(4, deadline))
        return self._exactly(length, deadline)

    def await_closed(self, within_s: float = DEADLINE_S) -> tuple[list[Arrived], Closed]:
        """Read until the daemon closes: what came before that, and the close."""
        before = list(self.inbox)
        self.inbox.clear()
        deadline = time.monotonic() + within_s
        while True:
            try:
                before += arrived_in(self.receive(max(0.001, deadline - time.monotonic())))
            except Closed as closed:
                return before, closed

    def close(self) -> None:
        self.line.close()

    # Requests.

    def start(self, function: int, payload: bytes = b"") -> int:
        """Send a request without waiting; its id."""
        number = next(self._ids)
        self.send(request(number, function, payload))
        return number

    def response(self, number: int, within_s: float = DEADLINE_S) -> Response:
        return self._take(Response, lambda response: response.id == number, within_s)

    def ask(self, function: int, payload: bytes = b"") -> Response:
        return self.response(self.start(function, payload))

    def done(self, function: int, payload: bytes = b"") -> bytes:
        """The payload of a request that must succeed."""
        response = self.ask(function, payload)
        assert response.ok, refusal_in(response.payload)
        return response.payload

    def refused(self, function: int, payload: bytes = b"") -> Refusal:
        """The error of a request that must fail."""
        response = self.ask(function, payload)
        assert not response.ok, response
        return refusal_in(response.payload)

    def tell(self, function: int, payload: bytes = b"") -> None:
        """Send it as an event."""
        self.send(event(function, payload))

    def barrier(self) -> None:
        """Return when all that was sent here was handled and what the daemon said to it is in the inbox."""
        number = next(self._ids)
        self.send(request(number, SERVICE, key("echo") + packed(js([number]))))
        assert self.response(number) == Response(number, True, packed(js([number])))

    def everything(self) -> list[Arrived]:
        """All that the daemon sent until now, proved by a barrier."""
        self.barrier()
        arrived = list(self.inbox)
        self.inbox.clear()
        return arrived

    # Owning.

    def add_state(self, path: str, value: Value, **named: Any) -> None:
        assert self.done(ADD_STATE, key(path) + packed(value) + options(named)) == b""

    def add_method(self, path: str, **named: Any) -> None:
        assert self.done(ADD_METHOD, key(path) + options(named)) == b""

    def notify(self, path: str, value: Value) -> None:
        self.tell(NOTIFY, key(path) + packed(value))

    def asked(self, within_s: float = DEADLINE_S) -> RoutedRequest:
        """The next request that the daemon routes here."""
        return self._take(RoutedRequest, lambda _: True, within_s)

    def succeed(self, number: int | None, value: Value | None = None) -> None:
        assert number is not None
        self.send(success(number, b"" if value is None else packed(value)))

    def fail(self, number: int | None, code: int, message: str, data: Value = ABSENT) -> None:
        assert number is not None
        self.send(failure(number, code, message, data))

    # Asking.

    def start_set(self, path: str, value: Value, **named: Any) -> int:
        return self.start(SET, key(path) + packed(value) + options(named))

    def start_call(self, path: str, arguments: Value = ABSENT, **named: Any) -> int:
        return self.start(CALL, key(path) + packed(arguments) + options(named))

    def get(self, starts_with: str = "", **named: Any) -> list[FetchEvent]:
        return matches_in(self.done(GET, key(starts_with) + options(named)))

    # Fetching.

    def fetch(self, starts_with: str = "", **named: Any) -> int:
        payload = self.done(FETCH, key(starts_with) + options(named))
        (fetch_id,) = struct.unpack("<I", payload)
        return int(fetch_id)

    def unfetch(self, fetch_id: int) -> None:
        assert self.done(UNFETCH, u32(fetch_id)) == b""

    def received(self, fetch_id: int, count: int, within_s: float = DEADLINE_S) -> list[FetchEvent]:
        """The next events of this fetch; wait until there are so many."""
        deadline = time.monotonic() + within_s
        return [
            self._take(
                FetchEvent, lambda received: received.fetch_id == fetch_id, max(0.001, deadline - time.monotonic())
            )
            for _ in range(count)
        ]

    def window(self, fetch_id: int) -> dict[str, Any]:
        """Return the next notification of a sorted fetch."""
        return self._take(SortedNotification, lambda window: window.fetch_id == fetch_id, DEADLINE_S).json

    def _take(self, kind: type[Kind], wanted: Callable[[Kind], bool], within_s: float) -> Kind:
        """Wait for this; what comes before it stays in the inbox."""
        deadline = time.monotonic() + within_s
        at = 0
        while True:
            while at == len(self.inbox):
                self.inbox.extend(arrived_in(self.receive(max(0.001, deadline - time.monotonic()))))
            arrived = self.inbox[at]
            if isinstance(arrived, kind) and wanted(arrived):
                del self.inbox[at]
                return arrived
            at += 1

    def _exactly(self, count: int, deadline: float) -> bytes:
        while len(self._buffer) < count:
            self._buffer += self.line.chunk(deadline)
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(daemon: Daemon, transport: str = "tcp", *, receive_buffer_bytes: int | None = None) -> BinaryPeer:
    """Connect to the daemon's binary side."""
    return BinaryPeer(line_to(daemon, transport, receive_buffer_bytes))


def line_to(daemon: Daemon, transport: str = "tcp", receive_buffer_bytes: int | None = None) -> RawStream:
    if transport == "ws":
        return WebSocketStream(daemon.address("ws"))
    if transport == "unix":
        name = daemon.listens["binary_unix"]
        return RawStream(
            _connected(socket.AF_UNIX, "\0" + name[1:] if name.startswith("@") else name, receive_buffer_bytes)
        )
    return RawStream(_connected(socket.AF_INET, daemon.address("binary"), receive_buffer_bytes))


def _connected(
    family: socket.AddressFamily, address: tuple[str, int] | str, receive_buffer_bytes: int | None
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.settimeout(DEADLINE_S)
    sock.connect(address)
    if family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _assert_whole_frames(payload: bytes) -> None:
    parts = Parts(payload)
    while not parts.ended:
        parts.take(parts.number("I"))
