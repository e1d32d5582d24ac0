"""One batch of the stream, from its rows to committed tables.

    rows ──> events ──┬─> alarms ─────────────> committed and published first
     (read once)      ├─> timeline = history ─┬─> rollups
                      │                       ├─> availability
                      │                       └─> carried paths
                      ├─> requests
                      └─> stages of the user
                                               then all tables, at last `batches`

The rows of Spark's source are read once, typed and written; everything else reads the files that were just written,
which Spark scans many times as fast. Files of a table lie in a folder of the batch, by day. Rows that a job makes but
that are no part of the table (time rows, open values, rows that an expectation keeps out) have no day: they are in the
same folder, can be read from there, and are never committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.types import StructType

from jetbus.spark.alarms import Alarm, alarm_signals, new_signals, open_signals
from jetbus.spark.carried import after_cuts, newest_alarms, only_touched
from jetbus.spark.clock import CUTS, TIME, Clock, Position, batch_clock, micros
from jetbus.spark.errors import DataLoss
from jetbus.spark.expectations import Expectation, Outcome, Watched, quarantined
from jetbus.spark.maintenance import fold
from jetbus.spark.own_stages import OwnStage
from jetbus.spark.requests import REQUESTS, complete_requests, open_requests, request_rows
from jetbus.spark.rollups import WINDOWS_US, complete_windows, open_windows, window_parts
from jetbus.spark.schemas import TABLES
from jetbus.spark.store import DEFAULT_PARTITION, Store, WrittenFile, day_of, delta_schema
from jetbus.spark.tables import with_documents, with_values
from jetbus.spark.timeline import SIGNS, availability, history, open_paths, timeline

__all__ = ["Made", "Plan", "fold_tables", "make_batch"]

JOBS_AT_ONCE = 4
"""Stages whose jobs Spark runs at the same time."""
FEW_EVENTS = 200_000
"""The paths of a batch with no more events are sent to every executor, instead of sorting all that was carried."""
SILENT_EVENTS = ("peer", "gone")
"""Events that alone are no reason to publish anything: reading from afar makes some."""
_TIMES = ("ts", "valid_from", "window_start", "since", "at")
"""The time columns of the tables; statistics of files are made of them and of ``seq``."""


@dataclass(frozen=True)
class Plan:
    """All that a pipeline does with a batch."""

    spark: SparkSession
    store: Store
    alarms: tuple[Alarm, ...] = ()
    own: tuple[OwnStage, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    sees_all: bool = True
    """Whether every event of the journals is read: then seqs have no holes."""
    has_end: bool = False
    """Whether journals go on after the end of what is read: rows of time then tell nothing of seqs."""
    prefix: str | None = None
    """Where the pipeline publishes; events below it are its own."""
    on_alarms: Callable[[DataFrame], None] | None = None
    """Called with the new rows of alarms as soon as they are committed."""


@dataclass
class Made:
    """A batch that has been committed."""

    number: int
    events: int
    seconds: float
    at: datetime
    positions: Mapping[str, Position]
    seqs: dict[str, int]
    """The last event of each bus that was in the tables then."""
    folders: dict[str, str] = field(default_factory=dict)
    """The folder that it wrote to, by table; of a table with parts, by TABLE/PART."""
    outcomes: list[Outcome] = field(default_factory=list)
    is_foreign: bool = True
    """Whether it has anything but what came of publishing and reading."""


def make_batch(plan: Plan, rows: DataFrame, number: int, *, is_first: bool = False) -> Made | None:
    """Make tables of the rows of a batch and commit them; None if there is nothing new in it.

    The first batch of a run, ``is_first``, may have events that are in the tables already: Spark's checkpoint is behind
    them if the run before was killed.
    """
    return _Batch(plan, max(number, plan.store.progress.batch + 1)).make(rows, is_first=is_first)


def fold_tables(plan: Plan) -> None:
    """Rewrite the tables of carried rows that have grown too much."""
    batch = _Batch(plan, plan.store.progress.batch)
    folded = fold(plan.spark, plan.store, batch.write)
    if folded:
        plan.store.replace(batch.files(folded), folded)


@dataclass(frozen=True)
class _Scanned:
    """The events of a batch as they were written."""

    files: list[WrittenFile]
    positions: dict[str, Position]
    events: int
    signs: int
    requests: int
    foreign: int
    cut_buses: tuple[str, ...]


class _Batch:
    """One batch while it is being made."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.number = plan, number
        self.spark, self.store = plan.spark, plan.store
        self.before = plan.store.progress.positions
        self.at = datetime.now(UTC)
        self.folders: dict[str, str] = {}
        self.outcomes: list[Outcome] = []
        self._replaced: list[str] = []
        self._now: Mapping[str, Position] = {}

    def make(self, rows: DataFrame, *, is_first: bool) -> Made | None:
        begun_s = time.monotonic()
        scanned = self._write_events(rows, is_first=is_first)
        if not scanned.positions:
            return None
        self._now = {**self.before, **scanned.positions}
        clock = self._clock(scanned)
        versions: dict[str, int] = {}
        if self.plan.alarms:
            versions = self._make_alarms(scanned, clock)
        jobs = [partial(self._make_own, own) for own in self.plan.own if scanned.events]
        _run_all([partial(self._make_paths, scanned, clock), partial(self._make_requests, scanned, clock), *jobs])
        files = [*scanned.files, *self.files([name for name in self.folders if name not in ("events", *versions)])]
        versions |= self.store.commit(self.number, scanned.positions, files, replaced=self._replaced)
        versions |= self._keep_outcomes()
        seconds = time.monotonic() - begun_s
        row = {"at": self.at, "events": scanned.events, "seconds": seconds}
        self.store.finish(self.number, scanned.positions, versions, row)
        return Made(
            self.number,
            scanned.events,
            seconds,
            self.at,
            scanned.positions,
            self.store.progress.seqs,
            self.folders,
            self.outcomes,
            is_foreign=scanned.foreign > 0,
        )

    # -- writing and finding files

    def _describe(self, what: str) -> None:
        """Say in Spark's UI which jobs these are; a session of Spark Connect has no such thing."""
        self.spark.sparkContext.setJobDescription(f"batch {self.number}: {what}")

    def write(self, name: str, rows: DataFrame, *, is_row: Column | None = None, part: str = "") -> str:
        """Write rows to a new folder of a table, those that belong to it by day and the others without one.

        Each ``part`` of a table has a folder of its own.
        """
        table = self.store.tables[name]
        chosen = [one for one in self.plan.expectations if one.table == name]
        watched = Watched(rows, chosen, F.lit(True) if is_row is None else is_row)
        self._describe(name.replace("_", " "))
        folder = self.folders[f"{name}/{part}" if part else name] = self.store.folder(name, self.number)
        made = watched.rows
        if table.time is not None:
            made = made.withColumn("day", F.when(watched.is_kept, day_of(F.col(table.time))))
        made.write.partitionBy(*table.partitions).parquet(folder)
        outcomes = watched.outcomes()
        self.outcomes += outcomes
        if any(one.failed and one.expectation.action == "drop" for one in outcomes):
            away = self._read(folder, made.schema).where(F.col("day").isNull()).drop("day")
            self.write(
                "quarantine",
                quarantined(
                    away.where(F.lit(True) if is_row is None else is_row), name, chosen, self.number, F.lit(self.at)
                ),
                part=name,
            )
        return folder

    def _read(self, folder: str, schema: StructType) -> DataFrame:
        """Read what a job has just written."""
        return self.spark.read.schema(schema).parquet(folder)

    def files(self, names: Sequence[str]) -> list[WrittenFile]:
        """Find the files that were written to some tables, through Spark, with the range of their times and seqs."""
        standard = [name for name in names if name.partition("/")[0] in TABLES]
        others = [name for name in names if name.partition("/")[0] not in TABLES]
        columns = ["seq bigint", *(f"{name} timestamp" for name in _TIMES)]
        frames = []
        if standard:
            frames.append(self._found([self.folders[name] for name in standard], ", ".join(columns)))
        if others:
            # Columns of other tables may have these names and other types.
            frames.append(self._found([self.folders[name] for name in others], ""))
        if not frames:
            return []
        self._describe("files")
        found = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1], allowMissingColumns=True)
        tables = {folder.rstrip("/"): name.partition("/")[0] for name, folder in self.folders.items()}
        return [file for row in found.collect() if (file := _written(row.asDict(), tables)) is not None]

    def _found(self, folders: Sequence[str], schema: str) -> DataFrame:
        reader = self.spark.read.schema(schema) if schema else self.spark.read.schema(StructType([]))
        rows = reader.option("recursiveFileLookup", "true").parquet(*folders)
        ranges = [
            made(F.col(name)).alias(f"{word}_{name}")
            for name in rows.columns
            for word, made in (("min", F.min), ("max", F.max))
        ]
        file = [F.col("_metadata.file_path").alias("file"), F.col("_metadata.file_size").alias("bytes")]
        return rows.select("*", *file).groupBy("file", "bytes").agg(F.count("*").alias("rows"), *ranges)

    # -- events

    def _write_events(self, rows: DataFrame, *, is_first: bool) -> _Scanned:
        typed = with_values(rows)
        if is_first and self.before:
            typed = after_seqs(typed, {bus: position.seq for bus, position in self.before.items()})
        needs_documents = any(one.table == "events" and "doc" in one.condition for one in self.plan.expectations)
        typed = typed if needs_documents else typed.drop("doc")
        folder = self.write("events", typed, is_row=F.col("event") != TIME)
        self._describe("clock")
        found = self._read(folder, TABLES["events"].stored)
        file = [F.col("_metadata.file_path").alias("file"), F.col("_metadata.file_size").alias("bytes")]
        event, is_event = F.col("event"), F.col("day").isNotNull()
        told_seq = F.when(event != TIME, F.col("seq")) if self.plan.has_end else F.col("seq")
        counted = (
            found.select("bus", "seq", "ts", "event", "day", self._is_foreign().alias("is_foreign"), *file)
            .groupBy("file", "bytes", "bus")
            .agg(
                *(F.count("*").alias("rows"), F.min("seq").alias("min_seq"), F.max("seq").alias("max_seq")),
                *(F.min("ts").alias("min_ts"), F.max("ts").alias("max_ts")),
                *(F.min(told_seq).alias("first_seq"), F.max(told_seq).alias("last_seq")),
                F.count_if(is_event & event.isin(*SIGNS)).alias("signs"),
                F.count_if(is_event & event.isin(*REQUESTS)).alias("requests"),
                F.count_if(is_event & F.col("is_foreign")).alias("foreign"),
                F.max(F.when(is_event & event.isin(*CUTS), F.col("seq"))).alias("cut_seq"),
            )
            .collect()
        )
        return self._scanned([row.asDict() for row in counted], folder)

    def _is_foreign(self) -> Column:
        """Tell whether an event is more than what came of publishing and reading."""
        if self.plan.prefix is None:
            return F.lit(True)
        is_own = F.coalesce(F.col("path").startswith(f"{self.plan.prefix}/"), F.lit(False))
        return ~is_own & ~F.col("event").isin(*SILENT_EVENTS)

    def _scanned(self, counted: list[dict[str, Any]], folder: str) -> _Scanned:
        positions: dict[str, Position] = {}
        cut_buses = set()
        for row in counted:
            bus, us = row["bus"], micros(row["max_ts"].astimezone(UTC))
            at = positions.get(bus) or self.before.get(bus) or Position(0, 0)
            if row["cut_seq"] is not None:
                cut_buses.add(bus)
            cut_seq = max(at.cut_seq, -1 if row["cut_seq"] is None else row["cut_seq"])
            last_seq = at.seq if row["last_seq"] is None else row["last_seq"]
            positions[bus] = Position(max(at.seq, last_seq), max(at.us, us), cut_seq)
        self._check_no_hole(counted)
        files = [file for row in _by_file(counted) if (file := _written(row, {folder: "events"})) is not None]
        return _Scanned(
            files,
            positions,
            sum(file.rows for file in files),
            sum(row["signs"] for row in counted),
            sum(row["requests"] for row in counted),
            sum(row["foreign"] for row in counted),
            tuple(sorted(cut_buses)),
        )

    def _check_no_hole(self, counted: list[dict[str, Any]]) -> None:
        """Refuse a batch that does not go on where the tables end, as after tables were put back from a backup."""
        for bus, before in self.before.items():
            found = (row["first_seq"] for row in counted if row["bus"] == bus)
            first = min((seq for seq in found if seq is not None), default=before.seq)
            if self.plan.sees_all and first > before.seq + 1:
                raise DataLoss(
                    f"the tables in {self.store.location.uri} have bus {bus!r} up to event {before.seq}, but Spark's "
                    f"checkpoint goes on with event {first}; remove the checkpoint, and the pipeline goes on after "
                    "the tables"
                )

    def _events(self) -> DataFrame:
        """Read the events of this batch, with their documents."""
        stored = self._read(self.folders["events"], TABLES["events"].stored)
        return with_documents(stored.where(F.col("day").isNotNull()).drop("day"))

    def _clock(self, scanned: _Scanned) -> Clock:
        self._describe("cuts")
        now = {bus: position.us for bus, position in self._now.items()}
        return batch_clock(self.spark, self.before, now, self._events() if scanned.cut_buses else None)

    def _touched(self, rows: DataFrame, scanned: _Scanned, otherwise: str = "false") -> DataFrame:
        """Keep what was carried of the paths that this batch has events of."""
        events = self._events().where(F.col("event").isin(*SIGNS))
        touched = F.broadcast(events) if scanned.events <= FEW_EVENTS else events
        return only_touched(rows, touched, scanned.cut_buses, otherwise)

    # -- stages

    def _make_alarms(self, scanned: _Scanned, clock: Clock) -> dict[str, int]:
        """Make alarms before everything else, commit and publish them."""
        carried = self.store.frame(self.spark, "carried_alarms")
        if not scanned.signs and carried is None:
            return {}
        if carried is not None:
            carried = self._touched(newest_alarms(carried), scanned, "what = 'pending'")
        self._describe("alarms")
        signals = alarm_signals(self.plan.alarms, self._events(), clock, carried).persist()
        try:
            (counts,) = signals.selectExpr("count_if(is_told) as told", "count_if(is_kept) as kept").collect()
            names = []
            if counts.told:
                self.write("alarms", new_signals(signals))
                names.append("alarms")
            if counts.kept:
                self.write("carried_alarms", open_signals(signals))
                names.append("carried_alarms")
            versions = self.store.commit(self.number, scanned.positions, self.files(names))
            if counts.told and self.plan.on_alarms is not None:
                self.plan.on_alarms(new_signals(signals))
            return versions
        finally:
            signals.unpersist()

    def _make_paths(self, scanned: _Scanned, clock: Clock) -> None:
        """Make history and what follows from it: rollups, availability, and the paths that are carried."""
        values, jobs = None, list[Callable[[], object]]()
        if scanned.signs or scanned.cut_buses:
            carried = self.store.frame(self.spark, "carried_paths")
            if carried is not None:
                carried = self._touched(after_cuts(carried, self.before), scanned)
            line = self._write_timeline(timeline(self._events(), clock, carried))
            values = history(line)
            jobs += [
                partial(self.write, "availability", availability(line.where("valid_to is not null"))),
                partial(self.write, "carried_paths", open_paths(line)),
            ]
        _run_all([partial(self._make_rollups, values, clock), *jobs])

    def _write_timeline(self, line: DataFrame) -> DataFrame:
        """Write history; rows of the timeline that are no row of it, but needed by others, have no day."""
        is_value = F.col("event").isin("add", "change")
        is_history = is_value & (F.col("kind") == "state")
        is_needed = is_history | F.col("stay").isNotNull() | F.col("is_last")
        names = {"valid_from": F.col("ts"), "stay": F.when(is_value, F.col("stay"))}
        extra = ("kind", "stay", "is_last", "carried")
        columns = [names.get(name, F.col(name)).alias(name) for name in (*TABLES["history"].names, *extra)]
        rows = line.where(is_needed).select(*columns)
        folder = self.write("history", rows, is_row=is_history & F.col("valid_to").isNotNull())
        return self._read(folder, rows.schema).withColumnRenamed("valid_from", "ts")

    def _make_rollups(self, values: DataFrame | None, clock: Clock) -> None:
        sizes = [size for size, size_us in WINDOWS_US.items() if self._is_crossed(size_us)]
        carried = self.store.frame(self.spark, "carried_windows", [("size", "in", sizes)]) if sizes else None
        if values is None and carried is None:
            return
        if values is None:
            values = self.spark.createDataFrame([], TABLES["history"].schema)
        self._describe("rollups")
        parts = window_parts(values, clock, carried).persist()
        try:
            self.write("rollups", complete_windows(parts))
            self.write("carried_windows", open_windows(parts))
        finally:
            parts.unpersist()

    def _is_crossed(self, size_us: int) -> bool:
        """Tell whether time has come to the end of windows of a size."""
        return any(
            position.us // size_us > before.us // size_us
            for bus, position in self._now.items()
            if (before := self.before.get(bus)) is not None
        )

    def _make_requests(self, scanned: _Scanned, clock: Clock) -> None:
        carried = self.store.frame(self.spark, "carried_requests") if self._is_crossed(60_000_000) else None
        if not scanned.requests and carried is None:
            return
        rows = request_rows(self._events(), clock, carried)
        self.write("requests", complete_requests(rows))
        self.write("carried_requests", open_requests(rows))

    def _make_own(self, own: OwnStage) -> None:
        carried = self.store.frame(self.spark, own.carried_name) if own.carry is not None else None
        self.write(own.name, own.run(self._events(), carried))
        if own.carry is not None:
            self.write(own.carried_name, own.run_carry(self._events(), carried))
            self._replaced.append(own.carried_name)

    # -- what is told of it

    def _keep_outcomes(self) -> dict[str, int]:
        """Write down the counts of expectations."""
        if not self.outcomes:
            return {}
        rows = [
            {
                "table": one.expectation.table,
                "expectation": one.expectation.name,
                "action": one.expectation.action,
                "batch": self.number,
                "at": self.at,
                "rows": one.rows,
                "failed": one.failed,
            }
            for one in self.outcomes
        ]
        schema = pa.schema([one for one in delta_schema(TABLES["expectations"]) if one.name != "day"])
        return {
            "expectations": self.store.append("expectations", pa.Table.from_pylist(rows, schema=schema), self.number)
        }


