"""The pipeline from journals to tables: exactly once, whatever happens meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from jetbus.spark import Batch, JetSparkError, NotTables, Pipeline, Tables, attach, parts, session
from jetbus.spark.offsets import ends_of
from jetbus.spark.schemas import TABLES
from spark import reference
from spark.compare import assert_same, rows_of
from spark.journals import write_log
from spark.logs import make_log
from spark.reference import AlarmRule, Event, Row

ALARM_FILE = """
[alarm.high]
rule = "pump/**"
when = "num > 60"
clear = "num < 20"
hold = "250ms"
"""
ALARM = AlarmRule(
    "high",
    lambda path: path.startswith("pump/"),
    lambda v: (v["num"] or 0) > 60,
    lambda v: v["num"] is not None and v["num"] < 20,
    250_000,
)


def wanted(log: list[Event]) -> dict[str, list[Row]]:
    return {
        "events": reference.events(log),
        "history": reference.history(log),
        **{name: reference.rollups(log, name) for name in TABLES if name.startswith("rollups")},
        "availability": reference.availability(log),
        "requests": reference.requests(log),
        "alarms": reference.alarms(log, [ALARM]),
    }


def check(tables: Tables, log: list[Event]) -> None:
    """The tables on disk are those of the reference."""
    for name, rows in wanted(log).items():
        assert rows, name
        assert_same(name, rows_of(tables.frame(name)), rows)


@pytest.fixture
def alarm_file(tmp_path: Path) -> Path:
    file = tmp_path / "alarms.toml"
    file.write_text(ALARM_FILE)
    return file


def test_tables_hold_each_event_exactly_once(
    spark: SparkSession, tmp_path: Path, alarm_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two buses go into one set of tables in several runs and batches, also after a checkpoint was lost.

    Batches are made by tasks, in several parts each, or by the driver, and go on from one another.
    """
    monkeypatch.setattr(parts, "PART_EVENTS", 90)
    log = make_log(random.Random(3), 800)
    told: list[Batch] = []
    tables = tmp_path / "tables"
    for since, upto, batch, few in ((0, 500, 200, 0), (500, 700, 1000, 1000), (700, 800, 1000, 0)):
        write_log(tmp_path / "journals", log[since:upto])
        with Pipeline(
            spark,
            tmp_path / "journals" / "*",
            tables,
            alarm_file=alarm_file,
            batch_events_max=batch,
            few_events=few,
            on_batch=told.append,
        ) as pipeline:
            pipeline.run_once()
            for file in sorted(pipeline.store.checkpoint.rglob("*"), reverse=True):
                if file.is_file():
                    file.unlink()
    assert [batch.events for batch in told] == [200, 200, 100, 200, 100]
    check(attach(spark, tables), log)
    assert spark.sql("select count(*) as n from events").first()["n"] == 800  # type: ignore[index]
    days = {row.day for row in spark.sql("select distinct day from rollups_1m").collect()}
    assert days == {
        row.day for row in spark.sql("select distinct to_date(window_start) as day from rollups_1m").collect()
    }


def test_small_files_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    """Many small batches leave few files and the same rows; who began to read before can read to the end."""
    log = make_log(random.Random(4), 320)
    write_log(tmp_path / "journals", log)
    early: list[DataFrame] = []

    def hold(batch: Batch) -> None:
        if batch.number == 1:
            early.append(Tables(spark, tmp_path / "tables").frame("history"))

    where = (tmp_path / "journals" / "*", tmp_path / "tables")
    with Pipeline(spark, *where, batch_events_max=40, on_batch=hold) as pipeline:
        pipeline.run_once()
        assert pipeline.store.manifest.batch == 8
        while pipeline.store.merge():
            pass
    tables = Tables(spark, tmp_path / "tables")
    days = len(list((tmp_path / "tables" / "events").iterdir()))
    assert len(tables.manifest.tables["events"]) < 8 * days
    assert tables.manifest.trash
    assert_same("events", rows_of(tables.frame("events")), reference.events(log))
    assert_same("history", rows_of(tables.frame("history")), reference.history(log))
    assert rows_of(early[0])
    on_disk = {str(file.relative_to(tables.directory)) for file in tables.directory.rglob("*.parquet")}
    assert {file for file in on_disk if not file.startswith("open/")} == {
        file for file in tables.manifest.files() if not file.startswith("open/")
    }
    with Pipeline(spark, *where):
        pass
    on_disk = {str(file.relative_to(tables.directory)) for file in tables.directory.rglob("*.parquet")}
    assert on_disk == tables.manifest.files()


def test_what_a_crash_leaves_is_no_part_of_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Files that no manifest names are not read, and are removed by the next pipeline."""
    log = make_log(random.Random(6), 200)
    write_log(tmp_path / "journals", log)
    with Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "tables") as pipeline:
        pipeline.run_once()
    tables = Tables(spark, tmp_path / "tables")
    whole = tables.directory / tables.manifest.tables["events"][0].path
    stray = whole.with_name("9999999999-stray.parquet")
    stray.write_bytes(whole.read_bytes())
    assert tables.frame("events").count() == 200
    Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "tables").close()
    assert not stray.exists()
    assert whole.exists()


def test_a_run_leaves_the_session_alone(spark: SparkSession, tmp_path: Path, alarm_file: Path) -> None:
    """After a run the session of the process is the one it was before, and not one of the stream."""
    write_log(tmp_path / "journals", make_log(random.Random(8), 60))
    with Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "tables", alarm_file=alarm_file) as pipeline:
        pipeline.run_once()
        assert session() is spark


def test_what_a_failed_batch_leaves_is_no_part_of_the_next(spark: SparkSession, tmp_path: Path) -> None:
    """Files of a batch that was given up are not committed with the one that is made after it."""
    log = make_log(random.Random(6), 90)
    write_log(tmp_path / "journals", log[:60])
    with Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "tables") as pipeline:
        pipeline.run_once()
        store = pipeline.store
        whole = store.directory / store.manifest.tables["events"][0].path
        given_up = store.staging / "events" / "into=events" / whole.parent.name / "given-up.parquet"
        given_up.parent.mkdir(parents=True)
        given_up.write_bytes(whole.read_bytes())
        write_log(tmp_path / "journals", log[60:])
        pipeline.run_once()
    assert_same("events", rows_of(Tables(spark, tmp_path / "tables").frame("events")), reference.events(log))


def test_a_log_of_offsets_must_be_known(tmp_path: Path) -> None:
    """How far a batch goes is read from Spark's own log; one of another form is refused with what to do."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"plant": 7}')
    (tmp_path / "offsets" / "1").write_text('v2\n{}\n{"plant": 9}')
    assert ends_of(tmp_path, 0) == {"plant": 7}
    assert ends_of(tmp_path, -1) == {}
    with pytest.raises(JetSparkError, match="run the Spark jetbus was made for"):
        ends_of(tmp_path, 1)


def test_one_pipeline_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    """A second pipeline for the same tables, and tables where other files are, are refused with what to do."""
    write_log(tmp_path / "journals", make_log(random.Random(7), 20))
    with (
        Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "tables"),
        pytest.raises(NotTables, match="another pipeline writes"),
    ):
        Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "tables")
    with pytest.raises(NotTables, match="choose another one"):
        Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "journals")
    with pytest.raises(NotTables, match="holds no tables"):
        attach(spark, tmp_path / "journals")
