"""The size of compressed record batches in memory, found before they are decompressed.

A few kilobytes can expand to gigabytes, and Arrow allocates whatever a batch declares. So readers add up the declared
sizes first and refuse a batch that the writer would never have written. The sizes are in two places:

    message   [ff ff ff ff][size][metadata: a flatbuffer][body: buffers]
    metadata   Message.header -> RecordBatch: nodes, buffers (offset and length in the body), compression
    buffer     [uncompressed size, 8 bytes, -1 if not compressed][data]

Arrow keeps both to itself, hence the few lines that walk through the flatbuffer. Offsets in it come from strangers:
whatever leads out of the message raises ``ValueError``.
"""

from __future__ import annotations

import struct

from jetbus.journal.batch import COLUMN_BYTES_MAX

BATCH_BYTES_MAX = 6 * COLUMN_BYTES_MAX
"""Bytes of a decompressed batch, at most: five columns of text, and the numbers."""
EXPANSION_MAX = 1000
"""Times its size that a snapshot may expand beyond ``BATCH_BYTES_MAX``: trees can be large, but not of equal bytes."""

_HEADER, _BUFFERS, _COMPRESSION = 2, 2, 3
"""Fields of the tables ``Message`` and ``RecordBatch``, by their numbers in Arrow's schema files."""
_PREFIX_BYTES = 8
_BUFFER = struct.Struct("<qq")


def measure_batch(message: memoryview) -> int:
    """Return the size of a record batch after decompression, given its encapsulated message."""
    (metadata_bytes,) = struct.unpack_from("<i", message, 4) if len(message) >= _PREFIX_BYTES else (0,)
    body = _PREFIX_BYTES + max(metadata_bytes, 0)
    return measure_parts(message[_PREFIX_BYTES:body], message[body:])


def measure_parts(metadata: memoryview, body: memoryview) -> int:
    """Return the size of a record batch after decompression, given the two parts of its message."""
    try:
        return _measure(metadata, body)
    except (struct.error, IndexError):
        raise ValueError("its metadata leads out of the message") from None


def _measure(metadata: memoryview, body: memoryview) -> int:
    (root,) = struct.unpack_from("<I", metadata)
    header = _follow(metadata, root, _HEADER)
    buffers = None if header is None else _follow(metadata, header, _BUFFERS)
    if header is None or buffers is None or _find_field(metadata, header, _COMPRESSION) is None:
        return len(body)
    (count,) = struct.unpack_from("<I", metadata, buffers)
    total = 0
    for number in range(count):
        start, length = _BUFFER.unpack_from(metadata, buffers + 4 + number * _BUFFER.size)
        if length:
            if start < 0:
                raise IndexError
            (size,) = struct.unpack_from("<q", body, start)
            total += length if size < 0 else size
    return total


def _find_field(data: memoryview, table: int, number: int) -> int | None:
    """Return where a field of a table is stored; None if it is absent."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    if vtable < 0:
        raise IndexError
    (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
    at = 4 + 2 * number
    if at >= vtable_bytes:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + at)
    return table + offset if offset else None


def _follow(data: memoryview, table: int, number: int) -> int | None:
    """Return the start of the table or vector that a field points to; None if the field is absent."""
    at = _find_field(data, table, number)
    if at is None:
        return None
    offset: int = struct.unpack_from("<I", data, at)[0]
    return at + offset
