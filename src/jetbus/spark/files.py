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

from jetbus.spark.schemas import Table

__all__ = ["OPEN", "files_below", "merge_files", "named", "write_days", "write_places"]

OPEN = "open"
"""Where a row goes that is not complete yet."""

DAY_US = 86_400_000_000
_RISING = (
    *("seq", "ts", "valid_from", "valid_to", "window_start", "window_end", "since", "until", "last_ts", "raised_at"),
)
"""Columns of numbers that go up from row to row: their differences are written, which are small."""


# -- one file


def write_days(rows: pa.Table, folder: Path, time: str) -> Iterator[str]:
    """Write rows below a folder, by the day of a column; gives the files."""
    day = rows[time].cast(pa.int64()).to_numpy() // DAY_US
    for one in np.unique(day) if len(day) and day.min() != day.max() else day[:1]:
        is_day = day == one
        name = datetime.fromtimestamp(int(one) * 86_400, UTC).strftime("%Y-%m-%d")
        yield _write(rows if is_day.all() else rows.filter(pa.array(is_day)), folder / f"day={name}")


def write_places(rows: pa.Table, folder: Path, time: str) -> Iterator[str]:
    """Write rows below a folder, by their column ``into`` and by day; gives the files."""
    for into in rows["into"].unique().to_pylist():
        yield from write_days(
            rows.filter(pc.equal(rows["into"], into)).drop_columns("into"), folder / f"into={into}", time
        )


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


def files_below(folder: Path) -> list[Path]:
    """The Parquet files below a folder that count; a killed task can leave empty ones, which are none."""
    return sorted(
        file for file in folder.rglob("*.parquet") if not file.name.startswith(("_", ".")) and file.stat().st_size
    )


# -- merging


def merge_files(files: Iterable[Path], table: Table, folder: Path) -> list[str]:
    """Write the rows of some files of a table as one, in order of path: who looks for few of them can skip the rest."""
    texts = [column.name for column in table.columns if column.type == "string"]
    parts = [pq.ParquetFile(file, read_dictionary=texts).read() for file in files]
    rows = pa.concat_tables(parts, promote_options="permissive").unify_dictionaries().combine_chunks()
    order = [name for name in ("path", "seq") if name in rows.column_names] or [table.time]
    keys = [_rank(rows[name].chunk(0)) for name in order]
    return list(write_days(rows.take(pa.array(np.lexsort(keys[::-1]))), folder, table.time))


def _rank(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Numbers that are in the order of a column."""
    if not pa.types.is_dictionary(column.type):
        return np.asarray(column.cast(pa.int64()).fill_null(-1).to_numpy(), np.int64)
    rank = np.empty(len(column.dictionary), np.int64)
    rank[pc.array_sort_indices(column.dictionary).to_numpy()] = np.arange(len(column.dictionary))
    codes = column.indices.fill_null(-1).to_numpy()
    return np.where(codes < 0, -1, rank[codes] if len(rank) else -1)
