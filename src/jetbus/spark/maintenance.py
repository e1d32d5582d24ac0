"""Care for tables on disk: fold carried rows, merge small files, remove old versions, list past operations.

Folding belongs to the pipeline: tables of carried rows grow with every batch, and are rewritten with the rows that
count when too much has been appended. Merging and removing are delta-rs's own ``optimize`` and ``vacuum``; they can run
beside a pipeline, as a command or now and then by the pipeline itself. Neither changes the rows that readers see,
but for versions of a table that are too old to be kept.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, WriterProperties
from pyspark.sql import DataFrame, SparkSession

from jetbus.spark.carried import newest_alarms, newest_elements, newest_paths
from jetbus.spark.clock import BatchClock, batch_clock, instant
from jetbus.spark.footers import GROUP_ROWS
from jetbus.spark.location import Location
from jetbus.spark.requests import fold_requests
from jetbus.spark.rollups import fold_windows
from jetbus.spark.spark_errors import BadOption
from jetbus.spark.store import Store, TableProgress, open_table, read_progress

__all__ = [
    "TableCare",
    "count_bytes",
    "find_grown",
    "fold",
    "list_batches",
    "list_versions",
    "merge_files",
    "remove_old_files",
]

FOLD_FILES = 16
"""A carried table with so many files is folded."""
FOLD_ROWS = 100_000
"""So is one to which this many rows, and as many as it had, have been appended."""
MERGED_BYTES = 128 * 1024 * 1024
"""Small files are merged into files of this size."""
MERGE_FILES = 16
"""A table with fewer small files in a partition is left alone by a pipeline."""
HOUR_S = 3600
KEEP_S = 168.0 * HOUR_S
"""Time that files of old versions stay for readers of these versions, by default."""
VACUUM_EVERY_S = 6.0 * HOUR_S
"""Interval in which a pipeline removes old files, starting with its first batch."""

log = logging.getLogger("jetbus.spark")

Fold = Callable[[DataFrame, TableProgress, BatchClock], DataFrame]

_FOLDS: dict[str, Fold] = {
    "carried_paths": lambda rows, progress, _: newest_paths(rows, progress.positions),
    "carried_elements": lambda rows, progress, _: newest_elements(rows, progress.positions),
    "carried_alarms": lambda rows, _, __: newest_alarms(rows),
    "carried_windows": lambda rows, _, clock: fold_windows(rows, clock),
    "carried_requests": lambda rows, _, clock: fold_requests(rows, clock),
}


def find_grown(store: Store) -> list[str]:
    """Find the carried tables that have grown too much."""
    return [name for name in _FOLDS if store.appended(name).is_much(FOLD_FILES, FOLD_ROWS)]


def fold(spark: SparkSession, store: Store, names: Iterable[str]) -> Iterator[tuple[str, DataFrame]]:
    """Yield the rows that count of some carried tables, by name."""
    positions = store.progress.positions
    # A clock at which no time passes: windows and minutes that were open after the last batch still are.
    clock = batch_clock(spark, positions, {bus: position.us for bus, position in positions.items()}, None)
    for name in names:
        rows = store.frame(spark, name)
        if rows is not None:
            yield name, _FOLDS[name](rows, store.progress, clock)


# -- merging and removing


def merge_files(location: Location, names: Iterable[str] = (), *, by_path: bool = False) -> dict[str, dict[str, Any]]:
    """Merge the small files of some tables, or of all; return the report of delta-rs by table.

    Carried tables are left alone: the pipeline replaces their files, and a merge would come between. Files that are
    merged keep their order of rows, one after the other. ``by_path`` puts all rows in order of path, so that queries
    for few paths read few files.
    """
    done = {}
    written = WriterProperties(max_row_group_size=GROUP_ROWS, compression="ZSTD")
    for name, table in _choose(location, names, carried=False):
        z_order = by_path and any(one.name == "path" for one in table.schema().fields)
        if z_order:
            done[name] = table.optimize.z_order(["path"], target_size=MERGED_BYTES, writer_properties=written)
        else:
            done[name] = table.optimize.compact(target_size=MERGED_BYTES, writer_properties=written)
    return done


def remove_old_files(
    location: Location, names: Iterable[str] = (), *, keep_s: float = KEEP_S, dry_run: bool = False
) -> dict[str, list[str]]:
    """Remove files that only versions older than this need, and those that no version names."""
    keep_hours = read_keep(keep_s)
    return {
        # delta-rs would insist on a week; the least that is safe was checked above.
        name: table.vacuum(keep_hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
        for name, table in _choose(location, names)
    }


def read_keep(keep_s: float) -> int:
    """Return the whole hours that files are kept; ``BadOption`` if they may still be read by then."""
    if keep_s < HOUR_S:
        raise BadOption("keep", "files of the last hour may still be read; keep at least 1h")
    return math.ceil(keep_s / HOUR_S)


def _choose(location: Location, names: Iterable[str], *, carried: bool = True) -> list[tuple[str, DeltaTable]]:
    """Open some tables, or all; ``BadOption`` for a name that no table has."""
    known = [*read_progress(location).versions, "batches"]
    if not carried:
        # The pipeline replaces all files of a carried table when it folds it, which would be in conflict with a merge.
        known = [name for name in known if not name.startswith("carried_")]
    chosen = list(names) or known
    for name in chosen:
        if name not in known:
            raise BadOption("table", f"there is no table {name!r}; there are {', '.join(known)}")
    return [(name, open_table(location, name)) for name in chosen]


# -- looking


def count_bytes(location: Location) -> int:
    """Sum the bytes of the files that all tables have now, those of old versions left out."""
    return sum(sum(_sizes(table)) for _, table in _choose(location, ()))


def list_batches(location: Location) -> list[dict[str, Any]]:
    """List the batches from old to new: ``batch``, ``ts``, ``events``, ``seconds``."""
    ((_, batches),) = _choose(location, ["batches"])
    # Not as a dataset of Arrow: its threads may outlive the interpreter, which aborts then.
    asked = QueryBuilder().register("batches", batches)
    found = pa.table(asked.execute("select batch, ts, events, seconds from batches order by batch"))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def list_versions(location: Location, name: str) -> list[dict[str, Any]]:
    """List the versions of a table that its log still has, from old to new: ``version``, ``ts``, ``operation``.

    Those that a batch made have its number, too: ``batch``.
    """
    ((_, table),) = _choose(location, [name])
    return [
        {
            "version": commit["version"],
            "ts": instant(commit["timestamp"] * 1000),
            "operation": commit["operation"],
            **({"batch": int(commit["batch"])} if "batch" in commit else {}),
        }
        for commit in reversed(table.history())
    ]


# -- care beside a pipeline


class TableCare:
    """Merging and removing beside a running pipeline, in a thread of its own.

    A failed step is logged and tried again later.
    """

    def __init__(self, location: Location, merge_every: int, keep_s: float | None) -> None:
        self._location, self._merge_every, self._keep_s = location, merge_every, keep_s
        if keep_s is not None:
            read_keep(keep_s)
        self._batches = 0
        # A run that ends with its first batch, as those of a timer do, removes old files, too.
        self._vacuum_at_s = time.monotonic()
        self._running: threading.Thread | None = None

    def batch_made(self) -> None:
        """Count a batch; start the work that is due."""
        self._batches += 1
        if self._running is not None and self._running.is_alive():
            return
        work: list[Callable[[str], object]] = []
        if self._merge_every and self._batches >= self._merge_every:
            self._batches = 0
            work.append(self._merge)
        if self._keep_s is not None and time.monotonic() >= self._vacuum_at_s:
            self._vacuum_at_s = time.monotonic() + VACUUM_EVERY_S
            work.append(self._vacuum)
        if work:
            self._running = threading.Thread(target=self._care, args=(work,), name="table-care", daemon=True)
            self._running.start()

    def _care(self, work: Iterable[Callable[[str], object]]) -> None:
        try:
            names = [*read_progress(self._location).versions, "batches"]
        except Exception:
            log.warning("the tables could not be cared for, which is tried again later", exc_info=True)
            return
        for name in names:
            for part in work:
                # Each by itself: a conflict with a commit of the pipeline must not keep the others from it.
                try:
                    part(name)
                except Exception:
                    log.warning("files of %r could not be cared for, which is tried again later", name, exc_info=True)

    def _merge(self, name: str) -> None:
        if not name.startswith("carried_") and _has_small_files(open_table(self._location, name)):
            merge_files(self._location, [name])

    def _vacuum(self, name: str) -> None:
        # Without this look each table would get two commits, also if there is nothing to remove.
        if self._keep_s and any(remove_old_files(self._location, [name], keep_s=self._keep_s, dry_run=True).values()):
            remove_old_files(self._location, [name], keep_s=self._keep_s)

    def close(self) -> None:
        """Wait for work that is under way."""
        if self._running is not None:
            self._running.join()


def _has_small_files(table: DeltaTable) -> bool:
    return sum(size < MERGED_BYTES // 4 for size in _sizes(table)) >= MERGE_FILES


def _sizes(table: DeltaTable) -> list[int]:
    sizes: list[int] = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    return sizes
