"""A small blocking client that shows every frame: plain sockets, no Jet knowledge beyond framing and `echo`.

`receive_text` gives the next frame exactly as it came; `receive` its JSON. `barrier` sends an `echo` and reads up to
its answer, keeping everything before it for later receives: after it, all that the daemon sent because of earlier
frames of this connection is here.
"""

from __future__ import annotations

import abc
import itertools
import json
import re
import socket
import struct
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from websockets.exceptions import ConnectionClosed, InvalidMessage
from websockets.sync.client import connect as ws_connect
from websockets.typing import Subprotocol

if TYPE_CHECKING:
    from types import TracebackType

DEADLINE_S = 10.0
LENGTH = struct.Struct(">I")

sys.set_int_max_str_digits(0)  # a peer may send integers of any length, so a client must read them


class Closed(Exception):
    """The daemon closed this connection."""


class Wire(abc.ABC):
    """One connection: frames out, frames in, in order."""

    def __init__(self) -> None:
        self.inbox: deque[str] = deque()
        self._ids = itertools.count(1)
        self._barriers = itertools.count(1)

    @abc.abstractmethod
    def send_text(self, text: str) -> None:
        """Send one frame with exactly this text."""

    @abc.abstractmethod
    def send_raw(self, data: bytes) -> None:
        """Send bytes past the framing."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close this end at once."""

    @abc.abstractmethod
    def _read(self, deadline: float) -> str:
        """Read one frame from the socket, or raise Closed or TimeoutError."""

    def spelt(self, text: str) -> str:
        """A message of a transcript as it is compared with what arrives."""
        return text

    def send(self, message: Any) -> None:
        self.send_text(json.dumps(message, separators=(",", ":"), ensure_ascii=False))

    def receive_text(self, within_s: float = DEADLINE_S) -> str:
        if self.inbox:
            return self.inbox.popleft()
        return self._read(time.monotonic() + within_s)

    def receive(self, within_s: float = DEADLINE_S) -> Any:
        return json.loads(self.receive_text(within_s))

    def receive_all(self) -> list[Any]:
        """Everything that the daemon sent until now, proved by a barrier."""
        self.barrier()
        received = [json.loads(text) for text in self.inbox]
        self.inbox.clear()
        return received

    def await_closed(self, within_s: float = DEADLINE_S) -> list[str]:
        """Read until the daemon closes; the frames before that."""
        frames = list(self.inbox)
        self.inbox.clear()
        deadline = time.monotonic() + within_s
        try:
            while True:
                frames.append(self._read(deadline))
        except Closed:
            return frames

    def notify(self, method: Any, params: Any) -> None:
        self.send({"method": method, "params": params})

    def request(self, method: str, params: Any, **extra: Any) -> Any:
        """Send a request and return its whole response; what comes before it stays in the inbox."""
        # Digits as text, as node-jet 3 counts: a wire that begins with info is one of its peers.
        request_id = str(next(self._ids))
        self.send({"id": request_id, **extra, "method": method, "params": params})
        return self.response(request_id)

    def response(self, request_id: Any, within_s: float = DEADLINE_S) -> Any:
        """Wait for the response with this id; what comes before it stays in the inbox."""
        for position, text in enumerate(self.inbox):
            if _is_response(text, request_id):
                del self.inbox[position]
                return json.loads(text)
        deadline = time.monotonic() + within_s
        while True:
            text = self._read(deadline)
            if _is_response(text, request_id):
                return json.loads(text)
            self.inbox.append(text)

    def result(self, method: str, params: Any) -> Any:
        """The result of a request that must succeed."""
        response = self.request(method, params)
        assert "result" in response, response
        return response["result"]

    def error(self, method: str, params: Any) -> Any:
        """The error of a request that must fail."""
        response = self.request(method, params)
        assert "error" in response, response
        return response["error"]

    def barrier(self) -> None:
        """Return when all that was sent on this connection was handled and its answers are in the inbox."""
        barrier_id = f"barrier-{next(self._barriers)}"
        self.send({"id": barrier_id, "method": "echo", "params": {}})
        assert self.response(barrier_id) == {"id": barrier_id, "result": {}}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _SocketWire(Wire):
    """The trivial framing: a 32-bit big-endian length before each frame."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock
        self._buffer = bytearray()

    def send_text(self, text: str) -> None:
        data = text.encode()
        self.send_raw(LENGTH.pack(len(data)) + data)

    def send_raw(self, data: bytes) -> None:
        self.sock.settimeout(DEADLINE_S)
        self.sock.sendall(data)

    def shutdown_write(self) -> None:
        """Tell the daemon that nothing more will come."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()

    def _read(self, deadline: float) -> str:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size, deadline))
        return self._exactly(length, deadline).decode()

    def _exactly(self, count: int, deadline: float) -> bytes:
        while len(self._buffer) < count:
            self.sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self.sock.recv(1 << 16)
            except ConnectionError:
                raise Closed from None
            if not chunk:
                raise Closed
            self._buffer += chunk
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data


