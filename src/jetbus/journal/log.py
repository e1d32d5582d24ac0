r"""The log in one directory: its files, their order, and the events in order of seq.

A log is stored in pieces: Parquet files ("spans") up to the seq in the manifest, then segments, of which only the
batches named by the index count:

    seq    1 ............. 5000 | 5001 ...... 8000 | 8001 ..... 9100
           span  span  span     | sealed segment   | growing segment
           \__ manifest.upto __/

A **view** is the list of pieces at one moment; taking one needs no lock. Files of a view can disappear before they are
read, because compaction has moved their events or retention has dropped them. A reader that misses a file takes a new
view, which tells the two cases apart. So it sees every event once and in order, or gets ``JournalGone``, which says
that the next event does not exist any more.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Protocol
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.directory import read_identity
from jetbus.journal.expansion import BATCH_BYTES_MAX, measure_batch
from jetbus.journal.filters import EVERYTHING, EventFilter, Instants, LogRange
from jetbus.journal.index import PARSED_INDEXES, IndexEntry, complete_entries
from jetbus.journal.instants import Instant, read_instant, wall_clock_us
from jetbus.journal.journal_errors import JournalDamaged, JournalError, JournalGone
from jetbus.journal.parquet import Manifest, Span, read_manifest, read_manifest_mark, read_span
from jetbus.journal.segment import (
    SCHEMA_BYTES_MAX,
    Layout,
    Segment,
    fill_columns,
    find_layout,
    list_segments,
    locate_segment,
    open_regular,
)

RUN_BYTES = 4 << 20
"""Bytes of a segment that are read at once, unless a single batch is larger."""
SMALL_ROWS = 4096
"""Rows below which batches are joined before they are filtered and passed on."""
JOINED_BYTES = 4 << 20
"""Bytes from which on batches are not joined, however few rows they have."""
VIEWS_MAX = 1000
"""Views that are taken in a row before giving up on a journal with files that keep changing."""

OnLoss = Callable[[JournalDamaged | JournalGone], None]
"""Callback that receives the error for events that cannot be read."""


class Piece(Instants, Protocol):
    """A part of the log in one file: a span or a segment."""

    first: int
    last: int
    bytes: int

    def read(self, columns: list[str], event_filter: EventFilter) -> Generator[pa.RecordBatch]:
        """Yield the wanted events in order of seq; raise FileNotFoundError before the first if the file is gone."""


class SpanPiece:
    """A Parquet file of the log."""

    def __init__(self, directory: Path, span: Span) -> None:
        self._directory = directory
        self.span = span
        self.first, self.last = span.first, span.last
        self.ts_min_us, self.ts_max_us = span.ts_min_us, span.ts_max_us
        self.late_min_us, self.late_max_us = span.late_min_us, span.late_max_us
        self.bytes = span.bytes

    def read(self, columns: list[str], event_filter: EventFilter) -> Generator[pa.RecordBatch]:
        return read_span(self._directory, self.span, columns, event_filter)


class SegmentPiece:
    """A segment, as far as its index names its batches."""

    def __init__(self, segment: Segment, entries: list[IndexEntry], *, is_rebuilt: bool) -> None:
        self.segment = segment
        self._count = len(entries)
        self._rebuilt = entries if is_rebuilt else None
        """Records that are not in the index file; all others are kept by ``PARSED_INDEXES``."""
        self.first, self.last = entries[0].seq_first, entries[-1].seq_last
        self.ts_min_us, self.ts_max_us = entries[0].ts_min_us, entries[-1].ts_max_us
        self.bytes = entries[-1].end

    @property
    def late_min_us(self) -> int:
        return self._late_us[0]

    @property
    def late_max_us(self) -> int:
        return self._late_us[1]

    @cached_property
    def _late_us(self) -> tuple[int, int]:
        # Only queries for late values ask, and a growing segment has a new piece each time.
        entries = self.entries
        return min(entry.late_min_us for entry in entries), max(entry.late_max_us for entry in entries)

    @property
    def entries(self) -> list[IndexEntry]:
        """The records of the batches; raises FileNotFoundError if the segment is gone."""
        if self._rebuilt is not None:
            return self._rebuilt
        entries = PARSED_INDEXES.read(self.segment.index_path)
        if len(entries) < self._count:  # the index was lost meanwhile
            entries = complete_entries(self.segment, entries, self.last + 1)
            if len(entries) < self._count:
                raise FileNotFoundError(self.segment.index_path)
            self._rebuilt = entries[: self._count]
        return entries if len(entries) == self._count else entries[: self._count]

    def read(self, columns: list[str], event_filter: EventFilter) -> Generator[pa.RecordBatch]:
        with open_regular(self.segment.path) as file:
            layout = find_layout(file.read(SCHEMA_BYTES_MAX))
            for run in _group_entries(self._touched(event_filter.within)):
                begin, end = run[0], run[-1]
                # The index proves that all events are in range, so their rows need not be compared.
                within, ends = event_filter.within, run if event_filter.within.is_late else (begin, end)
                whole = all(within.holds(begin.seq_first, end.seq_last, entry) for entry in ends)
                wanted = event_filter.with_range(EVERYTHING) if whole else event_filter
                yield from _join_small(_read_run(file.fileno(), self.segment.path, layout, run, columns, wanted))

    def _touched(self, within: LogRange) -> list[IndexEntry]:
        # By bisection first: a segment has thousands of batches, and a reader often wants the last few.
        entries = self.entries
        begin = max(0, bisect_right(entries, within.seq, key=lambda entry: entry.seq_first) - 1)
        end = bisect_right(entries, within.seq_until - 1, key=lambda entry: entry.seq_first)
        return [entry for entry in entries[begin:end] if within.touches(entry.seq_first, entry.seq_last, entry)]


def _group_entries(entries: list[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Yield groups of adjacent entries that are read at once."""
    run: list[IndexEntry] = []
    for entry in entries:
        if run and (entry.position != run[-1].end or entry.end - run[0].position > RUN_BYTES):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _read_run(
    descriptor: int,
    path: Path,
    layout: Layout,
    run: list[IndexEntry],
    columns: list[str],
    event_filter: EventFilter,
) -> Iterator[pa.RecordBatch]:
    data = read_entries(descriptor, path, layout, run)
    begin = len(layout.schema_bytes) - run[0].position
    first, then = event_filter.first_columns, [*dict.fromkeys([*columns, *event_filter.columns])]
    if not first or _has_small_batches(run):
        # A small batch costs more than its rows, so small ones are filtered together.
        for batch in _join_small(_open_stream(data, layout, then, threads=not _has_small_batches(run))):
            selected = event_filter.select_rows(batch, event_filter.mask_by_first_columns(batch))
            yield fill_columns(selected, columns)
        return
    # Two readers over the same bytes: one decodes the columns that decide, the other skips to batches with a match.
    source = pa.BufferReader(data)
    whole = _open_stream(source, layout, then)
    for entry, part in zip(run, _open_stream(data, layout, first), strict=True):
        mask = event_filter.mask_by_first_columns(part)
        if mask is None or mask.true_count:
            source.seek(begin + entry.position)
            yield fill_columns(event_filter.select_rows(whole.read_next_batch(), mask), columns)


