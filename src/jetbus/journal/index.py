"""The sidecar index of a segment: one record per record batch, of fixed size, in the order of the batches.

Arrow IPC has neither checksums nor a way to find a batch without reading all before it; a record has both. It is
written after its batch, so that **what the index names is whole**: a reader takes what the index names and leaves alone
what comes after. Each record carries a checksum of itself; the records up to the first that is wrong or cut count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

_FIELDS = struct.Struct("<6qI")
_OWN_CRC = struct.Struct("<I")
RECORD_BYTES = _FIELDS.size + _OWN_CRC.size


class Entry(NamedTuple):
    """Where one record batch is and what is in it."""

    seq_first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants here
    ts_min_us: int
    ts_max_us: int
    position: int
    """The byte in the segment at which the batch begins, as an encapsulated Arrow message."""
    length: int
    crc: int
    """CRC-32 of these bytes."""

    @property
    def seq_last(self) -> int:
        return self.seq_first + self.count - 1

    @property
    def end(self) -> int:
        """The byte after the batch."""
        return self.position + self.length

    def pack(self) -> bytes:
        """The record, with its own checksum."""
        fields = _FIELDS.pack(*self)
        return fields + _OWN_CRC.pack(crc32(fields))


def unpack(data: bytes) -> list[Entry]:
    """The records in ``data``, up to the first that is not whole, not sound or does not follow the one before."""
    entries: list[Entry] = []
    for start in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        fields = data[start : start + _FIELDS.size]
        if _OWN_CRC.unpack_from(data, start + _FIELDS.size)[0] != crc32(fields):
            break
        entry = Entry(*_FIELDS.unpack(fields))
        if entries and (entry.seq_first != entries[-1].seq_last + 1 or entry.position != entries[-1].end):
            break
        entries.append(entry)
    return entries


def read_index(path: Path, skip: int = 0) -> list[Entry]:
    """The records of an index file from the ``skip``-th on; none if there is no file.

    A follower skips what it has seen. Each call checks the records it reads.
    """
    try:
        with path.open("rb") as file:
            file.seek(skip * RECORD_BYTES)
            return unpack(file.read())
    except FileNotFoundError:
        return []


def pack(entries: Iterable[Entry]) -> bytes:
    """The records as they are on disk."""
    return b"".join(entry.pack() for entry in entries)
