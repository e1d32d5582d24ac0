"""The tables on disk: Delta Lake, written by Spark and committed batch by batch.

    DIR/events/_delta_log/...                          which files count, by version
    DIR/events/b00000012-3f9a21/day=2026-03-01/*.parquet   the files that batch 12 wrote
    DIR/carried_paths/...                              the rows that the next batch goes on from
    DIR/batches/...                                    a row per batch, committed last
    DIR/checkpoint/                                    Spark's own
    DIR/lock                                           held by the pipeline that writes to a folder of this machine

Executors write Parquet files; the driver commits them with delta-rs. Files that no commit names do not exist. Each
commit of a table has the number of its batch as application transaction, and says how far the batch goes. The commit
of ``batches`` comes last, with the version of every table: from then on the batch counts, and readers see all tables
as of the same batch.

A pipeline that was killed between these commits finds tables that are ahead of ``batches``. If the batch is made again
over the same events, they are left as they are; if it has other events, they are first set back::

    batch 12     events  v31 | history v30 | rollups v28 | batches: 12 names v31, v30, v28      counts
    batch 13     events  v32 | history v31 | x killed                                           does not count
    again, with the same events     events and history as they are | rollups v29 | batches: 13 names v32, v31, v29
    again, with other events        events and history back to v31, v30, then all of it anew
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from jetbus.spark.clock import Position, instant, micros
from jetbus.spark.footers import WrittenFile
from jetbus.spark.location import Location
from jetbus.spark.schemas import CARRIED, TABLES, Column, Table, schema_of
from jetbus.spark.spark_errors import BadStage, NotTables

__all__ = ["Store", "TableProgress", "all_tables", "open_table", "read_progress"]

APPLICATION = "jetbus"
"""The application of the transactions that number the batches."""
COMMITS_AT_ONCE = 4
_EXTENT = ("batch", "seqs", "clock")
"""Members of a commit that identify its batch: two batches that are alike in them have the same rows."""

_CARRIED_NAMES = {f"carried_{name}": table for name, table in CARRIED.items()}


@dataclass(frozen=True)
class TableProgress:
    """Progress of the tables."""

    batch: int = -1
    positions: Mapping[str, Position] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    """The version of each table that has this batch."""

    @property
    def seqs(self) -> dict[str, int]:
        """The last event of each bus that is in the tables."""
        return {bus: position.seq for bus, position in self.positions.items()}


@dataclass
class Appended:
    """Growth of a table of carried rows since it was folded."""

    rows_folded: int = 0
    rows: int = 0
    files: int = 0

    def is_much(self, files: int, rows: int) -> bool:
        """Return True if it is time to fold."""
        return self.files > files or self.rows > 2 * self.rows_folded + rows


def all_tables() -> dict[str, Table]:
    """Return every table of a pipeline: the standard ones and those that are carried."""
    return {**TABLES, **_CARRIED_NAMES}


# -- reading


def open_table(location: Location, name: str, version: int | None = None) -> DeltaTable:
    """Open a table as Delta Lake has it; ``NotTables`` if it is not there, or no longer as it was then."""
    try:
        return DeltaTable(location.at(name), version=version, storage_options=dict(location.options) or None)
    except TableNotFoundError:
        raise NotTables(
            f"the table {name!r} is missing in {location.uri}; restore it from a backup, or make the tables anew in "
            "another place"
        ) from None
    except Exception as problem:
        raise NotTables(f"the table {name!r} in {location.uri} cannot be read: {_in_words(problem)}") from problem


def read_progress(location: Location) -> TableProgress:
    """Read how far tables have come; ``NotTables`` if there are none."""
    try:
        batches = DeltaTable(location.at("batches"), storage_options=dict(location.options) or None)
    except TableNotFoundError:
        raise NotTables(
            f"{location.uri} holds no tables; run the pipeline with --tables {location.uri} first"
        ) from None
    except Exception as problem:
        raise NotTables(f"{location.uri} cannot be read: {_in_words(problem)}") from problem
    return progress_of(batches)


def _in_words(problem: Exception) -> str:
    """Return the complaint of delta-rs on one line: it writes a tree of causes, in colour."""
    lines = re.sub(r"\x1b\[\d*m|↳", "", str(problem)).splitlines()
    return ": ".join(filter(None, map(str.strip, lines)))


def progress_of(batches: DeltaTable) -> TableProgress:
    """Read the last batch from the log of the table of batches."""
    for commit in batches.history():
        # Other commits of ``batches`` are merges of its files.
        if "progress" in commit:
            return _progress(json.loads(commit["progress"]))
    return TableProgress()


def _progress(stored: dict[str, Any]) -> TableProgress:
    positions = {bus: Position(*position) for bus, position in stored["positions"].items()}
    return TableProgress(stored["batch"], positions, stored["versions"])


def own_tables(location: Location, names: Iterable[str]) -> dict[str, Table]:
    """Read the tables that stages of the user made, from the descriptions in their Delta logs."""
    found = {}
    for name in names:
        if name not in TABLES and name not in _CARRIED_NAMES and not name.startswith("carried_"):
            found[name] = _described(open_table(location, name))
    return found


def _described(table: DeltaTable) -> Table:
    metadata = table.metadata()
    about = json.loads(metadata.description or "{}")
    return Table(about.get("time"), about.get("meaning", ""), tuple(Column(*column) for column in about["columns"]))


def spark_frame(
    spark: SparkSession, table: Table, opened: DeltaTable, partitions: Sequence[tuple[str, str, Any]] = ()
) -> DataFrame | None:
    """Read a table, or some partitions of it, with Spark; None without a file.

    Partition values are those of the Delta log: Spark would take them from the names of folders, but these differ
    between files that a batch wrote and files that were merged.
    """
    if not table.parts:
        return _read_files(spark, table, file_paths(opened, partitions), {})
    (part,) = table.parts
    found = []
    for value in sorted({one[part] for one in opened.partitions(file_pruning_predicate=list(partitions) or None)}):
        files = file_paths(opened, [*partitions, (part, "=", value)])
        found.append(_read_files(spark, table, files, {part: value}))
    frames = [frame for frame in found if frame is not None]
    return reduce(DataFrame.unionByName, frames) if frames else None


def file_paths(opened: DeltaTable, partitions: Sequence[tuple[str, str, Any]] = ()) -> list[str]:
    """List the files of a table, or of some partitions of it, as Spark has them: delta-rs escapes odd characters."""
    return [unquote(uri) for uri in opened.file_uris(file_pruning_predicate=list(partitions) or None)]


def _read_files(spark: SparkSession, table: Table, files: Sequence[str], values: Mapping[str, str]) -> DataFrame | None:
    if not files:
        return None
    schema = schema_of(tuple(column for column in table.columns if column.name not in values))
    rows = spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*files)
    made = {name: f"'{value}' as {name}" for name, value in values.items()}
    if table.time is not None:
        made["day"] = f"{day_of(table.time)} as day"
    return rows.selectExpr(*[made.get(name, f"`{name}`") for name in table.stored.names])


def day_of(column: str) -> str:
    """Return the SQL for the day of an instant in UTC, whatever the time zone of the session is."""
    return f"date_from_unix_date(cast(floor(unix_micros({column}) / 86400000000) as int))"


# -- writing


class Store:
    """The tables of one place, for the one pipeline that writes them."""

    def __init__(self, location: Location, own: Mapping[str, Table] | None = None) -> None:
        self.location = location
        self.tables = all_tables()
        self._open: dict[str, DeltaTable] = {}
        self._ahead: dict[str, dict[str, str]] = {}
        self._appended: dict[str, Appended] = {}
        self._lock = _locked(location)
        self._pool = ThreadPoolExecutor(COMMITS_AT_ONCE, "commit")
        try:
            self.progress = self._begin()
            self.add_tables(own or {})
            self._find_unfinished()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> TableProgress:
        try:
            progress = read_progress(self.location)
        except NotTables:
            local = self.location.local
            strangers = [] if local is None else [one.name for one in local.iterdir() if one.name != "lock"]
            if "batches" in strangers and not list(Path(self.location.at("batches", "_delta_log")).glob("*.json")):
                strangers.remove("batches")  # a pipeline was killed before it had made even this
            if "batches" in strangers:
                raise
            if strangers:
                raise NotTables(
                    f"{self.location.uri} is not empty and holds no tables, but {strangers[0]!r}; choose another place"
                ) from None
            self._create("batches")
            return TableProgress()
        self._open_all(progress)
        self.tables |= own_tables(self.location, progress.versions)
        return progress

    def _open_all(self, progress: TableProgress) -> None:
        for name in ("batches", *progress.versions):
            self._open[name] = open_table(self.location, name)

    def reload(self) -> None:
        """Find out anew how far the tables are: an error in the midst of a batch may have left some of them ahead."""
        self.progress = read_progress(self.location)
        for known in (self._open, self._ahead, self._appended):
            known.clear()
        self._open_all(self.progress)
        self._find_unfinished()

    def add_tables(self, own: Mapping[str, Table]) -> None:
        """Have tables besides the standard ones; one that is there already keeps its columns."""
        for name, table in own.items():
            known = self.tables.get(name)
            # Name and type of the columns count; a better description of one does not make another table.
            if known is not None and [c[:2] for c in known.columns] != [c[:2] for c in table.columns]:
                was = ", ".join(f"{column.name} {column.type}" for column in known.columns)
                raise BadStage(name, f"its table has other columns already ({was}); give the stage another name")
            self.tables[name] = table

    def _find_unfinished(self) -> None:
        """Find the tables that are ahead of the last batch, and how far the batch went that they have."""
        for name in self._open:
            self._note_unfinished(name)

    def _note_unfinished(self, name: str) -> None:
        """Note which batch a table is ahead with; whatever is in a table that no batch knows does not count."""
        commit = next((one for one in self._open[name].history() if "batch" in one), None)
        if name == "batches" or commit is None:
            return
        # The table has a commit of a batch that ``batches`` does not have: the pipeline was killed in between.
        if name not in self.progress.versions or int(commit["batch"]) > self.progress.batch:
            self._ahead[name] = {word: commit.get(word, "") for word in _EXTENT}

    def close(self) -> None:
        """Release the tables, so that another pipeline can write."""
        self._pool.shutdown()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def id(self) -> str:
        """Identifier of these tables, from the Delta log of ``batches``."""
        return str(self._open["batches"].metadata().id)

    def table(self, name: str) -> DeltaTable:
        """Return a table, created if it does not exist yet."""
        if name not in self._open:
            with self._writing(name):
                self._create(name)
        return self._open[name]

    def _create(self, name: str) -> None:
        table = self.tables[name]
        about = {"time": table.time, "meaning": table.meaning, "columns": [list(column) for column in table.columns]}
        self._open[name] = DeltaTable.create(
            self.location.at(name),
            delta_schema(table),
            mode="ignore",
            partition_by=table.partitions or None,
            name=name,
            # A table of a user describes itself, so that its readers need not have the file of the stage.
            description=table.meaning if name in TABLES or name in _CARRIED_NAMES else json.dumps(about),
            storage_options=dict(self.location.options) or None,
        )
        if name != "batches":  # it may be there already, made by a batch that never counted
            self._note_unfinished(name)

    def appended(self, name: str) -> Appended:
        """Tell how much a table has grown since it was folded, as far as this pipeline knows."""
        if name not in self._appended:
            rows: list[int] = []
            if name in self._open:
                rows = pa.table(self._open[name].get_add_actions())["num_records"].to_pylist()
            # After a restart the last fold is unknown: all that is there counts as folded.
            self._appended[name] = Appended(sum(rows), sum(rows), len(rows))
        return self._appended[name]

    def replace(self, files: Sequence[WrittenFile], names: Iterable[str]) -> None:
        """Replace all files of some tables by these, which hold the same in fewer rows; that is not a batch."""
        for name in names:
            own = [file for file in files if file.table == name]
            rows = sum(file.rows for file in own)
            # Without the number of a batch, or ``_note_unfinished`` would take it for one.
            properties = CommitProperties(custom_metadata={"folded": "true"})
            self._write(name, own, "overwrite", properties)
            self._appended[name] = Appended(rows, rows, len(own))

    # -- a batch

    def folder(self, name: str, batch: int) -> str:
        """Return a new folder for the files that a batch writes to a table."""
        return self.location.at(name, f"b{batch:08}-{uuid.uuid4().hex[:6]}")

    def frame(
        self, spark: SparkSession, name: str, partitions: Sequence[tuple[str, str, Any]] = ()
    ) -> DataFrame | None:
        """Read a table as of the last batch; None if there is nothing in it."""
        if name not in self.progress.versions:
            return None
        table = self._open[name]
        # Readers of this batch must not see rows of the batch that never counted.
        if name in self._ahead:
            table = open_table(self.location, name, self.progress.versions[name])
        return spark_frame(spark, self.tables[name], table, partitions)

    def commit(
        self,
        batch: int,
        positions: Mapping[str, Position],
        files: Sequence[WrittenFile],
        *,
        replaced: Sequence[str] = (),
    ) -> dict[str, int]:
        """Commit the files of some tables as part of a batch; gives their versions.

        Those that are ``replaced`` have nothing but these files from then on.
        """
        names = dict.fromkeys([*(file.table for file in files), *replaced])
        of_table = {name: [file for file in files if file.table == name] for name in names}
        # In any order and at once: none of these commits counts before ``finish``.
        versions = self._pool.map(
            lambda name: self._commit_one(name, of_table[name], batch, positions, replace=name in replaced), names
        )
        return dict(zip(names, versions, strict=True))

    def _commit_one(
        self, name: str, files: Sequence[WrittenFile], batch: int, positions: Mapping[str, Position], *, replace: bool
    ) -> int:
        table = self.table(name)
        extent = {
            "batch": str(batch),
            "seqs": json.dumps({bus: position.seq for bus, position in sorted(positions.items())}),
            "clock": json.dumps({bus: position.us for bus, position in sorted(positions.items())}),
        }
        if name in self._ahead:
            # The same events make the same rows, and these are in the table already.
            if self._ahead[name] == extent:
                del self._ahead[name]
                return table.version()
            self._set_back(name)
        # The transaction lets any other reader of the Delta log know which batch a version belongs to.
        properties = CommitProperties(custom_metadata=extent, app_transactions=[Transaction(APPLICATION, batch)])
        self._write(name, files, "overwrite" if replace else "append", properties)
        if name in self._appended:
            self._appended[name].rows += sum(file.rows for file in files)
            self._appended[name].files += len(files)
        return table.version()

    def _write(self, name: str, files: Sequence[WrittenFile], mode: str, properties: CommitProperties) -> None:
        table, about = self.table(name), self.tables[name]
        actions: list[AddAction | RemoveAction] = [_add_action(about, file) for file in files]
        with self._writing(name):
            table.create_write_transaction(
                actions, mode, delta_schema(about), about.partitions or None, commit_properties=properties
            )
        # A ``DeltaTable`` stays at the version that it was opened with.
        table.update_incremental()

    def append(self, name: str, rows: pa.Table, batch: int, **metadata: str) -> int:
        """Append a few rows that the driver itself knows, such as counts; gives the version of the table."""
        table = self.table(name)
        if name in self._ahead:
            self._set_back(name)
        properties = CommitProperties(
            custom_metadata={"batch": str(batch), **metadata}, app_transactions=[Transaction(APPLICATION, batch)]
        )
        days = rows[self.tables[name].time].cast(pa.date32())
        with self._writing(name):
            write_deltalake(
                table,
                rows.append_column("day", days),
                mode="append",
                commit_properties=properties,
            )
        table.update_incremental()
        return table.version()

    def finish(
        self, batch: int, positions: Mapping[str, Position], versions: Mapping[str, int], row: Mapping[str, Any]
    ) -> None:
        """Make a batch count: commit its row in the table of batches, with the versions of all tables."""
        for stray in list(self._ahead):  # written by a batch that was not made again
            self._set_back(stray)
        progress = TableProgress(
            batch, {**self.progress.positions, **positions}, {**self.progress.versions, **versions}
        )
        stored = {"batch": batch, "positions": progress.positions, "versions": progress.versions}
        texts = {
            "seqs": {bus: position.seq for bus, position in progress.positions.items()},
            "clock": {bus: position.us for bus, position in progress.positions.items()},
            "cuts": {bus: position.cut_seq for bus, position in progress.positions.items() if position.cut_seq >= 0},
            "versions": progress.versions,
        }
        cells = {"batch": batch, **row, **{name: json.dumps(text) for name, text in texts.items()}}
        schema = pa.schema([one for one in delta_schema(self.tables["batches"]) if one.name != "day"])
        # The one commit that makes the batch count. It is atomic, so a batch is in all tables or in none.
        self.append("batches", pa.Table.from_pylist([cells], schema=schema), batch, progress=json.dumps(stored))
        self.progress = progress

    def _set_back(self, name: str) -> None:
        """Undo the commit of an unfinished batch to a table."""
        self._ahead.pop(name)
        # Without the number of the batch it would still seem to be ahead, if this pipeline is killed now.
        properties = CommitProperties(custom_metadata={"batch": str(self.progress.batch)})
        self._open[name].restore(self.progress.versions.get(name, 0), commit_properties=properties)
        self._open[name].update_incremental()

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """Have errors name the table; turn a conflict with another writer into the error that says so."""
        try:
            yield
        except OSError as problem:
            problem.add_note(f"at {self.location.at(name)}/")
            raise
        except CommitFailedError as problem:
            raise NotTables(
                f"another pipeline writes to {self.location.uri}; stop it or choose another place ({problem})"
            ) from problem


def _locked(location: Location) -> int:
    """Lock a folder of this machine; elsewhere a second writer is found out when it commits."""
    local = location.local
    if local is None:
        return -1
    local.mkdir(parents=True, exist_ok=True)
    lock = os.open(local / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # Goes with the process, also if it is killed, so that no stale lock has to be removed by hand.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise NotTables(f"another pipeline writes to {location.uri}; stop it or choose another place") from None
    return lock


def delta_schema(table: Table) -> pa.Schema:
    """Return the schema of a table for its Delta log, with the meaning of each column."""
    meanings = {column.name: column.meaning for column in table.columns}
    plain = to_arrow_schema(table.stored, timezone="UTC")
    return pa.schema([one.with_metadata({"comment": meanings.get(one.name, "")}) for one in plain])


def _add_action(table: Table, file: WrittenFile) -> AddAction:
    values = dict(part.split("=", 1) for part in file.path.split("/") if "=" in part)
    # Readers of Delta Lake skip files by these ranges.
    stats = {
        "numRecords": file.rows,
        "minValues": {name: _stat(value) for name, value in file.least.items()},
        "maxValues": {name: _stat(value) for name, value in file.greatest.items()},
        "nullCount": dict(file.nulls),
    }
    partitions = {name: values[name] for name in table.partitions}
    return AddAction(file.path, file.size_bytes, partitions, file.modified_ms, True, json.dumps(stats))


def _stat(value: Any) -> Any:
    return instant(micros(value)).isoformat(timespec="microseconds") if isinstance(value, datetime) else value
