"""Parquet files that a batch has written, found where the tables are, with the ranges of their columns.

The footer of a Parquet file has the least and the greatest value of each column, and how many are missing. Readers of
Delta Lake skip files by them, so that they become part of the commit. Neither needs a job of Spark: the driver lists
the folders of the batch and reads the footers by itself, through the file system that commits use, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from jetbus.spark.location import Location

__all__ = ["GROUP_ROWS", "WrittenFile", "find_files"]

GROUP_ROWS = 10_000
"""Rows of a row group of a file. Rows are in order of path, so that readers of one path skip most row groups."""

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Folder in which Spark puts rows without a day: these are no rows of a table."""
RANGED = ("seq", "path", "ts", "valid_from", "window_start", "since")
"""Columns with ranges that are part of a commit, besides the time column of a table."""
TEXT_CHARS_MAX = 256
"""Longer texts make no range: every commit of the log would have to hold them."""
FOOTERS_AT_ONCE = 8


class WrittenFile(NamedTuple):
    """A Parquet file that a batch wrote."""

    table: str
    path: str
    """Within the folder of its table."""
    size_bytes: int
    rows: int
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]
    nulls: Mapping[str, int]
    modified_ms: int


def find_files(location: Location, folders: Mapping[str, str], times: Mapping[str, str | None]) -> list[WrittenFile]:
    """Find the files with rows of tables in some folders, given with the table of each; ``times`` are time columns."""
    # A folder of this machine may have any name, which the other file system would escape.
    system = (
        pa_fs.LocalFileSystem()
        if location.local is not None
        else pa_fs.PyFileSystem(DeltaStorageHandler(location.uri, dict(location.options) or None))
    )
    found = [(table, info) for folder, table in folders.items() for info in _list(system, location, folder)]

    def read(one: tuple[str, Any]) -> WrittenFile:
        table, info = one
        path = info.path.partition(f"{location.uri}/")[2] if location.local is not None else info.path
        with system.open_input_file(info.path) as file:
            footer = pq.ParquetFile(file).metadata
        least, greatest, nulls = _read_ranges(footer, {*RANGED, times.get(table)})
        inside = path.removeprefix(f"{table}/")
        modified_ms = (info.mtime_ns or 0) // 1_000_000
        return WrittenFile(table, inside, info.size, footer.num_rows, least, greatest, nulls, modified_ms)

    with ThreadPoolExecutor(FOOTERS_AT_ONCE, "footer") as threads:
        # Spark writes a file without rows where a job has none.
        return [file for file in threads.map(read, found) if file.rows]


def _list(system: pa_fs.FileSystem, location: Location, folder: str) -> Iterator[Any]:
    """Yield the files below a folder that have rows of its table."""
    # Spark may have written nothing at all.
    root = folder if location.local is not None else folder.removeprefix(f"{location.uri}/")
    for info in system.get_file_info(pa_fs.FileSelector(root, allow_not_found=True, recursive=True)):
        is_data = info.base_name.endswith(".parquet") and not info.base_name.startswith((".", "_"))
        if info.is_file and is_data and f"day={DEFAULT_PARTITION}" not in info.path:
            yield info


def _read_ranges(
    footer: pq.FileMetaData, ranged: set[str | None]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Return the least values, the greatest values and the numbers of nulls of columns, as far as a footer has them."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(footer.num_columns if footer.num_row_groups else 0):
        groups = [footer.row_group(one).column(number) for one in range(footer.num_row_groups)]
        name, statistics = groups[0].path_in_schema, [group.statistics for group in groups]
        if "." in name or not all(one is not None and one.has_null_count for one in statistics):
            continue  # Delta Lake keeps no statistics of a part of a structure
        nulls[name] = sum(one.null_count for one in statistics)
        # A group without values does not need a range.
        full = [one for one, group in zip(statistics, groups, strict=True) if one.null_count < group.num_values]
        if name in ranged and full and all(one.has_min_max for one in full):
            low, high = min(one.min for one in full), max(one.max for one in full)
            if not isinstance(high, str) or max(len(low), len(high)) <= TEXT_CHARS_MAX:
                least[name], greatest[name] = low, high
    return least, greatest, nulls
