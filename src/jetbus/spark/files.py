"""Parquet files as tasks write them: by day, compact, and without a name until their task has told of them.

A file counts only once its task has told of it: until then its name begins with a dot, and what a task that failed
has left behind is nothing. Files are written by Arrow, which has nothing to be compiled first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jetbus.spark.schemas import TABLES

__all__ = ["COUNTED", "OPEN", "merge_files", "named", "write_days", "write_events"]

OPEN = "open"
"""Where a row goes that is not complete yet."""

COUNTED = "file string, bus string, seq bigint, us bigint, count bigint, requests bigint, cuts bigint"
"""What a task that writes events tells: its files, and of each bus the last event, its time, how many there were."""

GROUP_ROWS = 250_000
"""Rows that a task has in memory before it writes them."""
DAY_US = 86_400_000_000
_RISING = (
    *("seq", "ts", "valid_from", "valid_to", "window_start", "window_end", "since", "until", "last_ts", "raised_at"),
)
"""Columns of numbers that go up from row to row: their differences are written, which are small."""


# -- one file


def write_days(rows: pa.Table, folder: Path, time: str) -> Iterator[str]:
    """Write rows below a folder, by the day of a column; gives the files."""
    day = rows[time].cast(pa.int64()).to_numpy() // DAY_US
    for one in np.unique(day):
        is_day = day == one
        name = datetime.fromtimestamp(int(one) * 86_400, UTC).strftime("%Y-%m-%d")
        yield _write(rows if is_day.all() else rows.filter(pa.array(is_day)), folder / f"day={name}")


def _write(rows: pa.Table, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".{uuid.uuid4().hex}.parquet"
    rising = [name for name in _RISING if name in rows.column_names]
    pq.write_table(
        rows,
        file,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in rows.column_names if name not in (*rising, "doc", "detail")],
        column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        store_schema=False,
        write_page_index=True,
    )
    return str(file)


def named(files: Iterable[str]) -> None:
    """Give files that were told of the name by which they count."""
    for name in files:
        file = Path(name)
        file.rename(file.with_name(file.name.removeprefix(".")))


# -- events


def write_events(batches: Iterable[pa.RecordBatch], *, folder: str) -> Iterator[pa.RecordBatch]:
    """Write events below a folder, by day; tells the files and how far each bus has come."""
    for rows in _groups(batches):
        for file in write_days(_with_docs(rows), Path(folder), TABLES["events"].time):
            yield _told(file=[file])
        counted = rows.append_column("us", rows["ts"].cast(pa.int64()))
        for name, events in (("requests", ("set", "call")), ("cuts", ("stop", "start", "gap"))):
            is_one = pc.is_in(rows["event"], value_set=pa.array(events)).cast(pa.int64())
            counted = counted.append_column(name, is_one)
        found = counted.group_by("bus", use_threads=False).aggregate(
            [("seq", "max"), ("us", "max"), ("seq", "count"), ("requests", "sum"), ("cuts", "sum")]
        )
        yield _told(
            bus=found["bus"],
            seq=found["seq_max"],
            us=found["us_max"],
            count=found["seq_count"],
            requests=found["requests_sum"],
            cuts=found["cuts_sum"],
        )


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows, as many at a time as are worth a group of rows in a file."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(len(one) for one in waiting) >= GROUP_ROWS:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting = []
    if any(len(one) for one in waiting):
        yield pa.Table.from_batches(waiting).combine_chunks()


def _with_docs(rows: pa.Table) -> pa.Table:
    """The same with documents as files have them: a null has parts that are empty, not null."""
    doc = rows["doc"].combine_chunks()
    names = ("metadata", "value")
    parts = [doc.field(name).fill_null(b"") for name in names]
    fields = [pa.field(name, pa.binary(), nullable=False) for name in names]
    place = rows.column_names.index("doc")
    return rows.set_column(place, "doc", pa.StructArray.from_arrays(parts, fields=fields, mask=doc.is_null()))


_TOLD = pa.schema(
    [("file", pa.string()), ("bus", pa.string())]
    + [(name, pa.int64()) for name in ("seq", "us", "count", "requests", "cuts")]
)


def _told(**columns: object) -> pa.RecordBatch:
    rows = pa.table(columns)
    missing = [pa.nulls(len(rows), field.type) for field in _TOLD]
    arrays = [
        rows[field.name].combine_chunks() if field.name in columns else nothing
        for field, nothing in zip(_TOLD, missing, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_TOLD)


# -- merging


def merge_files(files: Iterable[Path], table: str, folder: Path) -> list[str]:
    """Write the rows of some files of a table as one, in order of path: who looks for few of them can skip the rest."""
    columns = TABLES[table].columns
    texts = [column.name for column in columns if column.type == "string"]
    parts = [pq.ParquetFile(file, read_dictionary=texts).read() for file in files]
    rows = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries().combine_chunks()
    order = [name for name in ("path", "seq") if name in rows.column_names] or [TABLES[table].time]
    keys = [_rank(rows[name].chunk(0)) for name in order]
    return list(write_days(rows.take(pa.array(np.lexsort(keys[::-1]))), folder, TABLES[table].time))


def _rank(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Numbers that are in the order of a column."""
    if not pa.types.is_dictionary(column.type):
        return np.asarray(column.cast(pa.int64()).fill_null(-1).to_numpy(), np.int64)
    rank = np.empty(len(column.dictionary), np.int64)
    rank[pc.array_sort_indices(column.dictionary).to_numpy()] = np.arange(len(column.dictionary))
    codes = column.indices.fill_null(-1).to_numpy()
    return np.where(codes < 0, -1, rank[codes] if len(rank) else -1)
