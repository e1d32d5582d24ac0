"""The index of a segment, made anew from the segment itself.

A segment is a chain of Arrow messages, and each batch tells its seqs and instants: all that the index says of it but
the checksum it had when it was written. So an index that is lost or cut costs no event, as long as the batches can be
read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from zlib import crc32

import pyarrow as pa

from jetbus.journal.index import Entry
from jetbus.journal.segment import END_OF_STREAM, EVENTS, SCHEMA, SCHEMA_BYTES, Segment


def is_sealed(data: memoryview, end: int) -> bool:
    """Whether a segment whose last batch ends at ``end`` has its end mark there, and nothing after it."""
    return len(data) == end + len(END_OF_STREAM) and data[end:] == END_OF_STREAM


def covers(entries: list[Entry], size_bytes: int) -> bool:
    """Whether an index reaches the end of its segment: there is nothing after its last batch but the end mark."""
    return bool(entries) and size_bytes in (entries[-1].end, entries[-1].end + len(END_OF_STREAM))


def complete_entries(segment: Segment, entries: list[Entry], next_seq: int | None, ts_us: int = 0) -> list[Entry]:
    """Complete what an index says from the batches of its segment, if it falls short of the end of it.

    ``next_seq`` is where the next segment begins. In the last one, which has none, the index is completed only if the
    segment has its end mark: while a writer writes, the index is always a little behind. A sealed segment that cannot
    be read up to the next one ends with an entry whose checksum is wrong; ``ts_us`` is its instant if nothing in it can
    be read.
    """
    try:
        size_bytes = segment.path.stat().st_size
        if covers(entries, size_bytes) or (next_seq is None and not has_end_mark(segment)):
            return entries
        data = memoryview(segment.path.read_bytes())
    except FileNotFoundError:
        return entries
    found = [*entries, *read_all_batches(data, segment.first_seq, entries)]
    if next_seq is None:
        return found if found and is_sealed(data, found[-1].end) else entries
    first, start = (found[-1].seq_last + 1, found[-1].end) if found else (segment.first_seq, len(SCHEMA_BYTES))
    if first < next_seq:
        ts_us = found[-1].ts_max_us if found else ts_us
        found.append(_damage(data, first, next_seq - first, (ts_us, ts_us), start, max(len(data), start + 1)))
    return found


def has_end_mark(segment: Segment) -> bool:
    """Whether the last bytes of a segment are the end mark; in the middle of a batch they may be so by chance."""
    with segment.path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        if file.tell() < len(END_OF_STREAM):
            return False
        file.seek(-len(END_OF_STREAM), os.SEEK_END)
        return file.read() == END_OF_STREAM


def read_batches(data: memoryview, first_seq: int, named: list[Entry]) -> Iterator[Entry]:
    """Find the whole batches after those that the index names, as far as nothing is wrong with them."""
    seq = named[-1].seq_last + 1 if named else first_seq
    start = named[-1].end if named else _read_schema(data)
    while start is not None and (entry := _read_batch(data, start)) is not None and entry.seq_first == seq:
        yield entry
        seq, start = entry.seq_last + 1, entry.end


def read_all_batches(data: memoryview, first_seq: int, named: list[Entry]) -> Iterator[Entry]:
    """Find all batches after those that the index names, also those that come after damaged ones.

    What cannot be read in between becomes one entry with a checksum that is never right, so that the seqs and positions
    of an index follow each other: a reader is told of the damage when it comes there, and not before.
    """
    before = named[-1] if named else None
    while True:
        for entry in read_batches(data, first_seq, [] if before is None else [before]):
            yield entry
            before = entry
        if before is None:
            return
        after = _find_batch(data, before)
        if after is None:
            return
        first, instants = before.seq_last + 1, (before.ts_max_us, after.ts_min_us)
        before = _damage(data, first, after.seq_first - first, instants, before.end, after.position)
        yield before


def _damage(data: memoryview, seq: int, count: int, ts_us: tuple[int, int], start: int, end: int) -> Entry:
    """Name bytes that cannot be read."""
    return Entry(seq, count, *ts_us, start, end - start, crc32(data[start:end]) ^ _WRONG)


def _find_batch(data: memoryview, before: Entry) -> Entry | None:
    """Find the next batch that can be read and comes later than one before it; messages begin at multiples of 8."""
    whole = bytes(data)
    start = before.end
    while (start := whole.find(_MESSAGE, start + 1)) >= 0:
        entry = _read_batch(data, start) if start % 8 == 0 else None
        if entry is not None and entry.seq_first > before.seq_last + 1:
            return entry
    return None


def _read_schema(data: memoryview) -> int | None:
    """Find where the first batch begins; None if that is no segment."""
    source = pa.BufferReader(pa.py_buffer(data))
    try:
        is_segment = pa.ipc.read_schema(pa.ipc.read_message(source)).equals(SCHEMA)
        return int(source.tell()) if is_segment else None
    except _UNREADABLE:
        return None


def _read_batch(data: memoryview, start: int) -> Entry | None:
    """Describe the batch at a position; None if there is none, or something is wrong with it."""
    source = pa.BufferReader(pa.py_buffer(data))
    try:
        source.seek(start)
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), SCHEMA)
        end = source.tell()
        if not len(batch) or not _is_ours(batch):
            return None
        instants = batch.column("ts").cast(pa.int64())
        seq, ts_us = batch.column("seq")[0].as_py(), (instants[0].as_py(), instants[-1].as_py())
        return Entry(seq, len(batch), *ts_us, start, end - start, crc32(data[start:end]))
    except _UNREADABLE:
        return None


def _is_ours(batch: pa.RecordBatch) -> bool:
    """Whether a batch without checksum is one that a writer made: zeros that a power loss left behind are none."""
    batch.validate(full=True)
    first = batch.column("seq")[0].as_py()
    return (
        batch.column("seq").to_pylist() == list(range(first, first + len(batch)))
        and all(event in EVENTS for event in batch.column("event").unique().to_pylist())
        and not any(
            "\0" in text
            for name in ("path", "value", "peer", "detail")
            for text in batch.column(name).to_pylist()
            if text
        )
    )


_MESSAGE = b"\xff\xff\xff\xff"
"""How every Arrow message begins."""
_WRONG = 0xFFFFFFFF
"""What makes a checksum wrong."""
_UNREADABLE = (pa.ArrowException, EOFError, OSError, ValueError, OverflowError, TypeError)