class TcpWire(_SocketWire):
    def __init__(
        self, address: tuple[str, int], receive_buffer_bytes: int | None = None, *, source: str | None = None
    ) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(_connected(family, address, receive_buffer_bytes, source))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class UnixWire(_SocketWire):
    def __init__(self, name: str, receive_buffer_bytes: int | None = None) -> None:
        address = "\0" + name[1:] if name.startswith("@") else name
        super().__init__(_connected(socket.AF_UNIX, address, receive_buffer_bytes))


class BinaryWire(_SocketWire):
    """The binary protocol: little-endian lengths, and messages as text: bytes in hexadecimal and in single quotes."""

    BARRIER = "02 feffffff 0d 0400 'echo' 01 02000000 '{}'"
    ANSWER = "03 feffffff 00 01 02000000 '{}'"

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(_connected(socket.AF_INET, address, None))
        assert self.receive_text() == self.spelt("01 01000000 00000000 00000000")

    def spelt(self, text: str) -> str:
        """A message as it is compared: all in hexadecimal."""
        words = re.findall(r"'[^']*'|\S+", text)
        return "".join(word[1:-1].encode().hex() if word[0] == "'" else word for word in words)

    def send_text(self, text: str) -> None:
        data = bytes.fromhex(self.spelt(text))
        self.send_raw(struct.pack("<I", len(data)) + data)

    def barrier(self) -> None:
        self.send_text(self.BARRIER)
        deadline = time.monotonic() + DEADLINE_S
        while (text := self._read(deadline)) != self.spelt(self.ANSWER):
            self.inbox.append(text)

    def _read(self, deadline: float) -> str:
        (length,) = struct.unpack("<I", self._exactly(4, deadline))
        return self._exactly(length, deadline).hex()


class WebSocketWire(Wire):
    """One JSON text a message, subprotocol `jet`.

    Messages are read as they come, so that pings are answered however long a test takes; a small receive buffer makes
    a slow reader, which stops after a few messages.
    """

    def __init__(self, address: tuple[str, int], receive_buffer_bytes: int | None = None) -> None:
        super().__init__()
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._context = ws_connect(
            "ws://localhost/",
            sock=_connected(family, address, receive_buffer_bytes),
            subprotocols=[Subprotocol("jet")],
            open_timeout=DEADLINE_S,
            close_timeout=1,
            max_size=None,
            max_queue=None if receive_buffer_bytes is None else 16,
            proxy=None,
        )
        self.connection = self._context.__enter__()

    def send_text(self, text: str) -> None:
        self.connection.send(text)

    def send_raw(self, data: bytes) -> None:
        self.connection.socket.sendall(data)

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def _read(self, deadline: float) -> str:
        try:
            message = self.connection.recv(timeout=max(0.001, deadline - time.monotonic()))
        except (ConnectionClosed, InvalidMessage):
            raise Closed from None
        assert isinstance(message, str), "Jet over WebSocket is text"
        return message


def _connected(
    family: socket.AddressFamily,
    address: tuple[str, int] | str,
    receive_buffer_bytes: int | None,
    source: str | None = None,
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    if source is not None:
        sock.bind((source, 0))
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.settimeout(DEADLINE_S)
    sock.connect(address)
    return sock


def _is_response(text: str, request_id: Any) -> bool:
    message = json.loads(text)
    return (
        isinstance(message, dict)
        and "method" not in message
        and "id" in message
        and type(message["id"]) is type(request_id)
        and message["id"] == request_id
    )
