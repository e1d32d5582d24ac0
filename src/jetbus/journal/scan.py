"""One directory as one log: what there is, where it is, and its events in order of seq.

A **view** is what the log consists of at one moment: spans in Parquet up to the seq of the manifest, then segments, of
which only the batches count that the index names. Taking one needs no lock. Files of a view can vanish before they are
read, because compaction has moved the events or retention has dropped them: then a new view says which it was. So a
reader sees every event once and in order, or is told with ``JournalGone`` that what comes next is no longer there.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.errors import JournalDamaged, JournalError, JournalGone
from jetbus.journal.identity import read_identity
from jetbus.journal.index import RECORD_BYTES, Entry, read_index
from jetbus.journal.instants import Instant, read_instant, wall_clock_us
from jetbus.journal.manifest import Manifest, Span, manifest_mark, read_manifest
from jetbus.journal.rebuild import complete_entries
from jetbus.journal.segment import SCHEMA, SCHEMA_BYTES, Segment, list_segments
from jetbus.journal.sieve import EVERYTHING, Range, Sieve
from jetbus.journal.spans import read_span

RUN_BYTES = 4 << 20
"""Bytes of a segment that are read at once, unless one batch has more."""
SMALL_ROWS = 4096
"""Batches smaller than this are joined before they are tested and handed on."""
VIEWS_MAX = 1000
"""Views that are taken in vain, one after the other, before giving up on a journal that does not hold still."""


class Piece(Protocol):
    """A part of the log that is read in one go: a span or a segment."""

    first: int
    last: int
    ts_min_us: int
    ts_max_us: int
    bytes: int

    def read(self, columns: list[str], sieve: Sieve) -> Generator[Any]:
        """The wanted events in order of seq; FileNotFoundError, before any, if the file is gone."""


class SpanPiece:
    """A Parquet file."""

    def __init__(self, directory: Path, span: Span) -> None:
        self._directory = directory
        self.span = span
        self.first, self.last = span.first, span.last
        self.ts_min_us, self.ts_max_us = span.ts_min_us, span.ts_max_us
        self.bytes = span.bytes

    def read(self, columns: list[str], sieve: Sieve) -> Generator[Any]:
        return read_span(self._directory, self.span, columns, sieve)


class SegmentPiece:
    """The batches of a segment that its index names."""

    def __init__(self, segment: Segment, entries: list[Entry]) -> None:
        self.segment = segment
        self.entries = entries
        self.first, self.last = entries[0].seq_first, entries[-1].seq_last
        self.ts_min_us, self.ts_max_us = entries[0].ts_min_us, entries[-1].ts_max_us
        self.bytes = entries[-1].end

    def read(self, columns: list[str], sieve: Sieve) -> Generator[Any]:
        with self.segment.path.open("rb", buffering=0) as file:
            for run in _runs(self._touched(sieve.within)):
                begin, end = run[0], run[-1]
                whole = sieve.within.holds(begin.seq_first, end.seq_last, begin.ts_min_us, end.ts_max_us)
                wanted = sieve.moved(EVERYTHING) if whole else sieve
                yield from _joined(_read_run(file.fileno(), self.segment.path, run, columns, wanted))

    def _touched(self, within: Range) -> list[Entry]:
        begin = max(0, bisect_right(self.entries, within.seq, key=lambda entry: entry.seq_first) - 1)
        end = bisect_right(self.entries, within.seq_until - 1, key=lambda entry: entry.seq_first)
        return [
            entry
            for entry in self.entries[begin:end]
            if within.touches(entry.seq_first, entry.seq_last, entry.ts_min_us, entry.ts_max_us)
        ]


def _runs(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Entries that lie side by side, in groups that are read at once."""
    run: list[Entry] = []
    for entry in entries:
        if run and (entry.position != run[-1].end or entry.end - run[0].position > RUN_BYTES):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _read_run(descriptor: int, path: Path, run: list[Entry], columns: list[str], sieve: Sieve) -> Iterator[Any]:
    data = read_entries(descriptor, path, run)
    begin = len(SCHEMA_BYTES) - run[0].position
    first, then = sieve.first_columns, [*dict.fromkeys([*columns, *sieve.columns])]
    if not first or _are_small(run):
        # Of small batches each costs more than its rows: they are tested together.
        for batch in _joined(_stream(data, then, threads=not _are_small(run))):
            yield sieve.keep(batch, sieve.first_mask(batch)).select(columns)
        return
    source = pa.BufferReader(data)
    whole = _stream(source, then)
    for entry, part in zip(run, _stream(data, first), strict=True):
        mask = sieve.first_mask(part)
        if mask.true_count:
            source.seek(begin + entry.position)
            yield sieve.keep(whole.read_next_batch(), mask).select(columns)


