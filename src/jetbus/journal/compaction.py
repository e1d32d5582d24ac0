"""Compaction: sealed segments become Parquet files by day, and old Parquet files are dropped.

Readers must see one continuous log at every moment, and a crash at any point must cost nothing. So compaction has three
steps, and the second one is atomic:

    1. write   parquet/day=.../FIRST-LAST.parquet      nothing refers to these files yet
    2. commit  replace manifest.json, which names them  <-- the log now reads its old part from Parquet
    3. sweep   delete the segments they replace

Killed before step 2, nothing has happened, and the next run deletes the new files. Killed after it, the next run
finishes the deletion. The newest segment is never compacted, sealed or not, because the writer finds its place by it.

However often a journal is compacted, a day has few files: new events are joined with the last file of their day while
there is room. The old version of a joined file stays until the next compaction, for readers that have just opened it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal import snapshots
from jetbus.journal.filters import EventFilter
from jetbus.journal.index import find_late_us
from jetbus.journal.instants import US_PER_S, wall_clock_us
from jetbus.journal.journal_errors import JournalError, JournalInUse
from jetbus.journal.log import Log, SegmentPiece
from jetbus.journal.parquet import SPAN_ROWS, Manifest, Span, read_manifest, read_span, write_manifest, write_span
from jetbus.journal.segment import (
    DIRECTORY_MODE,
    SCHEMA,
    Segment,
    format_seq,
    list_segments,
    open_private,
    sync_directory,
)

FOLDER = "parquet"
LOCK = "compaction.lock"
TRIES_MAX = 10
"""Attempts before giving up on segments that retention drops during compaction."""
_UNFINISHED = ".tmp"
_DAY_US = 86_400 * US_PER_S

OnStep = Callable[[str], None]
"""Callback that receives a description of each completed step."""


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction."""

    segments: int = 0
    files: int = 0
    joined: int = 0
    """Older Parquet files that were joined into the new ones."""
    events: int = 0
    """Events that were in segments."""
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True)
class Pruned:
    """Result of pruning: the dropped files, events and bytes."""

    files: int = 0
    events: int = 0
    bytes: int = 0


def compact(directory: str | os.PathLike[str], *, on_step: OnStep | None = None) -> Compacted:
    """Turn all sealed segments but the newest into Parquet. Segments that are compacted already are left alone.

    A writer may write and readers may read meanwhile. Raises ``JournalInUse`` if a compaction is already running.
    """
    folder = Path(directory)
    report = on_step or _ignore_step
    log = Log(folder)
    with _hold_compaction_lock(folder):
        _drop_joined(folder)
        _sweep(folder, report)
        for _ in range(TRIES_MAX):
            try:
                return _compact(log, report)
            except FileNotFoundError:  # retention has dropped a segment meanwhile
                _sweep(folder, report)
    raise JournalError(f"segments of {folder} are dropped faster than they can be compacted; keep them longer")


def _compact(log: Log, report: OnStep) -> Compacted:
    folder = log.directory
    manifest = read_manifest(folder)
    pieces = _sealed(log)
    if not pieces:
        return Compacted()
    # Step 1: write. Nothing refers to these files yet.
    joined, already = _find_joinable(folder, manifest.spans, pieces[0])
    fresh = (batch for piece in pieces for batch in piece.read(SCHEMA.names, EventFilter()))
    spans = [_write(folder, table, report) for table in _split_into_tables(chain(already, fresh))]
    # A tree within a span is built from the snapshot before it, so every span ends with one.
    snapshots.write_missing(log, [span.last for span in spans])
    # Step 2: commit. Readers that list the log from now on use the spans instead of the segments.
    kept = manifest.spans[: len(manifest.spans) - len(joined)]
    write_manifest(
        folder,
        Manifest(
            upto=pieces[-1].last,
            spans=(*kept, *spans),
            replaced=tuple(piece.segment.path.name for piece in pieces),
            joined=tuple(span.file for span in joined),
        ),
    )
    report("committed")
    # Step 3: sweep.
    _sweep(folder, report)
    return Compacted(
        segments=len(pieces),
        files=len(spans),
        joined=len(joined),
        events=sum(piece.last - piece.first + 1 for piece in pieces),
        bytes_before=sum(piece.bytes for piece in pieces) + sum(span.bytes for span in joined),
        bytes_after=sum(span.bytes for span in spans),
    )


