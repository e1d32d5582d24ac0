"""Compaction: sealed segments become Parquet files by day, and old Parquet files go.

Three steps, and one of them is the moment it happens: write the Parquet files under names that nothing refers to yet;
replace the manifest, which names them; delete the segments that they replace. Killed before the second, it has not
happened, and the files are swept away by the next run; killed after it, the next run finishes the deleting. The
newest segment is left alone, sealed or not: the writer finds its place by it.

However often a journal is compacted, a day has few files: what is new is joined with the last file of its day as long
as that has room. The file that was joined stays until the next compaction, for those who have just begun with it.
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
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal import snapshots
from jetbus.journal.errors import JournalError, JournalInUse
from jetbus.journal.instants import US_PER_S, wall_clock_us
from jetbus.journal.manifest import Manifest, Span, read_manifest, write_manifest
from jetbus.journal.scan import Log, SegmentPiece
from jetbus.journal.segment import (
    DIRECTORY_MODE,
    SCHEMA,
    Segment,
    list_segments,
    open_private,
    seq_name,
    sync_directory,
)
from jetbus.journal.sieve import Sieve
from jetbus.journal.spans import SPAN_ROWS, read_span, write_span

FOLDER = "parquet"
LOCK = "compaction.lock"
TRIES_MAX = 10
"""How often a compaction begins again because what it reads is dropped meanwhile."""
_UNFINISHED = ".tmp"
_DAY_US = 86_400 * US_PER_S

OnStep = Callable[[str], None]
"""Told what was done last, for those who watch."""


@dataclass(frozen=True)
class Compacted:
    """What a compaction has done."""

    segments: int = 0
    files: int = 0
    joined: int = 0
    """Parquet files that are part of the new ones now."""
    events: int = 0
    """Those that were in segments."""
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True)
class Pruned:
    """What a pruning has dropped."""

    files: int = 0
    events: int = 0
    bytes: int = 0


def compact(directory: str | os.PathLike[str], *, on_step: OnStep | None = None) -> Compacted:
    """Turn all sealed segments but the newest into Parquet; again and again, it does only what is left to do.

    A writer may write and readers may read meanwhile. ``JournalInUse`` if the journal is being compacted already.
    """
    folder = Path(directory)
    tell = on_step or _nobody
    log = Log(folder)
    with _alone(folder):
        _forget_joined(folder)
        _sweep(folder, tell)
        for _ in range(TRIES_MAX):
            try:
                return _compact(log, tell)
            except FileNotFoundError:  # retention has dropped a segment under our feet: look again
                _sweep(folder, tell)
    raise JournalError(f"segments of {folder} are dropped faster than they are compacted; keep them longer")


def _compact(log: Log, tell: OnStep) -> Compacted:
    folder = log.directory
    manifest = read_manifest(folder)
    pieces = _sealed(log)
    if not pieces:
        return Compacted()
    joined, already = _with_room(folder, manifest.spans, pieces[0])
    fresh = (batch for piece in pieces for batch in piece.read(SCHEMA.names, Sieve()))
    spans = [_write(folder, table, tell) for table in _tables(chain(already, fresh))]
    snapshots.take_each(log, [span.last for span in spans])
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
    tell("committed")
    _sweep(folder, tell)
    return Compacted(
        segments=len(pieces),
        files=len(spans),
        joined=len(joined),
        events=sum(piece.last - piece.first + 1 for piece in pieces),
        bytes_before=sum(piece.bytes for piece in pieces) + sum(span.bytes for span in joined),
        bytes_after=sum(span.bytes for span in spans),
    )


def _with_room(folder: Path, spans: Sequence[Span], after: SegmentPiece) -> tuple[list[Span], list[Any]]:
    """The last spans that what comes after them can be joined with, and their events."""
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
        return found, [batch for span in found for batch in read_span(folder, span, SCHEMA.names, Sieve())]
    except JournalError:  # damage is for verify to tell, and no reason not to compact what is whole
        return [], []


def _forget_joined(folder: Path) -> None:
    """Whoever has begun with a file that was joined is through by now."""
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
    """Drop the oldest Parquet files: those with nothing younger than ``keep_s``, and as many as it takes to bring
    Parquet and segments together down to ``keep_bytes``. Segments stay; they are the writer's to drop.
    """
    folder = Path(directory)
    tell = on_step or _nobody
    oldest_us = None if keep_s is None else (wall_clock_us() if now_us is None else now_us) - round(keep_s * US_PER_S)
    log = Log(folder)
    with _alone(folder):
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
            snapshots.take_each(log, [gone[-1].last])
            tell("took a snapshot")
            write_manifest(folder, replace(manifest, spans=manifest.spans[dropped:]))
            tell("committed")
        _sweep(folder, tell)
        snapshots.drop_before(folder, log.view().first - 1)
    return Pruned(len(gone), sum(span.last - span.first + 1 for span in gone), sum(span.bytes for span in gone))


def _nobody(_step: str) -> None:
    pass


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process compacts or prunes a journal at a time; the lock goes with the process."""
    with open_private(folder / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalInUse(f"{folder} is being compacted by another process; try again when it is done") from None
        yield


def _sealed(log: Log) -> list[SegmentPiece]:
    """The segments to compact: those that follow each other without a gap, except the newest."""
    newest = max((segment.first_seq for segment in list_segments(log.directory)), default=0)
    follow: list[SegmentPiece] = []
    for piece in log.view().pieces:
        if not isinstance(piece, SegmentPiece):
            continue
        if piece.segment.first_seq >= newest or (follow and piece.first != follow[-1].last + 1):
            break
        follow.append(piece)
    return follow


def _tables(events: Iterable[Any]) -> Iterator[Any]:
    """The events in tables that fit a file: not too many, and of one day."""
    batches: list[Any] = []
    room = SPAN_ROWS
    for batch in chain.from_iterable(map(_by_day, events)):
        if batches and _day(batch, 0) != _day(batches[0], 0):
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


def _day(batch: Any, row: int) -> int:
    return int(batch.column("ts")[row].value) // _DAY_US


def _by_day(batch: Any) -> Iterator[Any]:
    """The batch cut where a day ends; time does not go back in a journal."""
    while batch.num_rows and _day(batch, 0) != _day(batch, batch.num_rows - 1):
        days = pc.divide(batch.column("ts").cast(pa.int64()), _DAY_US)
        count = pc.sum(pc.equal(days, days[0])).as_py()
        yield batch.slice(0, count)
        batch = batch.slice(count)
    if batch.num_rows:
        yield batch


def _write(folder: Path, table: Any, tell: OnStep) -> Span:
    first, last = table["seq"][0].as_py(), table["seq"][-1].as_py()
    ts_min_us, ts_max_us = table["ts"][0].value, table["ts"][-1].value
    day = datetime.fromtimestamp(ts_min_us // US_PER_S, UTC).date().isoformat()
    file = folder / FOLDER / f"day={day}" / f"{seq_name(first)}-{seq_name(last)}.parquet"
    for parent in (file.parent.parent, file.parent):
        parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    fresh = file.with_name(file.name + _UNFINISHED)
    open_private(fresh).close()
    write_span(fresh, table)
    with fresh.open("rb+") as written:
        os.fsync(written.fileno())
    tell(f"wrote {fresh.name}")
    fresh.replace(file)
    for parent in (file.parent, file.parent.parent, folder):
        sync_directory(parent)
    tell(f"wrote {file.name}")
    return Span(str(file.relative_to(folder)), first, last, ts_min_us, ts_max_us, file.stat().st_size)


def _sweep(folder: Path, tell: OnStep) -> None:
    """Delete what the manifest has no use for: replaced segments, files it does not name, snapshots within spans."""
    manifest = read_manifest(folder)
    for segment in _replaced(folder, manifest):
        segment.path.unlink(missing_ok=True)
        tell(f"deleted {segment.path.name}")
        segment.index_path.unlink(missing_ok=True)
        tell(f"deleted {segment.index_path.name}")
    # A span is read as a whole, so a snapshot within it is no short cut; one at its end is.
    ends = {seq for span in manifest.spans for seq in (span.first - 1, span.last)}
    snapshots.thin_out(folder, manifest.upto, {*ends, manifest.upto})
    named = {*(span.file for span in manifest.spans), *manifest.joined}
    for file in sorted((folder / FOLDER).glob("day=*/*")):
        if str(file.relative_to(folder)) not in named:
            file.unlink(missing_ok=True)
            tell(f"deleted {file.name}")
    for day in (folder / FOLDER).glob("day=*"):
        if not any(day.iterdir()):
            day.rmdir()


def _replaced(folder: Path, manifest: Manifest) -> list[Segment]:
    listed = [Segment(folder / name, int(Path(name).stem)) for name in manifest.replaced]
    found = [segment for segment in list_segments(folder) if segment.first_seq <= manifest.upto]
    return [segment for segment in dict.fromkeys([*listed, *found]) if segment.size_bytes]