def _are_small(run: list[Entry]) -> bool:
    return run[-1].seq_last - run[0].seq_first < SMALL_ROWS // 4 * len(run)


def read_entries(descriptor: int, path: Path, run: list[Entry]) -> Any:
    """The bytes of batches that lie side by side as a stream of their own; every one is checked."""
    begin, end = run[0].position, run[-1].end
    data = bytearray(len(SCHEMA_BYTES) + end - begin)
    data[: len(SCHEMA_BYTES)] = SCHEMA_BYTES
    view = memoryview(data)[len(SCHEMA_BYTES) :]
    got = 0
    while got < len(view) and (count := os.preadv(descriptor, [view[got:]], begin + got)):
        got += count
    for entry in run:
        if crc32(view[entry.position - begin : entry.end - begin]) != entry.crc:
            raise JournalDamaged(
                f"{path} is damaged at byte {entry.position} (events {entry.seq_first} to {entry.seq_last}):"
                " restore it from a backup, or read from the next event on",
                next_seq=entry.seq_last + 1,
            )
    return pa.py_buffer(data)


def _stream(source: Any, columns: list[str], *, threads: bool = True) -> Any:
    """A reader that decodes only these columns."""
    fields = sorted(SCHEMA.get_field_index(name) for name in columns)
    several = threads and len(fields) > 1 and pa.cpu_count() > 1
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=several)
    return pa.ipc.open_stream(source, options=options)


