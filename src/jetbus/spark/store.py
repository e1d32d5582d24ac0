"""Tables on disk: Parquet files by day, committed batch by batch through a manifest.

    DIR/
      manifest.json                      which files count; see ``manifest``
      own_tables.json                    tables of the user's own stages; see ``catalog``
      events/day=2026-03-01/...parquet   the tables, each by day
      open/history/...parquet            what a stage carries to the next batch
      staging/                           a batch that is being made
      merging/                           small files that become one
      checkpoint/                        Spark's own
      lock                               held by the one pipeline that writes

A batch is written to ``staging``, moved to its place and then named in the manifest. What a crash leaves behind is
named nowhere, and removed by the next writer. Small files are merged as the run goes on, in a thread of its own while
batches are made, like with like in size, so that each row is rewritten only a few times.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.catalog import read_catalog, with_own
from jetbus.spark.errors import NotTables
from jetbus.spark.files import OPEN, files_below, merge_files
from jetbus.spark.manifest import File, Manifest, Trash, read_manifest, write_manifest
from jetbus.spark.schemas import Table

__all__ = ["Store", "Tables", "attach"]

MERGE_FILES = 8
"""So many files of one size and day become one."""
MERGE_BYTES_MIN = 128 * 1024
MERGE_BYTES_MAX = 16 * 1024 * 1024
"""Files from this size on are left alone: some million rows. Up to twice as much is merged at once, in memory."""
OPEN_S = 120.0
"""How long open rows stay that a batch has replaced: longer than a question over the bus may take."""
TRASH_S = 600.0
"""How long a replaced file stays for those who are reading it."""

SHOWN_OPEN = ("history", "availability")
"""Tables whose open rows are shown with the others: values in force, states on the bus."""


class Merge(NamedTuple):
    """Files of one table and day that become one, or have."""

    table: str
    day: str
    files: list[File]
    written: Future[list[str]]


class Store:
    """The tables of one directory, for the one who writes them."""

    def __init__(self, directory: str | Path, *, trash_s: float = TRASH_S) -> None:
        self.directory = Path(directory).absolute()
        self._trash_s = trash_s
        self._left: dict[str, float] = {}
        self._merge: Merge | None = None
        self._merger = ThreadPoolExecutor(1, "merge")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        try:
            self.manifest = self._begin()
        except BaseException:
            self.close()
            raise

    def _locked(self) -> int:
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise NotTables(
                f"another pipeline writes to {self.directory}; stop it or choose another directory"
            ) from None
        return lock

    def _begin(self) -> Manifest:
        if (self.directory / "manifest.json").exists():
            manifest = read_manifest(self.directory)
        elif strangers := [entry.name for entry in self.directory.iterdir() if entry.name != "lock"]:
            raise NotTables(
                f"{self.directory} is not empty and holds no tables, but {strangers[0]!r}; choose another one"
            )
        else:
            manifest = Manifest()
            write_manifest(self.directory, manifest)
        self.tables = read_catalog(self.directory)
        self._sweep(manifest)
        return manifest

    def _sweep(self, manifest: Manifest) -> None:
        """Remove what a crash has left behind."""
        for left in (self.staging, self._merged):
            shutil.rmtree(left, ignore_errors=True)
        kept = manifest.files()
        for place in (*self.tables, OPEN):
            for file in (self.directory / place).rglob("*.parquet"):
                if str(file.relative_to(self.directory)) not in kept:
                    file.unlink()

    def close(self) -> None:
        """Let another pipeline write. A merge that is under way comes to its end first."""
        try:
            self._settle()
        finally:
            self._merger.shutdown()
            self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def staging(self) -> Path:
        return self.directory / "staging"

    @property
    def _merged(self) -> Path:
        return self.directory / "merging"

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far the stream has come; it belongs to just these tables."""
        return self.directory / "checkpoint" / self.manifest.id

    def add_tables(self, own: Mapping[str, Table]) -> None:
        """Have tables besides the standard ones, now and for those who come later."""
        self.tables = with_own(self.directory, own)

    # -- a batch

    def begin(self) -> None:
        """Begin a batch: what one that failed has left is none of it."""
        shutil.rmtree(self.staging, ignore_errors=True)

    def carried(self, spark: SparkSession, stage: str, table: str) -> DataFrame | None:
        """The rows that a stage has left open, None if there are none."""
        files = self.manifest.open.get(stage, [])
        if not files:
            return None
        return spark.read.schema(self.tables[table].schema).parquet(
            *[str(self.directory / file.path) for file in files]
        )

    def open_files(self, stage: str) -> list[Path]:
        """The files of the rows that a stage has left open."""
        return [self.directory / file.path for file in self.manifest.open.get(stage, [])]

    def stage(self, rows: DataFrame, name: str, table: str) -> None:
        """Write what a stage gives, its column ``into`` saying where each row belongs."""
        day = F.when(F.col("into") != OPEN, F.to_date(self.tables[table].time))
        rows.withColumn("day", day).write.mode("overwrite").partitionBy("into", "day").parquet(str(self.staging / name))

    def staged(self, spark: SparkSession, name: str, table: str) -> DataFrame:
        """What a stage has just written, to go on from."""
        known = self.tables[table]
        return spark.read.schema(known.schema).parquet(str(self.staging / name)).select(*known.names)

    def commit(self, stages: Iterable[str], seqs: Mapping[str, int], clock_us: Mapping[str, int]) -> None:
        """Make what these stages have written part of the tables, all at once."""
        before = self.manifest
        tables = {name: list(files) for name, files in before.tables.items()}
        still_open = dict(before.open)
        batch = before.batch + 1
        for name in stages:
            still_open[name] = []
            for into, day, file in _written(self.staging / name):
                if into == OPEN:
                    still_open[name].append(self._place(file, Path(OPEN, name), batch))
                else:
                    tables.setdefault(into, []).append(self._place(file, Path(into, day), batch))
        fresh = replace(
            before,
            batch=batch,
            seqs={**before.seqs, **seqs},
            clock_us={**before.clock_us, **clock_us},
            tables=tables,
            open=still_open,
        )
        write_manifest(self.directory, fresh)
        self.manifest = fresh
        self._leave({file.path for files in before.open.values() for file in files} - fresh.files())
        shutil.rmtree(self.staging, ignore_errors=True)

    def _leave(self, replaced: set[str]) -> None:
        """Let open files that are no longer named stay a while, for who has just read the manifest."""
        now_s = time.monotonic()
        self._left |= dict.fromkeys(replaced, now_s)
        for path in [path for path, at_s in self._left.items() if at_s + OPEN_S < now_s]:
            (self.directory / path).unlink(missing_ok=True)
            del self._left[path]

    def _place(self, file: Path, folder: Path, batch: int) -> File:
        """Move a file to where it belongs."""
        place = self.directory / folder / f"{batch:010}-{uuid.uuid4().hex[:12]}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
        return File(str(place.relative_to(self.directory)), place.stat().st_size)

    # -- merging small files

    def merge(self) -> int:
        """Merge one group of small files, the largest one; gives how many files became one, 0 if there is no need."""
        self._settle()
        self._begin_merge()
        return self._settle()

    def merge_meanwhile(self) -> None:
        """The same in the background: what has been merged since counts from now on, and the next group is begun."""
        if self._merge is None or self._merge.written.done():
            self._settle()
            self._begin_merge()

    def _begin_merge(self) -> None:
        groups = self._groups()
        if groups:
            (table, day), files = max(groups.items(), key=lambda group: len(group[1]))
            paths = [self.directory / file.path for file in files]
            self._merge = Merge(
                table, day, files, self._merger.submit(merge_files, paths, self.tables[table], self._merged)
            )

    def _settle(self) -> int:
        """Let what has been merged take the place of what it was merged from."""
        merge, self._merge = self._merge, None
        if merge is None:
            return 0
        folder = Path(merge.table, merge.day)
        fresh = [self._place(Path(file), folder, self.manifest.batch) for file in merge.written.result()]
        self._replace(merge.table, merge.files, fresh)
        return len(merge.files)

    def _groups(self) -> dict[tuple[str, str], list[File]]:
        """Files of one table, day and order of size, where there are enough to merge."""
        groups: dict[tuple[str, str, int], list[File]] = {}
        for table, files in self.manifest.tables.items():
            for file in files:
                if file.bytes < MERGE_BYTES_MAX:
                    groups.setdefault((table, Path(file.path).parts[1], _size_class(file.bytes)), []).append(file)
        return {key[:2]: _as_many_as_fit(files) for key, files in groups.items() if _is_worth_it(files)}

    def _replace(self, table: str, gone: list[File], fresh: list[File]) -> None:
        now_s = time.time()
        old = {file.path for file in gone}
        expired = [file for file in self.manifest.trash if file.at_s + self._trash_s < now_s]
        tables = dict(self.manifest.tables)
        tables[table] = [file for file in tables[table] if file.path not in old] + fresh
        trash = [file for file in self.manifest.trash if file not in expired]
        trash += [Trash(path, now_s) for path in sorted(old)]
        self.manifest = replace(self.manifest, tables=tables, trash=trash)
        write_manifest(self.directory, self.manifest)
        for file in expired:
            (self.directory / file.path).unlink(missing_ok=True)


