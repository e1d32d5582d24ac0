"""The index of a segment: one record of fixed size per record batch, in the order of the batches.

Arrow IPC has neither checksums nor a way to find a batch without reading everything before it. An index record has
both: the position and the CRC-32 of its batch, and a checksum of itself. It also has the instants of the batch and,
apart from them, those of its late values, which may have come long after. It is written after its batch, so **every
batch in the index is complete**. Readers use these batches and ignore the bytes after them; records count up to the
first one that is damaged or cut.

An index can be rebuilt. A segment is a chain of Arrow messages, and each batch has its own seqs and instants: all that
the index says except the checksum at the time of writing. So a lost index costs no event as long as the batches can be
read. Bytes between two batches that cannot be read become one record with a checksum that never matches:

    segment   [batch 1-10][batch 11-20][ damaged  ][batch 31-40]
    rebuilt    1-10        11-20        21-30 wrong  31-40

Seqs and positions stay consecutive, and a reader meets the damage where it is, not before.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.expansion import BATCH_BYTES_MAX, measure_batch
from jetbus.journal.journal_errors import JournalError
from jetbus.journal.segment import (
    END_OF_STREAM,
    EVENTS,
    NO_LATE_US,
    PLAIN,
    SCHEMA,
    STAMPED,
    Layout,
    Segment,
    find_layout,
    format_seq,
    open_regular,
    read_regular,
)

_FIELDS = struct.Struct("<6qI2q")
_OWN_CRC = struct.Struct("<I")
RECORD_BYTES = _FIELDS.size + _OWN_CRC.size
PARSED_ENTRIES_MAX = 100_000
"""Records of parsed indexes that a process keeps, at most; the index that was read last is kept whatever its size."""


class IndexEntry(NamedTuple):
    """Position and content of one record batch."""

    seq_first: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    ts_min_us: int
    ts_max_us: int
    position: int
    """Offset of the batch in the segment, where its encapsulated Arrow message starts."""
    length: int
    crc: int
    """CRC-32 of the bytes of the batch."""
    late_min_us: int = NO_LATE_US[0]
    """First instant, by the owners, of its values of the past."""
    late_max_us: int = NO_LATE_US[1]

    @property
    def seq_last(self) -> int:
        return self.seq_first + self.count - 1

    @property
    def end(self) -> int:
        """Offset of the first byte after the batch."""
        return self.position + self.length

    def pack(self) -> bytes:
        """Return the record with its own checksum."""
        fields = _FIELDS.pack(*self)
        return fields + _OWN_CRC.pack(crc32(fields))


def unpack(data: bytes) -> list[IndexEntry]:
    """Return the records in ``data``, up to the first that is cut, damaged or out of sequence."""
    entries: list[IndexEntry] = []
    for start in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        fields = data[start : start + _FIELDS.size]
        if _OWN_CRC.unpack_from(data, start + _FIELDS.size)[0] != crc32(fields):
            break
        entry = IndexEntry(*_FIELDS.unpack(fields))
        if entry.count < 1 or entry.length < 1 or entry.position < 0:
            break
        if entries and (entry.seq_first != entries[-1].seq_last + 1 or entry.position != entries[-1].end):
            break
        entries.append(entry)
    return entries


def read_index(path: Path, skip: int = 0) -> list[IndexEntry]:
    """Return the checked records of an index file from the ``skip``-th on; none without a file.

    Readers that follow a growing segment skip the records they have. Records that do not start with the seq in the
    name of the file belong to another segment and do not count.
    """
    try:
        with open_regular(path) as file:
            file.seek(skip * RECORD_BYTES)
            entries = unpack(file.read())
    except (FileNotFoundError, JournalError):
        return []
    return entries if skip or not entries or path.stem == format_seq(entries[0].seq_first) else []


class ParsedIndexes:
    """Parsed index files of this process, safe to use from several threads.

    A live chart asks for the newest events again and again, in a journal with thousands of records. So a file that has
    grown is parsed from its last known record on, and one that has not changed is not opened at all. The indexes used
    least recently are dropped beyond ``entries_max`` records in all, at about 300 bytes each.
    """

    def __init__(self, entries_max: int = PARSED_ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._lock = threading.Lock()
        self._known: OrderedDict[Path, _ParsedIndex] = OrderedDict()
        self.parsed = 0
        """Records parsed so far."""

    def read(self, path: Path) -> list[IndexEntry]:
        """Return the checked records of an index file, as ``read_index`` does; the list must not be changed."""
        with self._lock:
            known = self._known.pop(path, None)
            try:
                status = path.stat()
            except FileNotFoundError:
                return []
            mark = (status.st_ino, status.st_size, status.st_mtime_ns)
            if known is None or known.mark != mark:
                known = _ParsedIndex(mark, self._parse(path, known, mark))
            self._known[path] = known
            while self.count() > self._entries_max and len(self._known) > 1:
                self._known.popitem(last=False)
            return known.entries

    def count(self) -> int:
        """Return the number of records that are kept."""
        return sum(len(one.entries) for one in self._known.values())

    def _parse(self, path: Path, known: _ParsedIndex | None, mark: tuple[int, int, int]) -> list[IndexEntry]:
        # The last known record is read again: a restarted writer may have cut the file and written others.
        if known is not None and known.entries and known.mark[0] == mark[0] and known.mark[1] < mark[1]:
            tail = read_index(path, skip=len(known.entries) - 1)
            self.parsed += len(tail)
            if tail and tail[0] == known.entries[-1]:
                return known.entries + tail[1:]
        entries = read_index(path)
        self.parsed += len(entries)
        return entries


class _ParsedIndex(NamedTuple):
    mark: tuple[int, int, int]
    """Inode, size and time of the last change of the file when it was parsed."""
    entries: list[IndexEntry]


PARSED_INDEXES = ParsedIndexes()
"""The indexes of all logs that this process reads."""


def pack(entries: Iterable[IndexEntry]) -> bytes:
    """Return records as they are stored."""
    return b"".join(entry.pack() for entry in entries)


def is_sealed(data: memoryview, end: int) -> bool:
    """Return whether a segment has its end mark at ``end``, and nothing after it."""
    return len(data) == end + len(END_OF_STREAM) and data[end:] == END_OF_STREAM


def reaches_end(entries: list[IndexEntry], size_bytes: int) -> bool:
    """Return whether an index covers its segment: nothing but the end mark follows its last batch."""
    return bool(entries) and size_bytes in (entries[-1].end, entries[-1].end + len(END_OF_STREAM))


def complete_entries(
    segment: Segment, entries: list[IndexEntry], next_seq: int | None, ts_us: int = 0
) -> list[IndexEntry]:
    """Return the records of an index, completed from the batches of its segment if it does not reach the end.

    ``next_seq`` is the first seq of the next segment. For the last segment, which has none, the index is completed only
    if the segment has its end mark: while a writer writes, the index is always a little behind. If a sealed segment
    cannot be read up to the next one, the last record has a wrong checksum; ``ts_us`` is its instant if no batch of the
    segment can be read.
    """
    try:
        size_bytes = segment.path.stat().st_size
        if reaches_end(entries, size_bytes) or (next_seq is None and not has_end_mark(segment)):
            return entries
        data = memoryview(read_regular(segment.path))
    except FileNotFoundError:
        return entries
    found = [*entries, *read_all_batches(data, segment.first_seq, entries)]
    if next_seq is None:
        return found if found and is_sealed(data, found[-1].end) else entries
    # The next segment says which seqs this one must have had.
    first, start = (found[-1].seq_last + 1, found[-1].end) if found else (segment.first_seq, _measure_schema(data))
    if first < next_seq:
        ts_us = found[-1].ts_max_us if found else ts_us
        found.append(
            _make_damage_entry(data, first, next_seq - first, (ts_us, ts_us), start, max(len(data), start + 1))
        )
    return found


def has_end_mark(segment: Segment) -> bool:
    """Return whether the last bytes of a segment are the end mark, possibly by chance within a batch."""
    with open_regular(segment.path) as file:
        file.seek(0, os.SEEK_END)
        if file.tell() < len(END_OF_STREAM):
            return False
        file.seek(-len(END_OF_STREAM), os.SEEK_END)
        return file.read() == END_OF_STREAM


def read_first_seq(segment: Segment) -> int | None:
    """Return the seq of the first event in a segment, whatever its name says; None if it cannot be read."""
    data = memoryview(read_regular(segment.path))
    entry = _read_batch(data, _measure_schema(data), find_layout(data))
    return None if entry is None else entry.seq_first


def read_batches(data: memoryview, first_seq: int, named: list[IndexEntry]) -> Iterator[IndexEntry]:
    """Yield records of the batches after those in the index, up to the first that cannot be read."""
    seq = named[-1].seq_last + 1 if named else first_seq
    start = named[-1].end if named else _read_schema(data)
    layout = find_layout(data)
    while start is not None and (entry := _read_batch(data, start, layout)) is not None and entry.seq_first == seq:
        yield entry
        seq, start = entry.seq_last + 1, entry.end


def read_all_batches(data: memoryview, first_seq: int, named: list[IndexEntry]) -> Iterator[IndexEntry]:
    """Yield records of all batches after those in the index, including those after damaged ones."""
    before = named[-1] if named else None
    while True:
        for entry in read_batches(data, first_seq, [] if before is None else [before]):
            yield entry
            before = entry
        # Without any batch before the damage, its first seq is unknown.
        if before is None:
            return
        after = _find_batch(data, before)
        if after is None:
            return
        first, instants = before.seq_last + 1, (before.ts_max_us, after.ts_min_us)
        before = _make_damage_entry(data, first, after.seq_first - first, instants, before.end, after.position)
        yield before


def _make_damage_entry(
    data: memoryview, seq: int, count: int, ts_us: tuple[int, int], start: int, end: int
) -> IndexEntry:
    """Return a record for bytes that cannot be read; its checksum never matches."""
    return IndexEntry(seq, count, *ts_us, start, end - start, crc32(data[start:end]) ^ _WRONG)


def _find_batch(data: memoryview, before: IndexEntry) -> IndexEntry | None:
    """Return the record of the next readable batch after one that is known, None if there is none."""
    # Arrow messages start at multiples of 8.
    whole = bytes(data)
    start, layout = before.end, find_layout(data)
    while (start := whole.find(_MESSAGE, start + 1)) >= 0:
        entry = _read_batch(data, start, layout) if start % 8 == 0 else None
        if entry is not None and entry.seq_first > before.seq_last + 1:
            return entry
    return None


def _read_schema(data: memoryview) -> int | None:
    """Return the offset of the first batch; None if the data is not a segment."""
    source = pa.BufferReader(pa.py_buffer(data))
    try:
        schema = pa.ipc.read_schema(pa.ipc.read_message(source))
        return int(source.tell()) if schema in (PLAIN.schema, SCHEMA) else None
    except _UNREADABLE:
        return None


def _measure_schema(data: memoryview) -> int:
    """Return the number of bytes before the first batch, also of a segment with a damaged start."""
    return _read_schema(data) or len(find_layout(data).schema_bytes)


def _read_batch(data: memoryview, start: int, layout: Layout) -> IndexEntry | None:
    """Return the record of the batch at an offset; None without a valid batch."""
    source = pa.BufferReader(pa.py_buffer(data))
    try:
        if measure_batch(data[start:]) > BATCH_BYTES_MAX:
            return None
        source.seek(start)
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), layout.schema)
        end = source.tell()
        if not len(batch) or not _is_plausible(batch):
            return None
        instants = batch.column("ts").cast(pa.int64())
        seq, ts_us = batch.column("seq")[0].as_py(), (instants[0].as_py(), instants[-1].as_py())
        late_us = find_late_us(batch) if layout is STAMPED else NO_LATE_US
        return IndexEntry(seq, len(batch), *ts_us, start, end - start, crc32(data[start:end]), *late_us)
    except _UNREADABLE:
        return None


def find_late_us(events: pa.RecordBatch | pa.Table) -> tuple[int, int]:
    """Return the first and the last instant of the values of the past among some events."""
    late = events["source_ts"].filter(pc.equal(events["event"], "past"))
    ends = pc.min_max(late.cast(pa.int64())).as_py()
    return NO_LATE_US if ends["min"] is None else (ends["min"], ends["max"])


def _is_plausible(batch: pa.RecordBatch) -> bool:
    """Return whether a batch without checksum was written as such: after a power loss it may be zeros."""
    batch.validate(full=True)
    first = batch.column("seq")[0].as_py()
    return (
        batch.column("seq").to_pylist() == list(range(first, first + len(batch)))
        and all(event in EVENTS for event in batch.column("event").unique().to_pylist())
        and not any(
            "\0" in text
            for name in ("path", "value", "peer", "detail", "quality")
            if name in batch.schema.names
            for text in batch.column(name).to_pylist()
            if text
        )
    )


_MESSAGE = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow message."""
_WRONG = 0xFFFFFFFF
"""XORed with a checksum to make it wrong."""
_UNREADABLE = (pa.ArrowException, EOFError, OSError, ValueError, OverflowError, TypeError)