def _joined(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches that have rows, small ones joined with their neighbours."""
    small: list[Any] = []
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if batch.num_rows >= SMALL_ROWS and not small:
            yield batch
            continue
        small.append(batch)
        rows += batch.num_rows
        if rows >= SMALL_ROWS:
            yield pa.concat_batches(small)
            small, rows = [], 0
    if small:
        yield pa.concat_batches(small)


@dataclass(frozen=True)
class View:
    """What the log consists of at one moment, oldest first."""

    pieces: tuple[SpanPiece | SegmentPiece, ...]

    @property
    def first(self) -> int:
        """The first seq there is; 1 while there is nothing."""
        return self.pieces[0].first if self.pieces else 1

    @property
    def last(self) -> int:
        """The last seq there is; 0 while there is nothing."""
        return self.pieces[-1].last if self.pieces else 0

    def piece_from(self, seq: int) -> SpanPiece | SegmentPiece | None:
        """The first piece with events from this seq on."""
        at = bisect_right(self.pieces, seq - 1, key=lambda piece: piece.last)
        return self.pieces[at] if at < len(self.pieces) else None


class Cursor:
    """How far a reader has come: the next seq it wants, and whether it insists on exactly that one."""

    def __init__(self, next_seq: int, *, strict: bool) -> None:
        self.next_seq = next_seq
        self.strict = strict


class Log:
    """The log in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.identity = read_identity(directory)
        self._mark: tuple[int, int, int] | None = None
        self._manifest = Manifest()
        self._spans: list[SpanPiece] = []
        self._sealed: dict[int, SegmentPiece] = {}
        self._growing: SegmentPiece | None = None

    def view(self) -> View:
        """The log as it is now."""
        for _ in range(VIEWS_MAX):
            mark = manifest_mark(self.directory)
            if mark != self._mark:
                self._mark, self._manifest = mark, read_manifest(self.directory)
                self._spans = [SpanPiece(self.directory, span) for span in self._manifest.spans]
            upto = self._manifest.upto
            segments = [one for one in list_segments(self.directory) if one.first_seq > upto]
            pieces: list[SpanPiece | SegmentPiece] = [*self._spans]
            for segment, after in pairwise([*segments, None]):
                ts_us = pieces[-1].ts_max_us if pieces else 0
                if segment is not None and (piece := self._piece(segment, after, ts_us)) is not None:
                    pieces.append(piece)
            if manifest_mark(self.directory) == mark:
                kept = {segment.first_seq for segment in segments}
                self._sealed = {first: piece for first, piece in self._sealed.items() if first in kept}
                return View(tuple(pieces))
        raise JournalError(f"{self.directory} does not hold still: compact it less often")

    def _piece(self, segment: Segment, after: Segment | None, ts_us: int) -> SegmentPiece | None:
        """The segment as its index has it now; sealed ones are looked at once. An index that is lost is made anew."""
        if (known := self._sealed.get(segment.first_seq)) is not None:
            return known
        entries = self._entries(segment)
        whole = complete_entries(segment, entries, None if after is None else after.first_seq, ts_us)
        if not whole:
            return None
        piece = SegmentPiece(segment, whole)
        if after is None:
            self._growing = piece if whole is entries else None
        else:
            self._sealed[segment.first_seq] = piece
        return piece

    def _entries(self, segment: Segment) -> list[Entry]:
        growing = self._growing
        if growing is not None and growing.segment == segment:
            known = growing.entries
            try:
                size_bytes = segment.index_path.stat().st_size
            except FileNotFoundError:
                return []
            if size_bytes < len(known) * RECORD_BYTES:  # a restarted writer has cut it
                return read_index(segment.index_path)
            if size_bytes < (len(known) + 1) * RECORD_BYTES:
                return known
            fresh = read_index(segment.index_path, skip=len(known))
            if fresh and fresh[0].position == known[-1].end:
                return known + fresh
        return read_index(segment.index_path)

    def read(self, cursor: Cursor, columns: list[str], sieve: Sieve) -> Iterator[Any]:
        """The wanted events from the cursor on, up to what is there now. The cursor moves on with what is done."""
        seq_until = sieve.within.seq_until
        missing = ""
        passed_us: int | None = None
        for _ in range(VIEWS_MAX):
            view = self.view()
            seq_until = min(seq_until, view.last + 1)
            try:
                while cursor.next_seq < seq_until and (piece := view.piece_from(cursor.next_seq)):
                    if piece.first > cursor.next_seq and (
                        cursor.strict or _misses(sieve.within, cursor.next_seq, passed_us, piece)
                    ):
                        raise self.gone(cursor.next_seq, piece.first)
                    if piece.first >= seq_until:
                        break
                    yield from self._read_piece(piece, cursor, columns, sieve)
                    passed_us = piece.ts_max_us
                return
            except FileNotFoundError as error:
                if str(error) == missing:
                    raise JournalError(f"{self.directory} lacks a file: {error}; restore it from a backup") from None
                missing = str(error)
        raise self._outrun()

    @staticmethod
    def _read_piece(piece: Piece, cursor: Cursor, columns: list[str], sieve: Sieve) -> Iterator[Any]:
        within = replace(sieve.within, seq=max(sieve.within.seq, cursor.next_seq))
        if within.touches(piece.first, piece.last, piece.ts_min_us, piece.ts_max_us):
            with closing(piece.read(columns, sieve.moved(within))) as batches:
                for batch in batches:
                    cursor.strict = True
                    yield batch
            cursor.strict = True
        cursor.next_seq = piece.last + 1

    def _outrun(self) -> JournalError:
        return JournalError(f"{self.directory}: files vanish faster than they are read; keep them longer")

    def gone(self, seq: int, first: int) -> JournalGone:
        """The error for a reader that wants what was dropped."""
        return JournalGone(
            f"event {seq} of {self.directory} is gone: retention has dropped it, or its file was lost;"
            f" the next there is has seq {first}",
            first_seq=first,
        )

    def span_around(self, instant_us: int) -> SpanPiece | None:
        """The Parquet file that an instant lies within, if it does."""
        pieces = self.view().pieces
        at = bisect_right(pieces, instant_us, key=lambda piece: piece.ts_min_us) - 1
        piece = pieces[at] if at >= 0 else None
        return piece if isinstance(piece, SpanPiece) and piece.ts_max_us > instant_us else None

    def instant_us(self, instant: Instant) -> int:
        """Read an instant by the journal's own clock, which never goes back: now is not before the last event."""
        if not isinstance(instant, str):
            return read_instant(instant)
        pieces = self.view().pieces
        return read_instant(instant, max(wall_clock_us(), pieces[-1].ts_max_us if pieces else 0))

    def seq_at(self, instant_us: int) -> int:
        """The last seq whose event is not after the instant; the one before the first if there is none."""
        for _ in range(VIEWS_MAX):
            view = self.view()
            at = bisect_right(view.pieces, instant_us, key=lambda piece: piece.ts_min_us) - 1
            if at < 0:
                return view.first - 1
            piece = view.pieces[at]
            if piece.ts_max_us <= instant_us:
                return piece.last
            try:
                return _seq_within(piece, instant_us)
            except FileNotFoundError:
                continue
        raise self._outrun()


def _misses(within: Range, seq: int, passed_us: int | None, piece: Piece) -> bool:
    """Whether events of a range may be in the hole from a seq up to a piece, after what was passed before."""
    return passed_us is not None and within.touches(seq, piece.first - 1, passed_us, piece.ts_min_us)


def _seq_within(piece: SpanPiece | SegmentPiece, instant_us: int) -> int:
    """The last seq in a piece whose event is not after an instant that lies within it."""
    since_us = piece.ts_min_us
    if isinstance(piece, SegmentPiece):
        at = bisect_right(piece.entries, instant_us, key=lambda entry: entry.ts_min_us) - 1
        since_us = piece.entries[at].ts_min_us
    sieve = Sieve(within=Range(since_us=since_us, until_us=instant_us + 1))
    return max(int(pc.max(batch.column("seq")).as_py()) for batch in piece.read(["seq"], sieve))
