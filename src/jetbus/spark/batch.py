"""One batch of the stream, from its rows to committed tables.

    rows ──> events ──┬─> alarms ─────────────> published first
     (read once)      ├─> timeline = history ─┬─> rollups
                      │                       ├─> availability
                      │                       └─> carried paths
                      ├─> requests
                      ├─> elements
                      └─> stages of the user
                                               then all tables are committed, at last `batches`

The rows of Spark's source are read once, typed and written as the table of events. Spark counts while it writes them:
how far the batch goes on each bus and which kinds of events it has, so that stages without rows start no job. What
several queries need is read again from where it was written, which Spark scans many times as fast as the source. Files
of a table lie in a folder of the batch, by day. Rows that a job makes but that are no part of the table (time rows,
open values, rows that an expectation keeps out) have no day: they are in the same folder, can be read from there, and
are never committed.

The number of tasks follows from the rows of a batch. A batch of few events has one task for each query and moves no
rows between tasks; it costs what Spark does before and between jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jetbus.spark.alarms import Alarm, alarm_signals, new_signals, newest_signals, open_signals
from jetbus.spark.carried import after_cuts, newest_alarms, only_touched
from jetbus.spark.clock import TIME, BatchClock, Position, batch_clock
from jetbus.spark.contents import BatchCount, Contents
from jetbus.spark.elements import closed_elements, element_rows, open_elements
from jetbus.spark.expectations import Expectation, Outcome, Watched, kept_condition, quarantined
from jetbus.spark.footers import GROUP_ROWS, WrittenFile, find_files
from jetbus.spark.maintenance import find_grown, fold
from jetbus.spark.requests import MINUTE_US, complete_requests, open_requests, request_rows
from jetbus.spark.rollups import WINDOWS_US, complete_windows, open_windows, window_parts
from jetbus.spark.schemas import DOC, TABLES
from jetbus.spark.sink import STATES_MAX
from jetbus.spark.spark_errors import DataLoss
from jetbus.spark.sql_text import empty_frame, map_buses, persist, run
from jetbus.spark.store import Store, day_of, delta_schema
from jetbus.spark.tables import with_documents, with_values
from jetbus.spark.timeline import SIGNS, availability, history, line_rows, open_paths, timeline
from jetbus.spark.user_stages import OwnStage

__all__ = ["CommittedBatch", "Plan", "fold_tables", "make_batch"]

JOBS_AT_ONCE = 4
"""Stages whose jobs Spark runs at the same time."""
TASK_ROWS = 100_000
"""Rows of a batch for each task of a stage; there are no more tasks than the session has shuffle partitions."""
FEW_EVENTS = 200_000
"""The paths of a batch with no more events are sent to every executor, instead of sorting all that was carried."""
_ORDER = ("path", "bus", "seq")
"""Columns by which the rows of a file are in order."""
_IS_EVENT = f"(event != '{TIME}')"
"""True for rows that are no time row."""
_IS_HISTORY = "(event in ('add', 'change') and kind = 'state' and valid_to is not null)"
"""True for rows of a timeline that are rows of the table of history."""


Job = Callable[[], object]


@dataclass(frozen=True)
class Plan:
    """Everything that a pipeline does with a batch."""

    spark: SparkSession
    """The session of the pipeline's own."""
    tasks_max: int
    """Tasks of a stage, at the most."""
    store: Store
    alarms: tuple[Alarm, ...] = ()
    own: tuple[OwnStage, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    sees_all: bool = True
    """True if every event of the journals is read: then seqs have no holes."""
    has_end: bool = False
    """True if journals go on after the end of what is read: rows of time then tell nothing of seqs."""
    buses: Callable[[], Iterable[str]] = tuple
    """Returns the names of the buses that are read."""
    prefix: str | None = None
    """Path below which the pipeline publishes; events there are its own."""
    on_alarms: Callable[[list[dict[str, Any]]], None] | None = None
    """Called with the newest row of each alarm that was raised or cleared, as ``newest_signals`` has it."""


@dataclass
class CommittedBatch:
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
    """True if it has anything but what came of publishing and reading."""


def make_batch(plan: Plan, rows: DataFrame, number: int, *, is_first: bool = False) -> CommittedBatch | None:
    """Make tables of the rows of a batch and commit them; None if there is nothing new in it.

    The first batch of a run, ``is_first``, may have events that are in the tables already: Spark's checkpoint is behind
    them if the run before was killed.
    """
    # Spark counts from 0 again after its checkpoint was lost; the numbers of the tables only grow.
    return _Batch(plan, max(number, plan.store.progress.batch + 1)).make(rows, is_first=is_first)


def fold_tables(plan: Plan) -> None:
    """Rewrite the tables of carried rows that have grown too much."""
    names = find_grown(plan.store)
    if not names:
        return
    batch = _Batch(plan, plan.store.progress.batch)
    batch.set_tasks(max(plan.store.appended(name).rows for name in names))
    for name, rows in fold(plan.spark, plan.store, names):
        batch.write(name, rows)
    plan.store.replace(batch.files(), names)


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
        self._persisted: list[DataFrame] = []
        self._tasks = 1
        self._events: DataFrame
        self._known: DataFrame | None = None
        self._has_schemas = False

    def make(self, rows: DataFrame, *, is_first: bool) -> CommittedBatch | None:
        begun_s = time.monotonic()
        try:
            scanned = self._take_events(rows, is_first=is_first)
            if not scanned.positions:
                return None
            # Buses without rows in this batch stay where they were.
            self._now = {**self.before, **scanned.positions}
            self.set_tasks(self._estimate_rows(scanned))
            written = self._read(self.folders["events"], TABLES["events"].stored)
            self._events = with_documents(written.where("day is not null").drop("day"))
            self._take_descriptions(scanned)
            _run_all(self._jobs(scanned))
        finally:
            for frame in self._persisted:
                frame.unpersist()
        # Up to here only files were written, which do not count. A
        # failure before this line leaves the tables as they were.
        versions = self.store.commit(self.number, scanned.positions, self.files(), replaced=self._replaced)
        versions |= self._write_outcomes()
        seconds = time.monotonic() - begun_s
        row = {"ts": self.at, "events": scanned.events, "seconds": seconds}
        self.store.finish(self.number, scanned.positions, versions, row)
        return CommittedBatch(
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

    def _estimate_rows(self, scanned: Contents) -> int:
        """Return how many rows a stage of this batch has, at the most: its events, and what was carried to them."""
        rows = scanned.events
        if scanned.cut_buses:
            rows += self.store.appended("carried_paths").rows
        if any(self._is_crossed(size_us) for size_us in WINDOWS_US.values()):
            rows += self.store.appended("carried_windows").rows
        return rows

    def set_tasks(self, rows: int) -> None:
        """Set how many tasks the stages of so many rows have."""
        self._tasks = min(-(-rows // TASK_ROWS) or 1, self.plan.tasks_max)
        self.spark.conf.set("spark.sql.shuffle.partitions", str(self._tasks))

    def _jobs(self, scanned: Contents) -> list[Job]:
        """List the jobs that make all tables; alarms are computed and published before the rest begins."""
        clock = self._clock(scanned)
        jobs: list[Job] = self._make_alarms(scanned, clock) if self.plan.alarms else []
        jobs += [partial(self._make_paths, scanned, clock), partial(self._make_requests, scanned, clock)]
        if self._has_schemas and (scanned.describes or scanned.cut_buses):
            jobs.append(partial(self._make_elements, clock))
        return jobs + [partial(self._make_own, own) for own in self.plan.own if scanned.events]

    # -- writing and finding files

    def _describe(self, what: str) -> None:
        """Say in Spark's UI which jobs these are; a session of Spark Connect has no such thing."""
        self.spark.sparkContext.setJobDescription(f"batch {self.number}: {what}")

    def write(self, name: str, rows: DataFrame, *, is_row: str = "true", part: str = "") -> str:
        """Write rows to a new folder of a table, those that belong to it by day and the others without one.

        Each ``part`` of a table has a folder of its own.
        """
        table = self.store.tables[name]
        chosen = self._expected(name)
        watched = Watched(rows, chosen, is_row)
        self._describe(name.replace("_", " "))
        folder = self.folders[f"{name}/{part}" if part else name] = self.store.folder(name, self.number)
        made = watched.rows
        if table.time is not None:
            made = made.selectExpr("*", f"if({watched.is_kept}, {day_of(table.time)}, null) as day")
        order = [column for column in _ORDER if column in made.columns]
        # Rows of a timeline are in this order already, and Spark leaves the sort out.
        if table.time is not None and "path" in order:
            made = made.sortWithinPartitions(*order)
        # Rows without a day come into Hive's default partition, which ``find_files`` leaves out.
        writer = made.write.partitionBy(*table.partitions).option("parquet.block.row.count.limit", GROUP_ROWS)
        writer.parquet(folder)
        outcomes = watched.outcomes()
        self.outcomes += outcomes
        # Rows that were kept out lie in the same folder without a day, so they need not be computed again.
        if any(one.failed and one.expectation.action == "drop" for one in outcomes):
            away = self._read(folder, made.schema).where(f"day is null and {is_row}").drop("day")
            self.write("quarantine", quarantined(away, name, chosen, self.number, self.at), part=name)
        return folder

    def _expected(self, name: str) -> list[Expectation]:
        return [one for one in self.plan.expectations if one.table == name]

    def _read(self, folder: str, schema: StructType) -> DataFrame:
        """Read what a job has just written."""
        return self._gather(self.spark.read.schema(schema).parquet(folder))

    def _gather(self, rows: DataFrame) -> DataFrame:
        """Read rows in no more tasks than the stages have: those of one task need not be moved to another."""
        return rows.coalesce(self._tasks)

    def _persist(self, rows: DataFrame) -> DataFrame:
        """Keep rows in memory until the batch has been made."""
        self._persisted.append(rows)
        return persist(rows)

    def _carried(self, name: str, partitions: Sequence[tuple[str, str, Any]] = ()) -> DataFrame | None:
        """Read a table of carried rows as of the last batch; None if there is nothing in it."""
        rows = self.store.frame(self.spark, name, partitions)
        is_few = rows is not None and self.store.appended(name).rows <= self._tasks * TASK_ROWS
        return self._gather(rows) if rows is not None and is_few else rows

    def files(self) -> list[WrittenFile]:
        """Find the files that were written, with the ranges of their columns."""
        tables = {folder: name.partition("/")[0] for name, folder in self.folders.items()}
        times = {name: table.time for name, table in self.store.tables.items()}
        return find_files(self.store.location, tables, times)

    # -- events

    def _take_events(self, rows: DataFrame, *, is_first: bool) -> Contents:
        """Write the table of events; return what Spark has counted meanwhile."""
        typed = with_values(rows)
        chosen = self._expected("events")
        # The table has no such column; it is only made where an expectation looks at it.
        if not any(DOC.name in one.condition for one in chosen):
            typed = typed.drop(DOC.name)
        # Spark's checkpoint is written after the tables, so it can only be behind them, never ahead.
        if is_first and self.before:
            typed = after_seqs(typed, {bus: position.seq for bus, position in self.before.items()})
        buses = {*self.before, *self.plan.buses()}
        count = BatchCount(buses, has_end=self.plan.has_end, prefix=self.plan.prefix)
        folder = self.write("events", count.watch(typed, kept_condition(_IS_EVENT, chosen)), is_row=_IS_EVENT)
        counted = count.read(self.spark.read.schema(TABLES["events"].stored).parquet(folder))
        self._check_no_hole(counted)
        return Contents.of(counted, self.before)

    def _check_no_hole(self, counted: list[dict[str, Any]]) -> None:
        """Refuse a batch that does not go on where the tables end, as after tables were put back from a backup."""
        for row in counted:
            before, first = self.before.get(row["bus"]), row["first_seq"]
            if self.plan.sees_all and before is not None and first is not None and first > before.seq + 1:
                raise DataLoss(
                    f"the tables in {self.store.location.uri} have bus {row['bus']!r} up to event {before.seq}, but "
                    f"Spark's checkpoint goes on with event {first}; remove the checkpoint, and the pipeline goes on "
                    "after the tables"
                )

    def _clock(self, scanned: Contents) -> BatchClock:
        self._describe("cuts")
        now = {bus: position.us for bus, position in self._now.items()}
        return batch_clock(self.spark, self.before, now, self._events if scanned.cut_buses else None)

    def _take_descriptions(self, scanned: Contents) -> None:
        """Read what is known of the elements that this batch has events of."""
        is_touched = scanned.signs or scanned.describes or scanned.cut_buses
        known = self._carried("carried_elements") if is_touched else None
        self._has_schemas = known is not None or scanned.schemas > 0
        if known is not None:
            known = after_cuts(known, self.before)
            self._known = self._persist(self._touched(known, scanned, by=(*SIGNS, "describe")))

    def _touched(
        self, rows: DataFrame, scanned: Contents, otherwise: str = "false", by: Sequence[str] = SIGNS
    ) -> DataFrame:
        """Keep what was carried of the paths that this batch has events of."""
        touching = self._events.where(f"event in {tuple(by)}")
        few = scanned.events <= FEW_EVENTS
        return only_touched(rows, touching, scanned.cut_buses, few=few, is_pending=otherwise)

    # -- stages

    def _make_alarms(self, scanned: Contents, clock: BatchClock) -> list[Job]:
        """Make and publish alarms; gives the jobs that write them.

        Alarms are a function of the events, so a batch that is made again publishes the same.
        """
        carried = self._carried("carried_alarms")
        if not scanned.signs and carried is None:
            return []
        if carried is not None:
            carried = self._touched(newest_alarms(carried), scanned, "what = 'pending'")
        self._describe("alarms")
        signals = self._persist(
            alarm_signals(self.plan.alarms, self._events, clock, carried, self._known, has_schemas=self._has_schemas)
        )
        # One more than is published: it shows that there are more, without collecting all of them.
        # These rows tell which of the two tables have rows at all, so that an empty one is not written.
        found = newest_signals(signals).limit(STATES_MAX + 1).collect()
        has_more = len(found) > STATES_MAX
        jobs: list[Job] = []
        if has_more or any(row.reported for row in found):
            if self.plan.on_alarms is not None:
                self.plan.on_alarms([row.asDict(recursive=True) for row in found if row.reported])
            jobs.append(partial(self._write_signals, "alarms", new_signals, signals))
        if has_more or any(row.carried for row in found):
            jobs.append(partial(self._write_signals, "carried_alarms", open_signals, signals))
        return jobs

    def _write_signals(self, name: str, chosen: Callable[[DataFrame], DataFrame], signals: DataFrame) -> None:
        self.write(name, chosen(signals))

    def _make_paths(self, scanned: Contents, clock: BatchClock) -> None:
        """Make history and what follows from it: rollups, availability, and the paths that are carried."""
        if not scanned.signs and not scanned.cut_buses:
            # Time that has passed may complete windows even if no value came.
            self._make_rollups(None, clock)
            return
        carried = self._carried("carried_paths")
        # Only rows of paths with events in this batch: the others stay carried as they are, and cost nothing.
        if carried is not None:
            carried = self._touched(after_cuts(carried, self.before), scanned)
        line = timeline(self._events, clock, carried, self._known, has_schemas=self._has_schemas)
        rows = line_rows(line)
        rows = self._read(self.write("history", rows, is_row=_IS_HISTORY), rows.schema)
        # Files of history have the column by its name in the table; the functions of ``timeline`` know it as ``ts``.
        line = rows.withColumnRenamed("valid_from", "ts")
        jobs: list[Job] = [lambda: self.write("carried_paths", open_paths(line))]
        if scanned.stays or scanned.cut_buses:
            jobs.append(lambda: self.write("availability", availability(line.where("valid_to is not null"))))
        _run_all([lambda: self._make_rollups(history(line), clock), *jobs])

    def _make_rollups(self, values: DataFrame | None, clock: BatchClock) -> None:
        # Only sizes of which a window ends now need the parts that were carried; those of others are just added to.
        sizes = [size for size, size_us in WINDOWS_US.items() if self._is_crossed(size_us)]
        carried = self._carried("carried_windows", [("size", "in", sizes)]) if self.before and sizes else None
        if values is None and carried is None:
            return
        if values is None:
            values = empty_frame(self.spark, TABLES["history"].columns)
        self._describe("rollups")
        parts = window_parts(values, clock, carried)
        if sizes:
            # One after the other: at the same time, each would sum up all parts before the other has them in memory.
            parts = self._persist(parts)
            self.write("rollups", complete_windows(parts))
        self.write("carried_windows", open_windows(parts))

    def _is_crossed(self, size_us: int) -> bool:
        """Return True if time has come to the end of windows of a size; nobody knows of a bus that is new."""
        return any(
            bus not in self.before or position.us // size_us > self.before[bus].us // size_us
            for bus, position in self._now.items()
        )

    def _make_elements(self, clock: BatchClock) -> None:
        rows = element_rows(self._events, clock, self._known)
        self.write("elements", closed_elements(rows))
        self.write("carried_elements", open_elements(rows))

    def _make_requests(self, scanned: Contents, clock: BatchClock) -> None:
        # As with windows: carried rows are only read when a minute ends.
        carried = self._carried("carried_requests") if self._is_crossed(MINUTE_US) else None
        if not scanned.requests and carried is None:
            return
        rows = request_rows(self._events, clock, carried)
        self.write("requests", complete_requests(rows))
        self.write("carried_requests", open_requests(rows))

    def _make_own(self, own: OwnStage) -> None:
        carried = self._carried(own.carried_name) if own.carry is not None else None
        self.write(own.name, own.run(self._events, carried))
        if own.carry is not None:
            self.write(own.carried_name, own.run_carry(self._events, carried))
            # Our own carried tables grow and are folded. Of a user's rows only the function knows which count, so they
            # are replaced by what it gives.
            self._replaced.append(own.carried_name)

    # -- counts of expectations

    def _write_outcomes(self) -> dict[str, int]:
        """Write down the counts of expectations."""
        if not self.outcomes:
            return {}
        rows = [
            {
                "table": one.expectation.table,
                "expectation": one.expectation.name,
                "action": one.expectation.action,
                "batch": self.number,
                "ts": self.at,
                "rows": one.rows,
                "failed": one.failed,
            }
            for one in self.outcomes
        ]
        schema = pa.schema([one for one in delta_schema(TABLES["expectations"]) if one.name != "day"])
        return {
            "expectations": self.store.append("expectations", pa.Table.from_pylist(rows, schema=schema), self.number)
        }


def _run_all(jobs: Sequence[Job]) -> None:
    """Run some jobs at the same time; the first error ends the batch when all have come to their end."""
    # A pool for each call: jobs run further jobs and wait for them, which in a shared pool could wait for each other.
    with ThreadPoolExecutor(JOBS_AT_ONCE) as threads:
        for job in [threads.submit(job) for job in jobs]:
            job.result()


def after_seqs(rows: DataFrame, seqs: Mapping[str, int]) -> DataFrame:
    """Leave out events that are in the tables already; time rows stay."""
    return run("new_events", {"last_seqs": map_buses(seqs)}, rows=rows)