def _is_worth_it(files: list[File]) -> bool:
    """Whether to merge: rather late than twice, unless it is next to nothing."""
    total_bytes = sum(file.bytes for file in files)
    is_little = max(file.bytes for file in files) < 8 * MERGE_BYTES_MIN
    return len(files) >= MERGE_FILES and (is_little or total_bytes >= MERGE_BYTES_MAX)


def _as_many_as_fit(files: list[File]) -> list[File]:
    left = 2 * MERGE_BYTES_MAX
    chosen = []
    for file in files:
        left -= file.bytes
        if left < 0:
            break
        chosen.append(file)
    return chosen


def _size_class(size_bytes: int) -> int:
    return max(0, (size_bytes // MERGE_BYTES_MIN).bit_length() - 1) // 3


def _written(folder: Path) -> list[tuple[str, str, Path]]:
    """Where each file that a stage wrote belongs: table, folder of its day, file."""
    found = []
    for file in files_below(folder):
        into, day = file.relative_to(folder).parts[:2]
        found.append((into.removeprefix("into="), day, file))
    return found


# -- reading


class Tables:
    """The tables of a directory as they are at one moment, for anybody to read."""

    def __init__(self, spark: SparkSession, directory: str | Path) -> None:
        self.spark = spark
        self.directory = Path(directory).absolute()
        self.refresh()

    def refresh(self) -> None:
        """Look at what has been committed since."""
        self.known = read_catalog(self.directory)
        self.manifest = read_manifest(self.directory)

    def frame(self, name: str) -> DataFrame:
        """One table; those of values in force and states on the bus have their open rows, too."""
        if name not in self.known:
            raise NotTables(f"there is no table {name!r}; there are {', '.join(self.known)}")
        table = self.known[name]
        rows = self._read(table, self.manifest.tables.get(name, []), name)
        return rows.unionByName(self.open_rows(name)) if name in SHOWN_OPEN else rows

    def open_rows(self, name: str) -> DataFrame:
        """The rows of a table whose end is not known yet."""
        table = self.known[name]
        files = self.manifest.open.get("rollups" if name.startswith("rollups") else name, [])
        rows = self._read(table, files, None)
        return rows.withColumn("day", F.to_date(table.time))

    def _read(self, table: Table, files: list[File], folder: str | None) -> DataFrame:
        schema = table.schema if folder is None else table.schema.add("day", "date")
        if not files:
            return self.spark.createDataFrame([], schema)
        reader = self.spark.read.schema(schema)
        if folder is not None:
            reader = reader.option("basePath", str(self.directory / folder))
        return reader.parquet(*[str(self.directory / file.path) for file in files])


def attach(spark: SparkSession, directory: str | Path) -> Tables:
    """Make a view of each table, as it is now, so that ``spark.sql("select ... from rollups_1m")`` works.

    Besides the tables there is ``alarms_open``: alarms that are raised or wait for their hold time. Call it again to
    see what has come since.
    """
    tables = Tables(spark, directory)
    for name in tables.known:
        tables.frame(name).createOrReplaceTempView(name)
    tables.open_rows("alarms").createOrReplaceTempView("alarms_open")
    return tables