def _find_joinable(folder: Path, spans: Sequence[Span], after: SegmentPiece) -> tuple[list[Span], list[pa.RecordBatch]]:
    """Return the last spans that the following events can be joined with, and the events of these spans."""
    found: list[Span] = []
    first, day, room = after.first, after.ts_min_us // _DAY_US, 2 * SPAN_ROWS
    for span in reversed(spans):
        rows = span.last - span.first + 1
        room -= rows
        if rows >= SPAN_ROWS or room < 0 or span.last + 1 != first or span.ts_max_us // _DAY_US != day:
            break
        found.insert(0, span)
        first = span.first
    try:
        return found, [batch for span in found for batch in read_span(folder, span, SCHEMA.names, EventFilter())]
    except JournalError:  # verify reports damage; intact segments are compacted all the same
        return [], []


def _drop_joined(folder: Path) -> None:
    """Stop protecting the old versions of joined files from being swept."""
    manifest = read_manifest(folder)
    if manifest.joined:
        write_manifest(folder, replace(manifest, joined=()))


def prune(
    directory: str | os.PathLike[str],
    keep_s: float | None = None,
    keep_bytes: int | None = None,
    *,
    now_us: int | None = None,
    on_step: OnStep | None = None,
) -> Pruned:
    """Drop the oldest Parquet files: those with a last event older than ``keep_s``, and as many as it takes to bring
    Parquet files and segments together down to ``keep_bytes``. Segments stay; the writer drops them.
    """
    folder = Path(directory)
    report = on_step or _ignore_step
    oldest_us = None if keep_s is None else (wall_clock_us() if now_us is None else now_us) - round(keep_s * US_PER_S)
    log = Log(folder)
    with _hold_compaction_lock(folder):
        manifest = read_manifest(folder)
        size_bytes = sum(segment.size_bytes for segment in list_segments(folder))
        size_bytes += sum(span.bytes for span in manifest.spans)
        dropped = 0
        for span in manifest.spans:
            too_old = oldest_us is not None and span.ts_max_us < oldest_us
            too_much = keep_bytes is not None and size_bytes > keep_bytes
            if not too_old and not too_much:
                break
            size_bytes -= span.bytes
            dropped += 1
        gone = manifest.spans[:dropped]
        if gone:
            # The log will start after these files: without this snapshot the tree would be unknown there.
            snapshots.write_missing(log, [gone[-1].last])
            report("took a snapshot")
            write_manifest(folder, replace(manifest, spans=manifest.spans[dropped:]))
            report("committed")
        _sweep(folder, report)
        snapshots.drop_before(folder, log.view().first - 1)
    return Pruned(len(gone), sum(span.last - span.first + 1 for span in gone), sum(span.bytes for span in gone))


def _ignore_step(_step: str) -> None:
    pass


