"""The pipeline from journals to tables: exactly once, whatever happens meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from jetbus.rules import rule
from jetbus.spark import Batch, DataLoss, NotTables, Pipeline, Tables, attach, session, tables
from jetbus.spark.alarms import Alarm
from jetbus.spark.clock import instant
from jetbus.spark.schemas import JOURNAL, schema_of
from support.daemon import Daemon
from support.spark import reference
from support.spark.compare import assert_same, rows_of
from support.spark.journals import numbers, write_events
from support.spark.kills import read_log
from support.spark.on_disk import assert_on_disk, last_seqs, read_delta, wanted
from support.spark.reference import Event

if TYPE_CHECKING:
    from spark.conftest import RecordedBuses


class Progress(StreamingQueryListener):
    """Input rows of each batch, by Spark's own count."""

    def __init__(self) -> None:
        self.input_rows: list[int] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is counted yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self.input_rows.append(event.progress.numInputRows)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing is counted."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing more is counted."""


def test_tables_hold_each_event_exactly_once(spark: SparkSession, past: RecordedBuses) -> None:
    """Two buses go into one set of tables in several runs and batches, also after a checkpoint was lost."""
    assert [(batch.number, batch.events) for batch in past.received] == [(0, 250), (1, 250), (2, 200)]
    found = attach(spark, past.tables)
    for name, rows in wanted(past.so_far).items():
        assert_same(name, rows_of(found.frame(name)), rows)
    assert_on_disk(past.tables, wanted(past.so_far))
    assert spark.sql("select count(*) as n from events").first()["n"] == len(past.so_far)  # type: ignore[index]
    days = spark.sql("select distinct day = to_date(window_start) as is_own from rollups_1m").collect()
    assert [row.is_own for row in days] == [True]


def test_tables_from_a_backup(spark: SparkSession, past: RecordedBuses, again: RecordedBuses) -> None:
    """A checkpoint that is ahead of tables put back from a backup is refused; without it they go on.

    Spark counts each event of a run as one input row, and the session of the process is the one it was before, with the
    same settings.
    """
    counts, received = Progress(), list[Batch]()
    again.happen(again.rest[:60])
    settings = spark.conf.getAll
    with again.pipeline(spark, on_batch=received.append) as pipeline:
        pipeline.spark.streams.addListener(counts)
        try:
            pipeline.run_once()
            assert session() is spark
        finally:
            pipeline.spark.streams.removeListener(counts)
    assert spark.conf.getAll == settings
    assert [batch.events for batch in received] == counts.input_rows == [60]
    for folder in again.tables.iterdir():
        if folder.is_dir() and folder.name != "checkpoint":
            shutil.rmtree(folder)
            shutil.copytree(past.tables / folder.name, folder)
    again.happen(again.rest[60:])
    with (
        pytest.raises(DataLoss, match="remove the checkpoint, and the pipeline goes on"),
        again.pipeline(spark) as late,
    ):
        late.run_once()
    assert_on_disk(again.tables, wanted(again.so_far))
    shutil.rmtree(again.tables / "checkpoint")
    with again.pipeline(spark) as pipeline:
        pipeline.run_once()
    assert_on_disk(again.tables, wanted(again.log))


def test_a_deleted_table_is_named(spark: SparkSession, again: RecordedBuses) -> None:
    """A table that was deleted is named with what to do, by the next pipeline and by readers."""
    shutil.rmtree(again.tables / "history")
    for use in (again.pipeline, lambda spark: attach(spark, again.tables)):
        with pytest.raises(NotTables, match=r"the table 'history' is missing in .*; restore it from a backup, or make"):
            use(spark)


def test_files_that_no_commit_names_do_not_exist(spark: SparkSession, again: RecordedBuses) -> None:
    """Files of a crash in the folder of a table are read by nobody."""
    whole = next((again.tables / "events").rglob("*.parquet"))
    shutil.copy(whole, whole.with_name("stray.parquet"))
    assert Tables(spark, again.tables).frame("events").count() == len(again.so_far)
    assert read_delta(again.tables, "events").num_rows == len(again.so_far)


