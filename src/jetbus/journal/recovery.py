"""Recovery: what a writer does before it goes on where another ended, however that one ended.

Only the last segment can be torn: a segment is begun after the one before is sealed. And it can be torn only if the
writer before did not close, and had not sealed it. Two cases follow.

**Torn.** Batches count as far as the index names them and their checksums are right, and whole batches after those as
far as Arrow finds nothing wrong with them and their seqs go on: neither a lost index nor a writer that was killed
between batch and index costs an event. What comes after is cut: it was never acknowledged.

**Damaged.** After a clean stop, in a sealed segment, or up to a seq that is known to have been committed, a batch that
cannot be read is damage. Nothing of it is cut: a batch that the index names stays in place, bytes that nothing names
are moved to ``damaged/``. Its seqs are never given again, and ``Recovered.lost`` tells them, so that the writer can
record a gap.
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
from jetbus.journal.buffers import BATCH_EVENTS_MAX
from jetbus.journal.index import Entry, pack, read_index
from jetbus.journal.manifest import read_manifest
from jetbus.journal.rebuild import complete_entries, is_sealed, read_all_batches, read_batches
from jetbus.journal.segment import (
    DIRECTORY_MODE,
    END_OF_STREAM,
    INDEX,
    SCHEMA_BYTES,
    Segment,
    list_segments,
    open_private,
    replace_file,
    sync_directory,
)

DAMAGED = "damaged"
"""The folder for bytes of a segment that cannot be read and that no index names."""

_log = logging.getLogger("jetbus.journal")


class Stretch(NamedTuple):
    """Consecutive events, by their first and last seq."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a writer found when it opened a journal."""

    last_seq: int = 0
    """The seq of the last event, 0 if there never was one."""
    last_ts_us: int = 0
    cut_bytes: int = 0
    """The size of the torn tail, which is gone."""
    damaged: int = 0
    """Batches of the last segment that are damaged."""
    clean: bool = True
    """Whether the writer before closed, or there was none."""
    lost: tuple[Stretch, ...] = ()
    """The events that were committed and cannot be read any more."""
    aside_bytes: int = 0
    """The size of what was moved to ``damaged/``."""


@dataclass(slots=True)
class _Findings:
    """What is found in the segments, from the last one backwards."""

    last_seq: int
    last_ts_us: int = 0
    cut_bytes: int = 0
    aside_bytes: int = 0
    damaged: int = 0
    lost: list[Stretch] = field(default_factory=list)


def recover(directory: Path, *, torn: bool = True, committed_seq: int = 0, clean: bool = False) -> Recovered:
    """Cut what is torn, seal what is whole and tell where to go on. The caller holds the lock.

    Without ``torn`` nothing can be torn. Events up to ``committed_seq`` are known to have been committed.
    """
    segments = list_segments(directory)
    committed_seq = max(committed_seq, _remove_lost_indexes(directory, segments))
    found = _Findings(max(read_manifest(directory).upto, segments[-1].first_seq - 1 if segments else 0))
    for segment, after in pairwise(segments):
        _complete_index(segment, after.first_seq)
    while segments:
        entries = _mend(segments.pop(), found, torn=torn, committed_seq=committed_seq)
        if entries:
            found.last_seq = max(found.last_seq, entries[-1].seq_last)
            found.last_ts_us = max(entry.ts_max_us for entry in entries)
            break
    if found.aside_bytes and not committed_seq:
        committed_seq = found.last_seq + BATCH_EVENTS_MAX  # nobody knows how many events they were
    if found.last_seq < committed_seq:
        found.lost.append(Stretch(found.last_seq + 1, committed_seq))
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


def _mend(segment: Segment, found: _Findings, *, torn: bool, committed_seq: int) -> list[Entry]:
    """Bring a last segment into order; one in which no event can be read is no part of the log any more."""
    with segment.path.open("r+b") as file:
        data = memoryview(file.read())
        named = read_index(segment.index_path)
        torn = torn and not _was_sealed(data)
        wrong = [not _is_right(entry, data) for entry in named]
        while torn and wrong and wrong[-1] and named[len(wrong) - 1].seq_last > committed_seq:
            wrong.pop()
        entries = named[: len(wrong)]
        if len(entries) == len(named):
            read = read_batches if torn else read_all_batches
            entries += read(data, segment.first_seq, entries)
        bad = [entry for entry in entries if not _is_right(entry, data)]
        found.damaged = len(bad)
        found.lost += [Stretch(entry.seq_first, entry.seq_last) for entry in bad]
        if not entries:
            _take_out(segment, data, found, torn=torn)
            return []
        end = entries[-1].end
        if not is_sealed(data, end):
            _seal(segment, file.fileno(), data, end, found, torn=torn)
        os.fsync(file.fileno())
    _write_index(segment, pack(entries))
    return entries