def _has_small_batches(run: list[IndexEntry]) -> bool:
    return run[-1].seq_last - run[0].seq_first < SMALL_ROWS // 4 * len(run)


def read_entries(descriptor: int, path: Path, layout: Layout, run: list[IndexEntry]) -> pa.Buffer:
    """Return adjacent batches as an Arrow stream, after verifying their checksums."""
    begin, end = run[0].position, min(run[-1].end, os.fstat(descriptor).st_size)
    head = layout.schema_bytes
    data = bytearray(len(head) + max(end - begin, 0))
    data[: len(head)] = head
    view = memoryview(data)[len(head) :]
    got = 0
    while got < len(view) and (count := os.preadv(descriptor, [view[got:]], begin + got)):
        got += count
    for entry in run:
        message = view[entry.position - begin : entry.end - begin]
        if crc32(message) != entry.crc:
            raise _make_damage_error(path, entry, "is damaged")
        if _measure(message) > BATCH_BYTES_MAX:
            raise _make_damage_error(path, entry, f"has a batch that expands to more than {BATCH_BYTES_MAX} bytes")
    return pa.py_buffer(data)


def _measure(message: memoryview) -> float:
    try:
        return measure_batch(message)
    except ValueError:
        return inf


def _make_damage_error(path: Path, entry: IndexEntry, what: str) -> JournalDamaged:
    return JournalDamaged(
        f"{path} {what} at byte {entry.position} (events {entry.seq_first} to {entry.seq_last});"
        " restore it from a backup, or continue with the next event",
        next_seq=entry.seq_last + 1,
    )


