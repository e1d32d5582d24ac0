"""Whether a journal is whole: every checksum, the chain of seqs, the Parquet files and the snapshots.

Unlike readers, which stop at the first damage, it goes through everything and tells all that is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal import snapshots
from jetbus.journal.errors import JournalDamaged, JournalError
from jetbus.journal.index import RECORD_BYTES, Entry, read_index
from jetbus.journal.lock import FILE as LOCK_FILE
from jetbus.journal.lock import read_left
from jetbus.journal.rebuild import covers, has_end_mark
from jetbus.journal.scan import Log, SegmentPiece, SpanPiece, read_entries
from jetbus.journal.segment import SCHEMA, Segment, list_segments
from jetbus.journal.sieve import Sieve


@dataclass(frozen=True)
class Problem:
    """Something that is wrong: in which file, from which seq on, and what."""

    file: str
    seq: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}, event {self.seq}: {self.text}"


def verify(directory: str | os.PathLike[str]) -> list[Problem]:
    """Check a whole journal; gives the problems, none if all is well. A writer may write meanwhile."""
    log = Log(Path(directory))
    view = log.view()
    problems = list(_chain(log, view.pieces))
    for piece in view.pieces:
        found = _span(log, piece) if isinstance(piece, SpanPiece) else _segment(log, piece)
        problems += found
    problems += [*_indexes(log), *_end(log, view.last)]
    # Trees are told from the log; while that is damaged, its snapshots cannot be judged.
    return problems or list(_snapshots(log, view.first, view.last))


def _name(log: Log, path: Path) -> str:
    return str(path.relative_to(log.directory))


def _file(log: Log, piece: SpanPiece | SegmentPiece) -> str:
    return piece.span.file if isinstance(piece, SpanPiece) else _name(log, piece.segment.path)


def _chain(log: Log, pieces: tuple[SpanPiece | SegmentPiece, ...]) -> Iterator[Problem]:
    """Holes between the pieces, and time that goes back."""
    for before, after in pairwise(pieces):
        if after.first != before.last + 1:
            missing = f"events {before.last + 1} to {after.first - 1} are missing before it"
            yield Problem(_file(log, after), after.first, missing)
        if after.ts_min_us < before.ts_max_us:
            yield Problem(_file(log, after), after.first, "its first event is earlier than the last one before it")


def _segment(log: Log, piece: SegmentPiece) -> Iterator[Problem]:
    name = _name(log, piece.segment.path)
    if piece.first != piece.segment.first_seq:
        yield Problem(name, piece.first, f"it is named after event {piece.segment.first_seq}")
    try:
        with piece.segment.path.open("rb", buffering=0) as file:
            for entry in piece.entries:
                yield from _batch(name, file.fileno(), piece.segment, entry)
    except FileNotFoundError:  # dropped or compacted since the view was taken
        return


def _batch(name: str, descriptor: int, segment: Segment, entry: Entry) -> Iterator[Problem]:
    try:
        batch = pa.ipc.open_stream(read_entries(descriptor, segment.path, [entry])).read_next_batch()
        batch.validate(full=True)
    except (JournalError, pa.ArrowException, OSError) as error:
        yield Problem(name, entry.seq_first, f"the batch at byte {entry.position} is damaged: {error}")
        return
    if batch.schema != SCHEMA:
        yield Problem(name, entry.seq_first, "its columns are not those of a journal")
    elif not _is_chain(batch.column("seq"), entry.seq_first, entry.count):
        yield Problem(name, entry.seq_first, "its seqs are not what the index says")
    elif pc.min_max(batch.column("ts").cast(pa.int64())).as_py() != {"min": entry.ts_min_us, "max": entry.ts_max_us}:
        yield Problem(name, entry.seq_first, "its instants are not what the index says")


def _is_chain(seqs: Any, first: int, count: int) -> bool:
    """Whether these are consecutive seqs."""
    steps = pc.pairwise_diff(seqs)
    in_order = pc.all(pc.equal(steps, 1)).as_py() is not False
    return len(seqs) == count and seqs[0].as_py() == first and in_order


def _indexes(log: Log) -> Iterator[Problem]:
    """Sealed segments whose index is lost, or does not reach their end."""
    for piece in log.view().pieces:
        if isinstance(piece, SpanPiece):
            continue
        segment, name = piece.segment, _name(log, piece.segment.index_path)
        try:
            size_bytes = segment.path.stat().st_size
            sealed = has_end_mark(segment) or segment.first_seq < list_segments(log.directory)[-1].first_seq
            index_bytes = segment.index_path.stat().st_size
        except FileNotFoundError:
            if segment.path.exists():
                yield Problem(name, piece.first, f"it is missing; {_MADE_ANEW}")
            continue
        named = read_index(segment.index_path)
        if not sealed or segment not in list_segments(log.directory):
            continue
        if index_bytes != len(named) * RECORD_BYTES:
            text = f"record {len(named)} is damaged; {index_bytes // RECORD_BYTES} should be there; {_MADE_ANEW}"
            yield Problem(name, named[-1].seq_last + 1 if named else piece.first, text)
        elif not covers(named, size_bytes):
            end = named[-1].end if named else 0
            text = f"it ends at byte {end}, but its segment has {size_bytes}; {_MADE_ANEW}"
            yield Problem(name, named[-1].seq_last + 1 if named else piece.first, text)


_MADE_ANEW = "the next writer makes it anew from its segment"


def _end(log: Log, last: int) -> Iterator[Problem]:
    """Events that were there when the journal was closed."""
    closed_seq = read_left(log.directory).last_seq
    if last < closed_seq:
        text = f"the journal was closed with event {closed_seq}; events {last + 1} to {closed_seq} are missing"
        yield Problem(LOCK_FILE, last + 1, text)


def _span(log: Log, piece: SpanPiece) -> Iterator[Problem]:
    name = piece.span.file
    try:
        batches = list(piece.read(SCHEMA.names, Sieve()))
    except FileNotFoundError:
        if piece.span in _spans(log):  # neither pruned meanwhile nor anything else
            yield Problem(name, piece.first, "the file is missing")
        return
    except (JournalError, pa.ArrowException, OSError) as error:
        yield Problem(name, piece.first, str(error))
        return
    seqs = pa.chunked_array([batch.column("seq") for batch in batches], pa.int64()).combine_chunks()
    if not len(seqs) or not _is_chain(seqs, piece.first, piece.last - piece.first + 1):
        yield Problem(name, piece.first, f"its seqs are not {piece.first} to {piece.last}, as the manifest says")


def _spans(log: Log) -> list[Any]:
    return [piece.span for piece in log.view().pieces if isinstance(piece, SpanPiece)]


def _snapshots(log: Log, first: int, last: int) -> Iterator[Problem]:
    """Snapshots that are not what the log says: each is compared with the one before it and replay."""
    for seq in snapshots.list_snapshots(log.directory):
        name = f"{snapshots.FOLDER}/{seq}"
        try:
            taken = snapshots.read_snapshot(log.directory, seq)
            if seq > last:
                yield Problem(name, seq, f"it is of an event that is not there; the last is {last}")
            elif seq > first and taken != snapshots.tree_at(log, seq, before=seq):
                yield Problem(name, seq, "it is not the tree that the log tells; remove it")
        except FileNotFoundError:
            continue
        except (JournalDamaged, OSError) as error:
            yield Problem(name, seq, str(error))
        except JournalError:  # nothing before it to compare it with
            continue