@contextmanager
def _hold_compaction_lock(folder: Path) -> Iterator[None]:
    """Lock the journal against other compactions; the lock ends with the process."""
    with open_private(folder / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse(f"{folder} is being compacted by another process; try again when it is done") from None
        yield


def _sealed(log: Log) -> list[SegmentPiece]:
    """Return the segments to compact: those that follow each other without a gap, except the newest."""
    newest = max((segment.first_seq for segment in list_segments(log.directory)), default=0)
    pieces: list[SegmentPiece] = []
    for piece in log.view().pieces:
        if not isinstance(piece, SegmentPiece):
            continue
        if piece.segment.first_seq >= newest or (pieces and piece.first != pieces[-1].last + 1):
            break
        pieces.append(piece)
    return pieces


def _split_into_tables(events: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Cut events into tables for one file each: at most ``SPAN_ROWS`` events, all of one day."""
    batches: list[pa.RecordBatch] = []
    room = SPAN_ROWS
    for batch in chain.from_iterable(map(_split_by_day, events)):
        if batches and _day_at(batch, 0) != _day_at(batches[0], 0):
            yield pa.Table.from_batches(batches)
            batches, room = [], SPAN_ROWS
        while batch.num_rows >= room:
            yield pa.Table.from_batches([*batches, batch.slice(0, room)])
            batch = batch.slice(room)
            batches, room = [], SPAN_ROWS
        if batch.num_rows:
            batches.append(batch)
            room -= batch.num_rows
    if batches:
        yield pa.Table.from_batches(batches)


def _day_at(batch: pa.RecordBatch, row: int) -> int:
    return int(batch.column("ts")[row].value) // _DAY_US


def _split_by_day(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch where a day ends; instants never go back in a journal."""
    while batch.num_rows and _day_at(batch, 0) != _day_at(batch, batch.num_rows - 1):
        days = pc.divide(batch.column("ts").cast(pa.int64()), _DAY_US)
        count = pc.sum(pc.equal(days, days[0])).as_py()
        yield batch.slice(0, count)
        batch = batch.slice(count)
    if batch.num_rows:
        yield batch


def _write(folder: Path, table: pa.Table, report: OnStep) -> Span:
    first, last = table["seq"][0].as_py(), table["seq"][-1].as_py()
    ts_min_us, ts_max_us = table["ts"][0].value, table["ts"][-1].value
    day = datetime.fromtimestamp(ts_min_us // US_PER_S, UTC).date().isoformat()
    file = folder / FOLDER / f"day={day}" / f"{format_seq(first)}-{format_seq(last)}.parquet"
    for parent in (file.parent.parent, file.parent):
        parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    fresh = file.with_name(file.name + _UNFINISHED)
    open_private(fresh).close()
    write_span(fresh, table)
    # Durable before it gets its name, so that no file under a final name is incomplete.
    with fresh.open("rb+") as written:
        os.fsync(written.fileno())
    report(f"wrote {fresh.name}")
    fresh.replace(file)
    for parent in (file.parent, file.parent.parent, folder):
        sync_directory(parent)
    report(f"wrote {file.name}")
    name, size_bytes = str(file.relative_to(folder)), file.stat().st_size
    return Span(name, first, last, ts_min_us, ts_max_us, size_bytes, *find_late_us(table))


def _sweep(folder: Path, report: OnStep) -> None:
    """Delete files that the manifest does not need: replaced segments, unnamed files, snapshots within spans."""
    manifest = read_manifest(folder)
    for segment in _list_replaced(folder, manifest):
        segment.path.unlink(missing_ok=True)
        report(f"deleted {segment.path.name}")
        segment.index_path.unlink(missing_ok=True)
        report(f"deleted {segment.index_path.name}")
    # A span is read as a whole, so a snapshot within it saves nothing; one at its end does.
    ends = {seq for span in manifest.spans for seq in (span.first - 1, span.last)}
    snapshots.thin_out(folder, manifest.upto, {*ends, manifest.upto})
    named = {*(span.file for span in manifest.spans), *manifest.joined}
    for file in sorted((folder / FOLDER).glob("day=*/*")):
        if str(file.relative_to(folder)) not in named:
            file.unlink(missing_ok=True)
            report(f"deleted {file.name}")
    for day in (folder / FOLDER).glob("day=*"):
        if not any(day.iterdir()):
            day.rmdir()


def _list_replaced(folder: Path, manifest: Manifest) -> list[Segment]:
    listed = [Segment(folder / name, int(Path(name).stem)) for name in manifest.replaced]
    found = [segment for segment in list_segments(folder) if segment.first_seq <= manifest.upto]
    return [segment for segment in dict.fromkeys([*listed, *found]) if segment.size_bytes]
