"""Framing: the limits of messages in the bytes of a connection.

    TCP, Unix socket     length, 32 bits, big endian | message
    WebSocket            header of a text frame | message
    binary protocol      length, 32 bits, little endian | message, also inside binary frames of a WebSocket

Incoming WebSocket frames are decoded by a library. Outgoing ones need only the header, which is written here.
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
    """A framing: ``header(n)`` returns the bytes that precede a message of ``n`` bytes."""

    name: str
    header: Callable[[int], bytes]
    length: struct.Struct = _BIG_ENDIAN
    """Encoding of a length."""
    short: tuple[bytes, ...] = ()
    """Headers of short messages, indexed by length; a lookup is faster than a call."""

    def cut(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Return where the message whose header is at a position starts and ends, None if it is not complete.

        Only for framings with a length of four bytes.
        """
        body = at + _HEADER_BYTES
        if body > len(data):
            return None
        stop = body + self.length.unpack_from(data, at)[0]
        return (body, stop) if stop <= len(data) else None

    def join(self, messages: list[bytes]) -> bytes:
        """Return messages as one bytes object, each behind its header."""
        # Most messages are short. One that is too long for the table is noticed by the IndexError, at no cost for the
        # others.
        short = self.short
        try:
            return b"".join([short[len(message)] + message for message in messages])
        except IndexError:
            header = self.header
            return b"".join([header(len(message)) + message for message in messages])


def _ws_header(length: int, opcode: int = _WS_TEXT) -> bytes:
    # The three forms of RFC 6455 for lengths of 7, 16 and 64 bits; a server sends no mask.
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
"""A comma before each message; ``frame_batch`` turns all messages that are written together into one batch."""


def frame_batch(messages: bytes) -> bytes:
    """Return the frame of a batch of messages, each of which has a comma in front of it."""
    return b"".join((_BIG_ENDIAN.pack(len(messages) + 1), b"[", messages[1:], b"]"))


class StreamDecoder:
    """Decoder that cuts a byte stream into messages.

    ``overlong`` is the announced length of a message that is longer than allowed, else None. Once it is set, the rest
    of the stream is lost.
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
        """Bytes of the unfinished message."""
        return len(self._rest) if self._rest else 0

    def clear(self) -> None:
        """Discard the unfinished message."""
        self._rest = None

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that ``data`` completes."""
        data = self.join(data)
        messages: list[bytes] = []
        append, unpack, bytes_max = messages.append, self._unpack, self._bytes_max
        at, end = 0, len(data)
        while (body := at + _HEADER_BYTES) <= end:
            (length,) = unpack(data, at)
            stop = body + length
            if length > bytes_max or stop > end:
                break
            append(data[body:stop])
            at = stop
        self.keep(data, at)
        return messages

    def join(self, data: bytes) -> bytes:
        """Return ``data`` behind the unfinished message that was kept, nothing while that remains unfinished."""
        if self.overlong is not None:
            return b""
        rest = self._rest
        if rest is None:
            return data
        # A long message arrives in many reads. They are only appended until it must be complete.
        rest += data
        self._missing -= len(data)
        if self._missing > 0:
            return b""
        self._rest = None
        return bytes(rest)

    def keep(self, data: bytes, at: int) -> None:
        """Keep the unfinished message at a position until the rest of it arrives."""
        rest = len(data) - at
        if not rest:
            return
        missing = _HEADER_BYTES
        if rest >= _HEADER_BYTES:
            (length,) = self._unpack(data, at)
            # Refused by its announced length, before its bytes take any memory.
            if length > self._bytes_max:
                self.overlong = length
                return
            missing += length
        self._rest = bytearray(data[at:])
        self._missing = missing - rest
