"""Recovery: a writer repairs the end of a journal before it continues where another writer ended, however that ended.

Only the last segment can be torn, because a segment is begun after the one before is sealed. And it can be torn only if
the previous writer neither closed the journal nor sealed that segment:

    segment   [batch 1-10][batch 11-20][batch 21-30][bat
    index      1-10        11-20
    result     kept        kept         kept         cut

**Torn.** Complete batches after those that the index names are kept if Arrow finds nothing wrong with them and their
seqs are consecutive, so neither a lost index nor a writer killed between batch and index costs an event. The rest is
cut; it was never acknowledged. After a power loss the index may be on disk before its batches. The file then ends
within the last of them, or has blocks of zeros: such records are cut, too.

**Damaged.** Any other batch that the index names was written, and its events may have been acknowledged. If it cannot
be read, that is damage, and nothing is deleted: the batch stays in place. So do, after a clean stop, in a sealed
segment, or up to a seq that is known to be committed, bytes that no record names; they are moved to ``damaged/``. The
seqs are never used again, and ``Recovered.lost`` lists them for the ``gap`` event that the writer records.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from jetbus.journal import snapshots
from jetbus.journal.batch import BATCH_EVENTS_MAX
from jetbus.journal.index import (
    IndexEntry,
    complete_entries,
    is_sealed,
    pack,
    read_all_batches,
    read_batches,
    read_index,
)
from jetbus.journal.journal_errors import JournalError
from jetbus.journal.parquet import read_manifest
from jetbus.journal.segment import (
    DIRECTORY_MODE,
    END_OF_STREAM,
    INDEX,
    PLAIN,
    STAMPED,
    Segment,
    list_segments,
    open_private,
    read_regular,
    replace_file,
    sync_directory,
)

DAMAGED = "damaged"
"""Folder for unreadable bytes of segments that no index record names."""

BLOCK_BYTES = 4096
"""Size of the blocks in which file systems write."""
ZEROS_MIN = 64
"""Zeros in the part of a block that count as unwritten. Batches are padded with fewer."""

_log = logging.getLogger("jetbus.journal")


class LostRange(NamedTuple):
    """Consecutive events that were lost, by their first and last seq."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """State of a journal after recovery."""

    last_seq: int = 0
    """Seq of the last event, 0 if there never was one."""
    last_ts_us: int = 0
    cut_bytes: int = 0
    """Size of the torn end, which was cut."""
    damaged: int = 0
    """Number of damaged batches in the last segment."""
    clean: bool = True
    """True if the previous writer closed the journal, or there was none."""
    lost: tuple[LostRange, ...] = ()
    """Events that were committed and cannot be read any more."""
    aside_bytes: int = 0
    """Number of bytes that were moved to ``damaged/``."""


@dataclass(slots=True)
class _RecoveryState:
    """Findings while the segments are repaired, from the last one backwards."""

    last_seq: int
    last_ts_us: int = 0
    cut_bytes: int = 0
    aside_bytes: int = 0
    damaged: int = 0
    lost: list[LostRange] = field(default_factory=list)


def recover(directory: Path, *, torn: bool = True, committed_seq: int = 0, clean: bool = False) -> Recovered:
    """Repair the end of a journal and return where to continue. The caller holds the lock.

    With ``torn`` false the end cannot be torn. Events up to ``committed_seq`` are known to have been committed.
    """
    segments = list_segments(directory)
    committed_seq = max(committed_seq, _remove_lost_indexes(directory, segments))
    found = _RecoveryState(max(read_manifest(directory).upto, segments[-1].first_seq - 1 if segments else 0))
    # All segments but the last are sealed; only their indexes can need repair.
    for segment, after in pairwise(segments):
        _complete_index(segment, after.first_seq)
    # A last segment without events is removed, and then the one before it is the last.
    while segments:
        entries = _repair_last_segment(segments.pop(), found, torn=torn, committed_seq=committed_seq)
        if entries:
            found.last_seq = max(found.last_seq, entries[-1].seq_last)
            found.last_ts_us = max(entry.ts_max_us for entry in entries)
            break
    # The number of events in bytes that were moved aside is unknown. Skip more seqs than a batch has.
    if found.aside_bytes and not committed_seq:
        committed_seq = found.last_seq + BATCH_EVENTS_MAX
    if found.last_seq < committed_seq:
        found.lost.append(LostRange(found.last_seq + 1, committed_seq))
        found.last_seq = committed_seq
    found.last_seq = _drop_snapshots_after(directory, found.last_seq)
    sync_directory(directory)
    return Recovered(
        found.last_seq,
        found.last_ts_us,
        found.cut_bytes,
        found.damaged,
        clean,
        tuple(found.lost),
        found.aside_bytes,
    )


def _repair_last_segment(
    segment: Segment, found: _RecoveryState, *, torn: bool, committed_seq: int
) -> list[IndexEntry]:
    """Repair and seal a segment, or remove it if it is without a readable event; return its index records."""
    with segment.path.open("r+b") as file:
        data = memoryview(file.read())
        named = read_index(segment.index_path)
        torn = torn and not _was_sealed(data)
        entries = list(named)
        while torn and entries and entries[-1].seq_last > committed_seq and _is_unwritten(entries[-1], data):
            entries.pop()
        # The index may also be behind: a writer was killed between batch and index, or the index was lost.
        if len(entries) == len(named):
            read = read_batches if torn else read_all_batches
            entries += read(data, segment.first_seq, entries)
        bad = [entry for entry in entries if not _is_intact(entry, data)]
        found.damaged = len(bad)
        found.lost += [LostRange(entry.seq_first, entry.seq_last) for entry in bad]
        if not entries:
            _remove_segment(segment, data, found, torn=torn)
            return []
        end = entries[-1].end
        if not is_sealed(data, end):
            _seal(segment, file.fileno(), data, end, found, torn=torn)
        # Durable before the index names it.
        os.fsync(file.fileno())
    _write_index(segment, pack(entries))
    return entries


def _is_intact(entry: IndexEntry, data: memoryview) -> bool:
    return entry.end <= len(data) and crc32(data[entry.position : entry.end]) == entry.crc


def _is_unwritten(entry: IndexEntry, data: memoryview) -> bool:
    """Return whether bytes of a batch never reached the disk: the file ends within them, or a block has only zeros."""
    if _is_intact(entry, data):
        return False
    if entry.end > len(data):
        return True
    blocks = range(entry.position // BLOCK_BYTES * BLOCK_BYTES, entry.end, BLOCK_BYTES)
    parts = (data[max(start, entry.position) : min(start + BLOCK_BYTES, entry.end)] for start in blocks)
    return any(len(part) >= ZEROS_MIN and not any(part) for part in parts)


def _seal(segment: Segment, descriptor: int, data: memoryview, end: int, found: _RecoveryState, *, torn: bool) -> None:
    """Write the end mark after the last batch; the rest of the file is cut if torn, else moved aside."""
    rest = data[end:]
    if torn or END_OF_STREAM.startswith(rest):
        found.cut_bytes += len(rest)
    elif not _move_aside(segment, end, rest, found):
        return  # it stays in place; readers use the index
    if end > len(data):
        return  # the last batch is incomplete; an end mark would not help
    os.ftruncate(descriptor, end)
    with contextlib.suppress(OSError):  # on a full disk it stays unsealed, which readers accept
        os.pwrite(descriptor, END_OF_STREAM, end)


def _move_aside(segment: Segment, position: int, rest: memoryview, found: _RecoveryState) -> bool:
    """Copy unreadable bytes to ``damaged/``; return whether that succeeded."""
    folder = segment.path.parent / DAMAGED
    file = folder / f"{segment.path.stem}.{position}.bytes"
    try:
        folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        with open_private(file) as saved:
            saved.write(rest)
            saved.flush()
            os.fsync(saved.fileno())
        sync_directory(folder)
    except OSError as error:
        _log.error("%s: cannot read %d bytes, and cannot copy them to %s: %s", segment.path, len(rest), file, error)
        return False
    found.aside_bytes += len(rest)
    _log.error("%s: cannot read %d bytes; they are saved in %s", segment.path, len(rest), file)
    return True


def _remove_segment(segment: Segment, data: memoryview, found: _RecoveryState, *, torn: bool) -> None:
    """Remove a segment without readable events; its bytes are moved aside unless it is empty or torn."""
    if torn:
        found.cut_bytes += len(data)
    elif not _is_empty_segment(bytes(data)) and not _move_aside(segment, 0, data, found):
        raise OSError(f"cannot read {segment.path} or copy it to {DAMAGED}/; free some space, or move the file away")
    segment.path.unlink()
    segment.index_path.unlink(missing_ok=True)


def _is_empty_segment(data: bytes) -> bool:
    """Return whether these are the first bytes of a segment without a batch."""
    return any((layout.schema_bytes + END_OF_STREAM).startswith(data) for layout in (PLAIN, STAMPED))


def _was_sealed(data: memoryview) -> bool:
    """Return whether a segment ends with the end mark."""
    return len(data) >= len(END_OF_STREAM) and data[-len(END_OF_STREAM) :] == END_OF_STREAM


def _write_index(segment: Segment, wanted: bytes) -> None:
    """Make an index file have these bytes; cutting it needs no space on a full disk."""
    try:
        found = read_regular(segment.index_path)
    except (FileNotFoundError, JournalError):
        found = b""
    if found == wanted:
        return
    if found.startswith(wanted):
        os.truncate(segment.index_path, len(wanted))
    else:
        replace_file(segment.index_path, wanted)


def _complete_index(segment: Segment, next_seq: int) -> None:
    """Rebuild the index of a sealed segment if it was lost or cut."""
    named = read_index(segment.index_path)
    entries = complete_entries(segment, named, next_seq)
    if len(entries) == len(named):
        return
    data = memoryview(read_regular(segment.path))
    if all(_is_intact(entry, data) for entry in entries[len(named) :]):
        _log.warning("%s: the index was incomplete and has been rebuilt", segment.path)
        with contextlib.suppress(OSError):  # a full disk
            replace_file(segment.index_path, pack(entries))


def _remove_lost_indexes(directory: Path, segments: list[Segment]) -> int:
    """Remove indexes without a segment; return the last seq that one of them names."""
    known = {segment.index_path for segment in segments}
    last_seq = 0
    for path in directory.glob(f"*{INDEX}"):
        if path not in known:
            entries = read_index(path)
            last_seq = max(last_seq, entries[-1].seq_last if entries else 0)
            path.unlink(missing_ok=True)
    return last_seq


def _drop_snapshots_after(directory: Path, last_seq: int) -> int:
    """Drop snapshots after the last event; if no event is left, return the seq of the last snapshot."""
    if not last_seq:
        return max(snapshots.list_snapshots(directory), default=0)
    snapshots.drop_after(directory, last_seq)
    return last_seq
