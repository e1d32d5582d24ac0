"""How one message follows the next on a connection.

TCP and Unix sockets: a 32-bit big-endian length, then that many bytes. WebSocket: one text frame a message; what
arrives there is taken apart by a WebSocket library, what goes out needs no more than the header written here. The
binary protocol has a little-endian length, inside WebSocket frames too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

_BIG_ENDIAN = struct.Struct(">I")
_LITTLE_ENDIAN = struct.Struct("<I")
_HEADER_BYTES = _BIG_ENDIAN.size
_WS_TEXT = 0x81
_WS_BINARY = 0x82
_WS_SHORT = struct.Struct(">BB")
_WS_MEDIUM = struct.Struct(">BBH")
_WS_LONG = struct.Struct(">BBQ")


class Framing(NamedTuple):
    """One way of telling messages apart: ``header(n)`` precedes a message of ``n`` bytes."""

    name: str
    header: Callable[[int], bytes]
    length: struct.Struct = _BIG_ENDIAN
    """How a length is written where there is one."""
    short: tuple[bytes, ...] = ()
    """The headers of short messages, by their length."""

    def framed(self, messages: list[bytes]) -> bytes:
        """Messages, each after its header."""
        short = self.short
        try:
            return b"".join([short[len(message)] + message for message in messages])
        except IndexError:
            header = self.header
            return b"".join([header(len(message)) + message for message in messages])


def _ws_header(length: int, opcode: int = _WS_TEXT) -> bytes:
    if length < 126:
        return _WS_SHORT.pack(opcode, length)
    if length < 65536:
        return _WS_MEDIUM.pack(opcode, 126, length)
    return _WS_LONG.pack(opcode, 127, length)


def _binary_ws_header(length: int) -> bytes:
    return _ws_header(length + _HEADER_BYTES, _WS_BINARY) + _LITTLE_ENDIAN.pack(length)


STREAM = Framing("stream", _BIG_ENDIAN.pack, short=tuple(map(_BIG_ENDIAN.pack, range(512))))
WEBSOCKET = Framing("websocket", _ws_header)
BINARY_STREAM = Framing("binary stream", _LITTLE_ENDIAN.pack, _LITTLE_ENDIAN)
BINARY_WEBSOCKET = Framing("binary websocket", _binary_ws_header, _LITTLE_ENDIAN)


def _comma(_length: int) -> bytes:
    return b","


BATCHES = Framing("stream, batches", _comma)
"""A comma before each message: all that is written together becomes one batch, which is framed as a whole."""


def as_batch(messages: bytes) -> bytes:
    """The frame of a batch of messages that have a comma before each."""
    return b"".join((_BIG_ENDIAN.pack(len(messages) + 1), b"[", messages[1:], b"]"))


class StreamDecoder:
    """Cuts a byte stream into messages.

    ``overlong`` is set to the announced length when a message is longer than allowed; nothing after it can be read.
    """

    __slots__ = ("_bytes_max", "_missing", "_rest", "_unpack", "overlong")

    def __init__(self, bytes_max: int, framing: Framing = STREAM) -> None:
        self._bytes_max = bytes_max
        self._unpack = framing.length.unpack_from
        self._rest: bytearray | None = None
        self._missing = 0
        self.overlong: int | None = None

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished message are held."""
        return len(self._rest) if self._rest else 0

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with ``data``."""
        rest = self._rest
        if rest is not None:
            rest += data
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = bytes(rest)
            self._rest = None
        messages: list[bytes] = []
        append, unpack, bytes_max = messages.append, self._unpack, self._bytes_max
        at, end, missing = 0, len(data), _HEADER_BYTES
        while (body := at + _HEADER_BYTES) <= end:
            (length,) = unpack(data, at)
            stop = body + length
            if length > bytes_max:
                self.overlong = length
                return messages
            if stop > end:
                missing = _HEADER_BYTES + length
                break
            append(data[body:stop])
            at = stop
        if at < end:
            self._rest = bytearray(data[at:])
            self._missing = missing - (end - at)
        return messages
