"""What a task does with its range of events: read them, write them to their table, and lay them out by path.

Events go straight from the journal to files; Spark only says which task takes which range. History, rollups and
availability need all rows of a path in one part, so a task leaves them in a file of its own, in as many pieces as
there are parts; the task that makes a part then reads its piece of each of those files. Rows that are carried from the
batch before are laid out in the same way.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from jetbus.spark.buses import SeqRange
from jetbus.spark.clock import CUTS, Counted, FoundCut, micros
from jetbus.spark.files import write_days
from jetbus.spark.lines import Ints, ints, places_of, runs_of
from jetbus.spark.parts import carried_rows, signs_of
from jetbus.spark.requests import ASKED, requests_of
from jetbus.spark.schemas import TABLES
from jetbus.spark.source import EventStreamReader
from jetbus.spark.typed import coded, with_types

__all__ = ["Group", "Taken", "laid_out", "read_part", "take", "take_apart"]

GROUP_ROWS = 250_000
GROUP_BYTES = 256 * 1024 * 1024
"""Events that a task has in memory before it writes them; what comes first counts."""
_KINDS = (*ASKED, *CUTS)


@dataclass(frozen=True)
class Group:
    """Some events that have been written."""

    files: tuple[str, ...]
    counted: tuple[Counted, ...]
    events: pa.Table
    requests: pa.Table
    signs: pa.Table
    """What they tell of paths, the rows of a part."""


@dataclass(frozen=True)
class Taken:
    """What a task tells about the range it has taken."""

    files: tuple[str, ...]
    counted: tuple[Counted, ...]
    requests: list[pa.Table]
    laid_out: str | None


def take(reader: EventStreamReader, ranges: Iterable[SeqRange], folder: Path) -> Iterator[Group]:
    """Write the events of some ranges below a folder, by day."""
    for rows in _groups(batch for one in ranges for batch in reader.read(one)):
        events = with_types(rows)
        files = write_days(events.select(TABLES["events"].names), folder, TABLES["events"].time)
        yield Group(tuple(files), tuple(_counted(events)), events, requests_of(events), signs_of(events))


def take_apart(reader: EventStreamReader, one: SeqRange, *, folder: Path, lines: Path, parts: int) -> Taken:
    """The same, with the rows that are about paths laid out for so many parts below another folder."""
    files, counted = list[str](), list[Counted]()
    signs, requests = list[pa.Table](), list[pa.Table]()
    for group in take(reader, [one], folder):
        files += group.files
        counted += group.counted
        signs.append(group.signs)
        requests.append(group.requests)
    return Taken(tuple(files), tuple(counted), requests, laid_out(signs, lines, parts))


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows, as many at a time as are worth a group of rows in a file."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows, size_bytes = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting).combine_chunks()


# -- what is told about them


def _counted(events: pa.Table) -> Iterator[Counted]:
    """What there is of each bus; its events are neighbours."""
    bus, buses = coded(events["bus"]).indices.to_numpy(), coded(events["bus"]).dictionary.to_pylist()
    kind, seq, at = places_of(events["event"], _KINDS), ints(events["seq"]), ints(events["ts"])
    for first, count in zip(*runs_of(bus), strict=True):
        rows = slice(first, first + count)
        requests = int(np.count_nonzero((kind[rows] >= 0) & (kind[rows] < len(ASKED))))
        cuts = [int(row) for row in first + np.flatnonzero(kind[rows] >= len(ASKED))]
        found = tuple(
            FoundCut(
                seq=int(seq[row]),
                event=_KINDS[kind[row]],
                us=int(at[row]),
                since_us=_since_us(events["detail"][row].as_py()),
                before_us=int(at[row - 1]) if row > first else None,
            )
            for row in cuts
        )
        last = first + count - 1
        yield Counted(buses[bus[first]], int(seq[last]), int(at[rows].max()), int(count), requests, found)


def _since_us(detail: str | None) -> int | None:
    """Since when nothing is known, where a gap tells that."""
    try:
        return micros(datetime.fromisoformat(json.loads(detail or "{}")["since"]))
    except (ValueError, KeyError, TypeError):
        return None


# -- by path


def laid_out(tables: Sequence[pa.Table], folder: Path, parts: int) -> str | None:
    """Write rows to a file with a piece for each part; None if there are none."""
    if not any(len(table) for table in tables):
        return None
    rows = pa.concat_tables(tables, promote_options="default").unify_dictionaries().combine_chunks()
    part = _part_of_each(rows, parts)
    if parts > 1:
        rows = rows.take(pa.array(np.argsort(part, kind="stable")))
    (whole,) = rows.to_batches()
    sizes = np.bincount(part, minlength=parts)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{uuid.uuid4().hex}.arrow"
    with pa.ipc.new_file(file, whole.schema) as writer:
        for end, size in zip(np.cumsum(sizes), sizes, strict=True):
            writer.write_batch(whole.slice(int(end - size), int(size)))
    return str(file)


def _part_of_each(rows: pa.Table, parts: int) -> Ints:
    """A number for each row that depends on nothing but its bus and path."""
    bus, path = (_hashes(coded(rows[name])) for name in ("bus", "path"))
    found: Ints = ((bus * 31 + path) % parts).astype(np.int16)
    return found


def _hashes(column: pa.DictionaryArray) -> Ints:
    once = np.array([zlib.crc32(text.encode()) for text in column.dictionary.to_pylist()], np.int64)
    found: Ints = once[column.indices.to_numpy()]
    return found


def lay_out_carried(carried: Mapping[str, Sequence[Path]], *, lines: Path, parts: int) -> str | None:
    """The rows that stages have left open, in these files, laid out like the others."""
    return laid_out(carried_rows(carried), lines, parts)


def read_part(files: Iterable[str], part: int) -> pa.Table:
    """All rows of a part, from what tasks have laid out."""
    return pa.concat_tables([_piece(file, part) for file in files], promote_options="default")


def _piece(file: str, part: int) -> Any:
    with pa.memory_map(file) as source:
        return pa.Table.from_batches([pa.ipc.open_file(source).get_batch(part)])