def _is_right(entry: Entry, data: memoryview) -> bool:
    return entry.end <= len(data) and crc32(data[entry.position : entry.end]) == entry.crc


def _seal(segment: Segment, descriptor: int, data: memoryview, end: int, found: _Findings, *, torn: bool) -> None:
    """End a segment after its last batch; what is there now is cut if it is torn, else it is kept."""
    rest = data[end:]
    if torn or END_OF_STREAM.startswith(rest):
        found.cut_bytes += len(rest)
    elif not _keep_aside(segment, end, rest, found):
        return  # it stays where it is: readers go by the index
    if end > len(data):
        return  # its last batch was cut short; an end mark would not make it whole
    os.ftruncate(descriptor, end)
    with contextlib.suppress(OSError):  # on a full disk it stays unsealed, and can be read as well
        os.pwrite(descriptor, END_OF_STREAM, end)


def _keep_aside(segment: Segment, position: int, rest: memoryview, found: _Findings) -> bool:
    """Copy bytes that cannot be read to ``damaged/``; whether that was possible."""
    folder = segment.path.parent / DAMAGED
    file = folder / f"{segment.path.stem}.{position}.bytes"
    try:
        folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        with open_private(file) as kept:
            kept.write(rest)
            kept.flush()
            os.fsync(kept.fileno())
        sync_directory(folder)
    except OSError as error:
        _log.error("%d bytes of %s cannot be read, and not be kept aside: %s", len(rest), segment.path, error)
        return False
    found.aside_bytes += len(rest)
    _log.error("%d bytes of %s cannot be read; they are kept in %s", len(rest), segment.path, file)
    return True


def _take_out(segment: Segment, data: memoryview, found: _Findings, *, torn: bool) -> None:
    """Remove a segment without any event; one whose events cannot be read is kept aside."""
    if torn:
        found.cut_bytes += len(data)
    elif not (SCHEMA_BYTES + END_OF_STREAM).startswith(bytes(data)) and not _keep_aside(segment, 0, data, found):
        raise OSError(f"{segment.path} cannot be read, and not be kept aside; make space, or move it away")
    segment.path.unlink()
    segment.index_path.unlink(missing_ok=True)


def _was_sealed(data: memoryview) -> bool:
    """Whether a segment ends with the end mark, which is written after its last batch."""
    return len(data) >= len(END_OF_STREAM) and data[-len(END_OF_STREAM) :] == END_OF_STREAM


def _write_index(segment: Segment, wanted: bytes) -> None:
    """Bring the index into order; cutting it needs no space on a full disk."""
    found = segment.index_path.read_bytes() if segment.index_path.exists() else b""
    if found == wanted:
        return
    if found.startswith(wanted):
        os.truncate(segment.index_path, len(wanted))
    else:
        replace_file(segment.index_path, wanted)


def _complete_index(segment: Segment, next_seq: int) -> None:
    """Make the index of a sealed segment anew where it was lost or cut. Readers can do without it meanwhile."""
    named = read_index(segment.index_path)
    entries = complete_entries(segment, named, next_seq)
    if len(entries) == len(named):
        return
    data = memoryview(segment.path.read_bytes())
    if all(_is_right(entry, data) for entry in entries[len(named) :]):
        _log.warning("the index of %s was incomplete and is made anew", segment.path)
        with contextlib.suppress(OSError):  # a full disk
            replace_file(segment.index_path, pack(entries))


def _remove_lost_indexes(directory: Path, segments: list[Segment]) -> int:
    """Remove every index without a segment; gives the last seq that one of them named."""
    known = {segment.index_path for segment in segments}
    last_seq = 0
    for path in directory.glob(f"*{INDEX}"):
        if path not in known:
            entries = read_index(path)
            last_seq = max(last_seq, entries[-1].seq_last if entries else 0)
            path.unlink(missing_ok=True)
    return last_seq


def _drop_snapshots_after(directory: Path, last_seq: int) -> int:
    """Drop snapshots of what a power loss took; where they are all that is left, they tell the last seq."""
    if not last_seq:
        return max(snapshots.list_snapshots(directory), default=0)
    snapshots.drop_after(directory, last_seq)
    return last_seq
