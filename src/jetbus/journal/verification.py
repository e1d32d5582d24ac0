"""Verification of a journal: every checksum, the chain of seqs, the Parquet files and the snapshots.

Readers stop at the first damage. Verification reads everything and reports all problems.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal import snapshots
from jetbus.journal.directory import LOCK_FILE, read_lock_state
from jetbus.journal.filters import EventFilter
from jetbus.journal.index import RECORD_BYTES, IndexEntry, has_end_mark, reaches_end, read_first_seq, unpack
from jetbus.journal.journal_errors import JournalDamaged, JournalError
from jetbus.journal.log import Log, SegmentPiece, SpanPiece, read_entries
from jetbus.journal.parquet import Span, read_manifest
from jetbus.journal.segment import (
    SCHEMA,
    SCHEMA_BYTES_MAX,
    SEGMENT,
    Layout,
    Segment,
    find_layout,
    list_segments,
    open_regular,
    read_regular,
)


@dataclass(frozen=True)
class Problem:
    """A problem in a file, from a seq on."""

    file: str
    seq: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}, event {self.seq}: {self.text}"


def verify(directory: str | os.PathLike[str]) -> list[Problem]:
    """Check a whole journal and return its problems in order of seq. A writer may write meanwhile."""
    log = Log(Path(directory))
    view = log.view()
    problems = list(_check_chain(log, view.pieces))
    for piece in view.pieces:
        found = _check_span(log, piece) if isinstance(piece, SpanPiece) else _check_segment(log, piece)
        problems += found
    problems += [*_check_file_types(log), *_check_indexes(log), *_check_end(log, view.last)]
    # Snapshots are compared with trees from the log, which must be intact for that.
    problems = problems or list(_check_snapshots(log, view.first, view.last))
    return sorted(problems, key=lambda problem: problem.seq)


def _relative_name(log: Log, path: Path) -> str:
    return str(path.relative_to(log.directory))


def _name_piece(log: Log, piece: SpanPiece | SegmentPiece) -> str:
    return piece.span.file if isinstance(piece, SpanPiece) else _relative_name(log, piece.segment.path)


def _check_chain(log: Log, pieces: tuple[SpanPiece | SegmentPiece, ...]) -> Iterator[Problem]:
    """Yield missing and doubled events between pieces, and instants that go back."""
    for before, after in pairwise(pieces):
        name = _name_piece(log, after)
        if after.first > before.last + 1:
            yield Problem(name, after.first, f"events {before.last + 1} to {after.first - 1} are missing before it")
        elif after.first <= before.last:
            yield Problem(name, after.first, f"{_name_piece(log, before)} before it ends with event {before.last}")
        if after.ts_min_us < before.ts_max_us:
            yield Problem(name, after.first, "its first event is earlier than the last event before it")


def _check_file_types(log: Log) -> Iterator[Problem]:
    """Yield pipes, folders and the like that have the name of a segment; readers ignore them."""
    for path in sorted(log.directory.glob(f"*{SEGMENT}")):
        if path.exists() and not path.is_file():
            seq = int(path.stem) if path.stem.isdecimal() else 0
            yield Problem(_relative_name(log, path), seq, "it is not a regular file; remove it")


def _check_segment(log: Log, piece: SegmentPiece) -> Iterator[Problem]:
    name = _relative_name(log, piece.segment.path)
    try:
        with open_regular(piece.segment.path) as file:
            layout = find_layout(file.read(SCHEMA_BYTES_MAX))
            problems = chain.from_iterable(
                _check_batch(name, file.fileno(), piece.segment, layout, entry) for entry in piece.entries
            )
            if (first := next(problems, None)) is None:
                return
            found = read_first_seq(piece.segment) if first.seq == piece.first else None
            if found is None or found == piece.first:
                yield from [first, *problems]
            else:
                text = f"its name says that it begins with event {piece.first}, but its first event is {found}"
                yield Problem(name, piece.first, text)
    except FileNotFoundError:  # dropped or compacted since the view was taken
        return


def _check_batch(name: str, descriptor: int, segment: Segment, layout: Layout, entry: IndexEntry) -> Iterator[Problem]:
    try:
        batch = pa.ipc.open_stream(read_entries(descriptor, segment.path, layout, [entry])).read_next_batch()
        batch.validate(full=True)
    except (JournalError, pa.ArrowException, OSError) as error:
        yield Problem(name, entry.seq_first, f"the batch at byte {entry.position} is damaged: {error}")
        return
    if batch.schema != layout.schema:
        yield Problem(name, entry.seq_first, "its columns are not those of a journal")
    elif not _is_chain(batch.column("seq"), entry.seq_first, entry.count):
        yield Problem(name, entry.seq_first, "its seqs differ from its index")
    elif pc.min_max(batch.column("ts").cast(pa.int64())).as_py() != {"min": entry.ts_min_us, "max": entry.ts_max_us}:
        yield Problem(name, entry.seq_first, "its instants differ from its index")


def _is_chain(seqs: pa.Array, first: int, count: int) -> bool:
    """Return whether these are ``count`` consecutive seqs."""
    steps = pc.pairwise_diff(seqs)
    sort_by_creation = pc.all(pc.equal(steps, 1)).as_py() is not False
    return len(seqs) == count and seqs[0].as_py() == first and sort_by_creation


def _check_indexes(log: Log) -> Iterator[Problem]:
    """Yield segments with an index that is missing, incomplete or of another segment."""
    upto = read_manifest(log.directory).upto
    segments = [segment for segment in list_segments(log.directory) if segment.first_seq > upto]
    for segment in segments:
        try:
            yield from _check_index(log, segment, is_last=segment is segments[-1])
        except FileNotFoundError:
            if segment.path.exists():
                text = f"the index is missing; {_REBUILT_LATER}"
                yield Problem(_relative_name(log, segment.index_path), segment.first_seq, text)
        except JournalError as error:
            yield Problem(_relative_name(log, segment.index_path), segment.first_seq, str(error))


def _check_index(log: Log, segment: Segment, *, is_last: bool) -> Iterator[Problem]:
    name, first = _relative_name(log, segment.index_path), segment.first_seq
    size_bytes = segment.path.stat().st_size
    is_sealed = has_end_mark(segment) or not is_last
    data = read_regular(segment.index_path)
    named = unpack(data)
    if named and named[0].seq_first != first:
        text = f"its name says that it begins with event {first}, but its first record is of event {named[0].seq_first}"
        yield Problem(name, first, text)
    elif not is_sealed or not segment.path.exists():  # being written, or dropped meanwhile
        return
    elif len(data) != len(named) * RECORD_BYTES:
        text = f"record {len(named)} is damaged; {len(data) // RECORD_BYTES} should be there; {_REBUILT_LATER}"
        yield Problem(name, named[-1].seq_last + 1 if named else first, text)
    elif not reaches_end(named, size_bytes):
        end = named[-1].end if named else 0
        text = f"it ends at byte {end}, but its segment has {size_bytes}; {_REBUILT_LATER}"
        yield Problem(name, named[-1].seq_last + 1 if named else first, text)


_REBUILT_LATER = "the next writer rebuilds it from its segment"


def _check_end(log: Log, last: int) -> Iterator[Problem]:
    """Yield events that existed when the journal was closed and do not any more."""
    closed_seq = read_lock_state(log.directory).last_seq
    if last < closed_seq:
        text = f"the journal was closed with event {closed_seq}; events {last + 1} to {closed_seq} are missing"
        yield Problem(LOCK_FILE, last + 1, text)


def _check_span(log: Log, piece: SpanPiece) -> Iterator[Problem]:
    name = piece.span.file
    try:
        batches = list(piece.read(SCHEMA.names, EventFilter()))
    except FileNotFoundError:
        if piece.span in _list_spans(log):  # not pruned meanwhile
            yield Problem(name, piece.first, "the file is missing")
        return
    except (JournalError, pa.ArrowException, OSError) as error:
        yield Problem(name, piece.first, str(error))
        return
    seqs = pa.chunked_array([batch.column("seq") for batch in batches], pa.int64()).combine_chunks()
    if not len(seqs) or not _is_chain(seqs, piece.first, piece.last - piece.first + 1):
        yield Problem(name, piece.first, f"its seqs are not {piece.first} to {piece.last} as in the manifest")


def _list_spans(log: Log) -> list[Span]:
    return [piece.span for piece in log.view().pieces if isinstance(piece, SpanPiece)]


def _check_snapshots(log: Log, first: int, last: int) -> Iterator[Problem]:
    """Yield snapshots that differ from the tree built from the snapshot before and the events since."""
    for seq in snapshots.list_snapshots(log.directory):
        name = f"{snapshots.FOLDER}/{seq}"
        try:
            snapshot = snapshots.read_snapshot(log.directory, seq)
            if seq > last:
                yield Problem(name, seq, f"it belongs to an event that does not exist; the last event is {last}")
            elif seq > first and snapshot != snapshots.read_tree_at_seq(log, seq, before=seq):
                yield Problem(name, seq, "it differs from the tree in the log; remove it")
        except FileNotFoundError:
            continue
        except (JournalDamaged, OSError) as error:
            yield Problem(name, seq, str(error))
        except JournalError:  # nothing before it to compare it with
            continue
