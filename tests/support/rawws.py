"""WebSocket by hand, for handshakes and frames that no decent client would send."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import struct
from dataclasses import dataclass

TEXT, BINARY, CLOSE, PING, PONG, CONTINUATION = 0x1, 0x2, 0x8, 0x9, 0xA, 0x0
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
DEADLINE_S = 10.0


def upgrade(**changes: str | None) -> bytes:
    """A correct upgrade request, with headers changed (underscores for dashes) or, if None, left out."""
    headers: dict[str, str | None] = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "jet",
    }
    line = changes.pop("line", "GET / HTTP/1.1")
    headers.update({name.replace("_", "-"): value for name, value in changes.items()})
    lines = [line, *(f"{name}: {value}" for name, value in headers.items() if value is not None), "", ""]
    return "\r\n".join(str(text) for text in lines).encode("latin-1")


def frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True, masked: bool = True, rsv: int = 0) -> bytes:
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    mask_bit = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([mask_bit | len(payload)])
    elif len(payload) < 65536:
        head += bytes([mask_bit | 126]) + struct.pack(">H", len(payload))
    else:
        head += bytes([mask_bit | 127]) + struct.pack(">Q", len(payload))
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


@dataclass(frozen=True)
class Frame:
    opcode: int
    payload: bytes


class RawWebSocket:
    """A socket to the WebSocket port; nothing is sent by itself."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, DEADLINE_S)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        """Send, whether or not the daemon still listens."""
        try:
            self.sock.sendall(data)
        except ConnectionError:
            return

    def end(self) -> bytes:
        """Tell that nothing more will come; what the daemon sends until it closes."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return self._buffer
        return self.until_closed()

    def until_closed(self) -> bytes:
        data = self._buffer
        self._buffer = b""
        try:
            while chunk := self.sock.recv(1 << 16):
                data += chunk
        except ConnectionError:
            pass
        return data

    def open(self, **changes: str | None) -> str:
        """Shake hands; the answer's head, which must be 101."""
        self.send(upgrade(**changes))
        while b"\r\n\r\n" not in self._buffer:
            chunk = self.sock.recv(1 << 16)
            assert chunk, self._buffer
            self._buffer += chunk
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 101"), head
        key = base64.b64encode(b"0123456789abcdef")
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())  # noqa: S324 - as the RFC has it
        assert accept in head
        return head.decode("latin-1")

    def read(self) -> Frame | None:
        """The next frame, or None if the daemon closed."""
        head = self._exactly(2)
        if head is None:
            return None
        length = head[1] & 0x7F
        for marker, size, form in ((126, 2, ">H"), (127, 8, ">Q")):
            if length == marker:
                extended = self._exactly(size)
                if extended is None:
                    return None
                (length,) = struct.unpack(form, extended)
                break
        payload = self._exactly(length)
        return None if payload is None else Frame(head[0] & 0x0F, payload)

    def close(self) -> None:
        self.sock.close()

    def _exactly(self, count: int) -> bytes | None:
        while len(self._buffer) < count:
            try:
                chunk = self.sock.recv(1 << 16)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data
