"""Compression of WebSocket messages (permessage-deflate, RFC 7692), bounded in memory and in time.

The setting ``ws_deflate`` allows it, and a peer that offers it gets it. Everything has a limit:

- ``ws_deflate_max`` peers at once; the next one is served without compression.
- A compressor takes about 32 KB (``WINDOW_BITS``, ``MEMORY_LEVEL``). Peers must compress each message on its own, so
  that nothing is kept of them between two messages.
- A message of a peer is inflated up to ``message_bytes_max`` and then refused, whatever its length on the wire.
- Deflating takes the loop's time, so a write deflates at most ``BYTES_AT_ONCE``. Longer messages, and those behind
  them in the same write, are sent as they are, which the standard allows for each message.

The bus knows nothing of this: its outboxes hold plain frames, which several peers share, and ``DeflatingTransport``
replaces them one by one on their way to the socket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from websockets.exceptions import NegotiationError
from websockets.extensions.permessage_deflate import PerMessageDeflate, ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode

if TYPE_CHECKING:
    import asyncio

    from websockets.extensions import Extension
    from websockets.typing import ExtensionParameter

    from jetbus.daemon.daemon import Daemon

WINDOW_BITS, MEMORY_LEVEL, SPEED = 12, 5, 1
BYTES_AT_ONCE = 256 * 1024
"""Bytes that one write deflates at most, which takes about a millisecond."""
INFLATING_SLICE_BYTES = 1024
"""Compressed bytes that are handled before the clock is looked at; they may become a thousand times as many."""

_CONTROL = 0x8
_DEFLATED = 0x40


class BoundedDeflate(ServerPerMessageDeflateFactory):
    """Negotiates compression with a peer, unless there are too many already."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(
            client_no_context_takeover=True,
            server_max_window_bits=WINDOW_BITS,
            compress_settings={"level": SPEED, "memLevel": MEMORY_LEVEL},
        )
        self._daemon = daemon
        self.peers = 0
        """Peers that use compression."""

    def process_request_params(
        self, params: Sequence[ExtensionParameter], accepted_extensions: Sequence[Extension]
    ) -> tuple[list[ExtensionParameter], PerMessageDeflate]:
        """Return the response to an offer, and the compressor."""
        if self._daemon.config.ws_deflate == "off":
            raise NegotiationError("ws_deflate is off")
        if self.peers >= self._daemon.config.ws_deflate_max:
            self._daemon.bus.limit_hits["ws_deflate_max"] += 1
            raise NegotiationError("too many peers use compression")
        return super().process_request_params(params, accepted_extensions)


class DeflatingTransport:
    """The transport of a connection that deflates the messages in the whole frames written to it."""

    def __init__(self, transport: asyncio.Transport, deflate: PerMessageDeflate) -> None:
        self._transport = transport
        self._deflate = deflate

    def write(self, data: bytes) -> None:
        self._transport.write(b"".join(self._replace(data)))

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        self._transport.abort()

    def _replace(self, data: bytes) -> list[bytes]:
        """Return the frames of a write, with deflated messages."""
        frames, at, left = [], 0, BYTES_AT_ONCE
        while at < len(data):
            payload_at, end = _find_payload(data, at)
            size = end - payload_at
            # Once one is sent as it is, all behind it are: otherwise a write of many could deflate without end.
            left = left - size if size <= left else 0
            if data[at] & _CONTROL or not left:
                frames.append(data[at:end])
            else:
                message = Frame(Opcode(data[at] & 0x0F), data[payload_at:end])
                deflated = bytes(self._deflate.encode(message).data)
                frames += (_encode_head(data[at] | _DEFLATED, len(deflated)), deflated)
            at = end
        return frames


def _find_payload(data: bytes, at: int) -> tuple[int, int]:
    """Return start and end of the payload of a frame without a mask."""
    size, start = data[at + 1], at + 2
    if size == 126:
        (size,), start = struct.unpack_from(">H", data, start), start + 2
    elif size == 127:
        (size,), start = struct.unpack_from(">Q", data, start), start + 8
    return start, start + size


def _encode_head(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    return struct.pack(">BBH", first, 126, size) if size < 1 << 16 else struct.pack(">BBQ", first, 127, size)


def find_deflate(extensions: Sequence[Extension]) -> PerMessageDeflate | None:
    """Return the compression among the extensions of a connection, None if there is none."""
    return cast(PerMessageDeflate, extensions[0]) if extensions else None