def _open_stream(
    source: pa.Buffer | pa.BufferReader, layout: Layout, columns: list[str], *, threads: bool = True
) -> pa.RecordBatchReader:
    """Return a stream reader that decodes only these columns, as far as the layout has them."""
    found = {layout.schema.get_field_index(name) for name in columns}
    fields = sorted(found - {-1}) or [0]  # an empty list would mean all of them
    several = threads and len(fields) > 1 and pa.cpu_count() > 1
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=several)
    return pa.ipc.open_stream(source, options=options)


def _join_small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches that have rows, joining small neighbours."""
    small: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if batch.num_rows >= SMALL_ROWS and not small:
            yield batch
            continue
        small.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= SMALL_ROWS or size_bytes >= JOINED_BYTES:
            yield pa.concat_batches(small)
            small, rows, size_bytes = [], 0, 0
    if small:
        yield pa.concat_batches(small)


@dataclass(frozen=True)
class LogView:
    """The pieces of the log at one moment, oldest first."""

    pieces: tuple[SpanPiece | SegmentPiece, ...]

    @property
    def first(self) -> int:
        """The first seq; 1 if the log is empty."""
        return self.pieces[0].first if self.pieces else 1

    @property
    def last(self) -> int:
        """The last seq; 0 if the log is empty."""
        return self.pieces[-1].last if self.pieces else 0

    @cached_property
    def holes(self) -> frozenset[int]:
        """The first seqs of pieces that do not follow the piece before them."""
        return frozenset(after.first for before, after in pairwise(self.pieces) if after.first != before.last + 1)

    def piece_from(self, seq: int) -> SpanPiece | SegmentPiece | None:
        """Return the first piece with events from this seq on."""
        at = bisect_right(self.pieces, seq - 1, key=lambda piece: piece.last)
        return self.pieces[at] if at < len(self.pieces) else None

    def piece_before(self, first: int) -> SpanPiece | SegmentPiece:
        """Return the piece before the one that starts with a seq; there must be one."""
        return self.pieces[bisect_right(self.pieces, first - 1, key=lambda piece: piece.last) - 1]


class Cursor:
    """Position of a reader: the next seq, and whether an event with exactly that seq must exist."""

    def __init__(self, next_seq: int, *, strict: bool) -> None:
        self.next_seq = next_seq
        self.strict = strict


class Log:
    """The log of one journal; several threads may read it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()
        """Held while a view is taken, which renews the knowledge of the files."""
        self.identity = read_identity(directory)
        self._manifest_mark: tuple[int, int, int] | None = None
        self._manifest = Manifest()
        self._spans: list[SpanPiece] = []
        self._sealed: dict[int, SegmentPiece] = {}

    def view(self) -> LogView:
        """Return the present pieces of the log."""
        with self._lock:
            return self._view()

    def _view(self) -> LogView:
        for _ in range(VIEWS_MAX):
            mark = read_manifest_mark(self.directory)
            if mark != self._manifest_mark:
                self._manifest_mark, self._manifest = mark, read_manifest(self.directory)
                self._spans = [SpanPiece(self.directory, span) for span in self._manifest.spans]
            # A compaction may have been committed without deleting its segments yet: the manifest decides.
            upto = self._manifest.upto
            segments = [one for one in list_segments(self.directory) if one.first_seq > upto]
            pieces: list[SpanPiece | SegmentPiece] = [*self._spans]
            for segment, after in pairwise([*segments, None]):
                ts_us = pieces[-1].ts_max_us if pieces else 0
                if segment is not None and (piece := self._piece(segment, after, ts_us)) is not None:
                    pieces.append(piece)
            # If the manifest was replaced meanwhile, spans and segments may overlap or leave a hole: list again.
            if read_manifest_mark(self.directory) == mark:
                present = {segment.first_seq for segment in segments}
                self._sealed = {first: piece for first, piece in self._sealed.items() if first in present}
                return LogView(tuple(pieces))
        raise JournalError(f"files of {self.directory} change faster than they can be listed; compact it less often")

    def _piece(self, segment: Segment, after: Segment | None, ts_us: int) -> SegmentPiece | None:
        """Return a segment as its index describes it now, rebuilding a lost index; None if it has no events."""
        # Sealed segments never change, so each is looked at once.
        if (known := self._sealed.get(segment.first_seq)) is not None:
            return known
        entries = PARSED_INDEXES.read(segment.index_path)
        whole = complete_entries(segment, entries, None if after is None else after.first_seq, ts_us)
        if not whole:
            return None
        piece = SegmentPiece(segment, whole, is_rebuilt=whole is not entries)
        if after is not None:
            self._sealed[segment.first_seq] = piece
        return piece

    def read(
        self,
        cursor: Cursor,
        columns: list[str],
        event_filter: EventFilter,
        on_loss: OnLoss | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted events from the cursor up to the present end of the log, moving the cursor.

        Events that cannot be read raise an error; with ``on_loss`` they are passed over, and it gets the error.
        """
        seq_until = event_filter.within.seq_until
        missing = ""
        passed_us: int | None = None
        holes: frozenset[int] = frozenset()
        for _ in range(VIEWS_MAX):
            view = self.view()
            # Only events that exist now are read: a reader of a busy journal comes to an end.
            seq_until = min(seq_until, view.last + 1)
            try:
                while cursor.next_seq < seq_until and (piece := view.piece_from(cursor.next_seq)):
                    # A hole before the first event that was asked for is normal after retention. Later it is an error.
                    if piece.first > cursor.next_seq and (
                        cursor.strict or _skips_events(event_filter.within, cursor.next_seq, passed_us, piece)
                    ):
                        # Retention may drop files while they are listed: a hole has to be there twice.
                        if piece.first in view.holes and piece.first not in holes:
                            holes = view.holes
                            break
                        _report(self._make_hole_error(view, cursor.next_seq, piece.first), on_loss)
                    if piece.first >= seq_until:
                        return
                    try:
                        yield from self._read_piece(piece, cursor, columns, event_filter)
                    except JournalDamaged as damage:
                        _report(damage, on_loss)
                        cursor.next_seq = damage.next_seq
                    passed_us = piece.ts_max_us
                else:
                    return
            except FileNotFoundError as error:
                # A file that is missing in two views in a row was neither compacted nor dropped.
                if str(error) == missing:
                    raise JournalError(f"{self.directory} misses a file: {error}; restore it from a backup") from None
                missing = str(error)
        raise self._make_outrun_error()

    @staticmethod
    def _read_piece(
        piece: Piece, cursor: Cursor, columns: list[str], event_filter: EventFilter
    ) -> Iterator[pa.RecordBatch]:
        within = replace(event_filter.within, seq=max(event_filter.within.seq, cursor.next_seq))
        if within.touches(piece.first, piece.last, piece):
            with closing(piece.read(columns, event_filter.with_range(within))) as batches:
                for batch in batches:
                    cursor.strict = True
                    yield batch
            cursor.strict = True
        cursor.next_seq = piece.last + 1

    def _make_outrun_error(self) -> JournalError:
        return JournalError(f"files of {self.directory} are dropped faster than they can be read; keep them longer")

    def _make_hole_error(self, view: LogView, seq: int, first: int) -> JournalDamaged | JournalGone:
        """Return the error for a reader that misses the events before the piece that starts with ``first``."""
        if first not in view.holes:
            text = f"event {seq} of {self.directory} is gone: retention has dropped it; the next event has seq {first}"
            return JournalGone(text, first_seq=first)
        lost = locate_segment(self.directory, view.piece_before(first).last + 1)
        return JournalDamaged(
            f"events {seq} to {first - 1} of {self.directory} are missing: {lost.path.name} is not there;"
            f" restore it from a backup, or continue with event {first}",
            next_seq=first,
        )

    def find_span(self, instant_us: int) -> SpanPiece | None:
        """Return the Parquet file that has events before and after an instant, if there is one."""
        pieces = self.view().pieces
        at = bisect_right(pieces, instant_us, key=lambda piece: piece.ts_min_us) - 1
        piece = pieces[at] if at >= 0 else None
        return piece if isinstance(piece, SpanPiece) and piece.ts_max_us > instant_us else None

    def instant_us(self, instant: Instant) -> int:
        """Return an instant in microseconds; "now" is never before the last event."""
        if not isinstance(instant, str):
            return read_instant(instant)
        pieces = self.view().pieces
        return read_instant(instant, max(wall_clock_us(), pieces[-1].ts_max_us if pieces else 0))

    def seq_at(self, instant_us: int) -> int:
        """Return the last seq of the events up to an instant; the seq before the first if there is none."""
        for _ in range(VIEWS_MAX):
            view = self.view()
            at = bisect_right(view.pieces, instant_us, key=lambda piece: piece.ts_min_us) - 1
            if at < 0:
                return view.first - 1
            piece = view.pieces[at]
            if piece.ts_max_us <= instant_us:
                return piece.last
            try:
                return _find_seq(piece, instant_us)
            except FileNotFoundError:
                continue
        raise self._make_outrun_error()


def _report(loss: JournalDamaged | JournalGone, on_loss: OnLoss | None) -> None:
    """Pass a loss on, or raise it if the reader does not accept losses."""
    if on_loss is None:
        raise loss
    on_loss(loss)


def _skips_events(within: LogRange, seq: int, passed_us: int | None, piece: Piece) -> bool:
    """Return whether events of a range may be missing between a seq and the next piece."""
    if passed_us is None:
        return False
    # Nobody knows of which time the values of the past in a hole were; those that came in the range count.
    hole = IndexEntry(seq, piece.first - seq, passed_us, piece.ts_min_us, 0, 0, 0, passed_us, piece.ts_min_us)
    return within.touches(hole.seq_first, hole.seq_last, hole)


def _find_seq(piece: SpanPiece | SegmentPiece, instant_us: int) -> int:
    """Return the last seq in a piece of the events up to an instant within that piece."""
    since_us = piece.ts_min_us
    if isinstance(piece, SegmentPiece):
        entries = piece.entries
        since_us = entries[bisect_right(entries, instant_us, key=lambda entry: entry.ts_min_us) - 1].ts_min_us
    event_filter = EventFilter(within=LogRange(since_us=since_us, until_us=instant_us + 1))
    return max(int(pc.max(batch.column("seq")).as_py()) for batch in piece.read(["seq"], event_filter))