def _run_all(jobs: Sequence[Callable[[], object]]) -> None:
    """Run some jobs at the same time; the first error ends the batch when all have come to their end."""
    with ThreadPoolExecutor(JOBS_AT_ONCE) as threads:
        for job in [threads.submit(job) for job in jobs]:
            job.result()


def after_seqs(rows: DataFrame, seqs: Mapping[str, int]) -> DataFrame:
    """Leave out events that are in the tables already; time rows stay."""
    known = F.create_map(*[F.lit(one) for pair in seqs.items() for one in pair])
    is_new = F.col("seq") > F.coalesce(F.try_element_at(known, F.col("bus")), F.lit(-1))
    return rows.where(is_new | (F.col("event") == TIME))


def _by_file(counted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bring together the rows of a file, which may have events of several buses."""
    files: dict[str, dict[str, Any]] = {}
    for row in counted:
        known = files.get(row["file"])
        if known is None:
            files[row["file"]] = dict(row)
            continue
        known["rows"] += row["rows"]
        for name in ("seq", "ts"):
            known[f"min_{name}"] = min(known[f"min_{name}"], row[f"min_{name}"])
            known[f"max_{name}"] = max(known[f"max_{name}"], row[f"max_{name}"])
    return list(files.values())


def _written(row: Mapping[str, Any], tables: Mapping[str, str]) -> WrittenFile | None:
    """Return a file of a table, None for one whose rows are no part of it."""
    uri: str = row["file"]
    if f"day={DEFAULT_PARTITION}" in uri:
        return None
    table = next(name for folder, name in tables.items() if f"/{folder.rsplit('/', 1)[-1]}/" in uri)
    return WrittenFile(
        table,
        uri,
        row["bytes"],
        row["rows"],
        {name.removeprefix("min_"): value for name, value in row.items() if name.startswith("min_")},
        {name.removeprefix("max_"): value for name, value in row.items() if name.startswith("max_")},
    )