def test_one_pipeline_at_a_time(spark: SparkSession, again: RecordedBuses) -> None:
    """A second pipeline for the same tables, and tables where other files are, are refused with what to do."""
    with (
        again.pipeline(spark),
        pytest.raises(NotTables, match=r"another pipeline writes to .*; stop it or choose another"),
    ):
        again.pipeline(spark)
    journals = again.folder / "journals"
    with pytest.raises(NotTables, match=r"is not empty and holds no tables, but .*; choose another place"):
        Pipeline(spark, journals / "*", journals)
    with pytest.raises(NotTables, match="holds no tables; run the pipeline with --tables"):
        attach(spark, journals)


def test_to_make_a_table_runs_no_job(spark: SparkSession) -> None:
    """Functions over a log are lazy: nothing is read until rows are asked for."""

    def fail(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise RuntimeError("somebody reads")

    log = spark.range(1).mapInArrow(fail, schema_of(JOURNAL))
    tracker = spark.sparkContext.statusTracker()
    before = tracker.getJobIdsForGroup()
    made = [
        tables.events(log),
        tables.history(log),
        *(tables.rollups(log, size) for size in ("1s", "1m", "1h")),
        tables.elements(log),
        tables.availability(log),
        tables.requests(log),
        tables.alarms(log, (Alarm("high", rule("**"), "num > 1", hold_us=1),)),
    ]
    assert tracker.getJobIdsForGroup() == before
    with pytest.raises(Exception, match="somebody reads"):
        made[0].collect()


JOBS_MAX = 6


def test_a_batch_is_few_jobs(spark: SparkSession, tmp_path: Path) -> None:
    """A batch of some values runs six jobs at most; its tables go on from those that were carried."""
    log = numbers(40)
    found = []
    for part in (log[:30], log[30:]):
        write_events(tmp_path / "journal", part, bus="plant")
        with Pipeline(spark, tmp_path / "journal", tmp_path / "tables") as pipeline:
            before = count_jobs(spark)
            pipeline.run_once()
            found.append(count_jobs(spark) - before)
    assert 0 < max(found) <= JOBS_MAX, found
    assert_on_disk(tmp_path / "tables", {"events": reference.events(log), "history": reference.history(log)})


def count_jobs(spark: SparkSession) -> int:
    """Count the jobs that Spark has run."""
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()  # type: ignore[no-any-return]


SEGMENT = 20


@pytest.mark.parametrize("place", ["folder", "daemon"])
def test_lost_events_are_a_cut(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """With failOnDataLoss=false values end before the events that were dropped unread: nothing is known of that time.

    The table of events has a gap in their place, and later values begin anew.
    """
    log = numbers(3 * SEGMENT)
    folder, tables_folder = tmp_path / "journal", tmp_path / "tables"
    write_events(folder, log[:SEGMENT], bus="plant")
    run_without_loss(spark, folder, tables_folder)
    write_events(folder, log[SEGMENT:], bus="plant", segment_events=SEGMENT)
    for segment in sorted(folder.glob("*.arrows"))[:2]:
        segment.unlink()
        segment.with_suffix(".index").unlink(missing_ok=True)
    if place == "folder":
        run_without_loss(spark, folder, tables_folder)
        kept = log[2 * SEGMENT :]
    else:
        with Daemon.start("--journal", str(folder), "--journal-bus", "plant") as daemon:
            run_without_loss(spark, f"jet://{daemon.listens['tcp']}", tables_folder)
        kept = [event for event in read_log(folder) if event.seq <= last_seqs(tables_folder)["plant"]]
    reason = f"events {SEGMENT + 1} to {2 * SEGMENT} were dropped by retention before they were read"
    detail = json.dumps({"reason": reason, "missed": SEGMENT})
    gap = Event("plant", 2 * SEGMENT, kept[0].ts, "gap", detail=detail)
    expected = [*log[:SEGMENT], gap, *kept]
    assert_on_disk(tables_folder, {"events": reference.events(expected), "history": reference.history(expected)})
    ended = [row for row in read_delta(tables_folder, "history").to_pylist() if row["ended_by"] == "gap"]
    assert [row["valid_to"] for row in ended] == 7 * [instant(log[SEGMENT - 1].ts)]


def run_without_loss(spark: SparkSession, journal: str | Path, tables_folder: Path) -> None:
    """Bring tables up to date, whatever has been dropped."""
    with Pipeline(spark, journal, tables_folder, failOnDataLoss="false") as pipeline:
        pipeline.run_once()
