"""What a writer does before it goes on where another ended, however that one ended.

Only the last segment can be torn: a segment is begun after the one before is sealed. Its batches count as far as the
index names them and their checksums are right. What comes after is a torn tail, and is cut, with one exception: whole
batches that the index does not name yet, or no more, are kept if Arrow finds nothing wrong with them and their seqs go
on. So neither a lost index nor a writer that was killed between batch and index costs an event. When in doubt it is
cut: it was never acknowledged.

A batch that is wrong in the middle, with good ones after it, is no torn tail but damage. It is left in place and
counted: cutting there would give the seqs of good events to others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pyarrow as pa

from jetbus.journal import snapshots
from jetbus.journal.index import Entry, pack, read_index
from jetbus.journal.manifest import read_manifest
from jetbus.journal.segment import (
    END_OF_STREAM,
    EVENTS,
    INDEX,
    SCHEMA,
    Segment,
    list_segments,
    replace_file,
    sync_directory,
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a writer found when it opened a journal."""

    last_seq: int = 0
    """The seq of the last event, 0 if there never was one."""
    last_ts_us: int = 0
    cut_bytes: int = 0
    """The size of the torn tail, which is gone."""
    damaged: int = 0
    """Batches of the last segment whose checksum is wrong though good ones follow."""
    clean: bool = True
    """Whether the writer before closed, or there was none."""


def recover(directory: Path, *, clean: bool = True) -> Recovered:
    """Cut what is torn, seal what is whole and tell where to go on. The caller holds the lock."""
    segments = list_segments(directory)
    _remove_lost_indexes(directory, segments)
    last_seq = max(read_manifest(directory).upto, segments[-1].first_seq - 1 if segments else 0)
    cut_bytes = damaged = last_ts_us = 0
    while segments:
        mended = _mend(segments.pop())
        cut_bytes += mended.cut_bytes
        if mended.entries:
            last_seq = max(last_seq, mended.entries[-1].seq_last)
            last_ts_us = max(entry.ts_max_us for entry in mended.entries)
            damaged = mended.damaged
            break
    last_seq = _drop_snapshots_after(directory, last_seq)
    sync_directory(directory)
    return Recovered(last_seq, last_ts_us, cut_bytes, damaged, clean)


@dataclass(frozen=True, slots=True)
class _Mended:
    entries: list[Entry]
    cut_bytes: int = 0
    damaged: int = 0


def _mend(segment: Segment) -> _Mended:
    """Bring a last segment into order; one without any event is removed."""
    with segment.path.open("r+b") as file:
        data = memoryview(file.read())
        named = read_index(segment.index_path)
        entries, damaged = _sound(named, data)
        if len(entries) == len(named):
            entries += _unnamed(data, segment.first_seq, entries)
        if not entries:
            _remove(segment)
            return _Mended([], len(data))
        end = entries[-1].end
        sealed = data[end:] == END_OF_STREAM
        if not sealed:
            file.truncate(end)
            with contextlib.suppress(OSError):  # on a full disk it stays unsealed, and can be read as well
                os.pwrite(file.fileno(), END_OF_STREAM, end)
        os.fsync(file.fileno())
    _write_index(segment, pack(entries))
    return _Mended(entries, 0 if sealed else len(data) - end, damaged)


def _write_index(segment: Segment, wanted: bytes) -> None:
    """Bring the index into order; cutting it needs no space on a full disk."""
    found = segment.index_path.read_bytes() if segment.index_path.exists() else b""
    if found == wanted:
        return
    if found.startswith(wanted):
        os.truncate(segment.index_path, len(wanted))
    else:
        replace_file(segment.index_path, wanted)


def _sound(named: list[Entry], data: memoryview) -> tuple[list[Entry], int]:
    """What the index names up to the last batch that is right, and how many before it are wrong."""
    right = [entry.end <= len(data) and crc32(data[entry.position : entry.end]) == entry.crc for entry in named]
    while right and not right[-1]:
        right.pop()
    return named[: len(right)], right.count(False)


def _unnamed(data: memoryview, first_seq: int, named: list[Entry]) -> Iterator[Entry]:
    """Whole batches after those that the index names, as far as nothing is wrong with them."""
    seq = named[-1].seq_last + 1 if named else first_seq
    source = pa.BufferReader(pa.py_buffer(data))
    try:
        if named:
            source.seek(named[-1].end)
        elif not pa.ipc.read_schema(pa.ipc.read_message(source)).equals(SCHEMA):
            return
        while True:
            start = source.tell()
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), SCHEMA)
            end = source.tell()
            if not _is_ours(batch, seq):
                return
            instants = batch.column("ts").cast(pa.int64())
            message = data[start:end]
            yield Entry(seq, len(batch), instants[0].as_py(), instants[-1].as_py(), start, end - start, crc32(message))
            seq += len(batch)
    except (pa.ArrowException, EOFError, OSError, ValueError, OverflowError):
        return


def _is_ours(batch: pa.RecordBatch, seq: int) -> bool:
    """Whether a batch without checksum is one that a writer made: zeros that a power loss left behind are none."""
    batch.validate(full=True)
    count = len(batch)
    return (
        count > 0
        and batch.column("seq").to_pylist() == list(range(seq, seq + count))
        and all(event in EVENTS for event in batch.column("event").unique().to_pylist())
        and not any(
            "\0" in text
            for name in ("path", "value", "peer", "detail")
            for text in batch.column(name).to_pylist()
            if text
        )
    )


def _remove(segment: Segment) -> None:
    segment.path.unlink()
    segment.index_path.unlink(missing_ok=True)


def _remove_lost_indexes(directory: Path, segments: list[Segment]) -> None:
    known = {segment.index_path for segment in segments}
    for path in directory.glob(f"*{INDEX}"):
        if path not in known:
            path.unlink(missing_ok=True)


def _drop_snapshots_after(directory: Path, last_seq: int) -> int:
    """Drop snapshots of what a power loss took; where they are all that is left, they tell the last seq."""
    if not last_seq:
        return max(snapshots.list_snapshots(directory), default=0)
    snapshots.drop_after(directory, last_seq)
    return last_seq
