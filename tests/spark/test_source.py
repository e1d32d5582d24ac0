"""Format ``jet`` over real journals: batch, stream, trees, and what is said when something is wrong."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from jetbus import journal
from jetbus.spark.schemas import JOURNAL, TREE, schema_of
from jetbus.spark.source import JetSource
from jetbus.spark.tables import read_journals
from support.spark.compare import rows_of
from support.spark.journals import numbers, write_events, write_log
from support.spark.logs import make_log
from support.spark.reference import Event
from support.spark.waits import WITHIN_S, run_batches


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def drain(stream: DataFrame, checkpoint: Path, seen: list[Any]) -> list[int]:
    """Run a stream to its present end; gives the size of each batch and appends all values to ``seen``."""
    sizes = []

    def take(batch: DataFrame) -> None:
        found = values(batch)
        sizes.append(len(found))
        seen.extend(found)

    run_batches(stream, checkpoint, take)
    return sizes


def stream_of(spark: SparkSession, **options: str) -> DataStreamReader:
    return spark.readStream.format("jet").options(**options)


def test_a_journal_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    """A batch has every event of several journals once, from segments and Parquet, in all columns."""
    log = make_log(random.Random(5), 900)
    directories = write_log(tmp_path, log, segment_events=150)
    journal.compact(directories[0])
    frame = spark.read.format("jet").option("eventsPerPartition", "100").load(str(tmp_path / "*"))
    assert frame.schema == schema_of(JOURNAL)
    assert frame.rdd.getNumPartitions() >= 9
    got = sorted(tuple(row.values()) for row in rows_of(frame))
    assert got == sorted(tuple(event) for event in log)
    listed = spark.read.format("jet").load([str(directory) for directory in directories])
    assert listed.count() == len(log)


def test_what_a_task_has_loaded_is_no_garbage(spark: SparkSession, tmp_path: Path) -> None:
    """Spark looks for garbage after every task; a process that has read events has nothing left to look at."""
    write_events(tmp_path, numbers(5), bus="plant")
    reader = JetSource({"path": str(tmp_path)}).reader(schema_of(JOURNAL))

    def frozen_after(partition: Any) -> int:
        assert [*reader.read(partition)]
        return gc.get_freeze_count()

    (in_task,) = spark.sparkContext.parallelize(reader.partitions(), 1).map(frozen_after).collect()
    assert in_task > 10_000
    assert gc.get_freeze_count() == 0


def test_whole_journals_are_read_natively_as_far_as_they_are_compacted(spark: SparkSession, tmp_path: Path) -> None:
    """Compacted events come from Parquet, others from segments: every event once, in the columns of ``jet``."""
    log = make_log(random.Random(9), 600)
    directories = write_log(tmp_path, log, segment_events=150)
    journal.compact(directories[0])
    frame = read_journals(spark, *directories)
    assert frame.schema == schema_of(JOURNAL)
    assert len(frame.inputFiles()) == len(list(directories[0].rglob("*.parquet")))
    got = sorted(tuple(str(value) for value in row.values()) for row in rows_of(frame))
    assert got == sorted(tuple(str(value) for value in event) for event in log)


READS: dict[str, tuple[dict[str, str], Callable[[Event], bool]]] = {
    "startsWith": ({"startsWith": "n/1"}, lambda event: event.path == "n/1"),
    "endsWith, whatever the case": ({"ENDSWITH": "/2"}, lambda event: event.path == "n/2"),
    "equalsOneOf": ({"equalsOneOf": '["n/3", "n/4"]'}, lambda event: event.path in ("n/3", "n/4")),
    "value": ({"value": '{"greaterThan": 90}'}, lambda event: int(event.value or 0) > 90),
    "rule": ({"rule": "n/* value<10"}, lambda event: int(event.value or 0) < 10),
    "rule and word": (
        {"rule": "** value<50", "contains": "5"},
        lambda e: int(e.value or 0) < 50 and "5" in (e.path or ""),
    ),
    "since": ({"since": "2026-03-01T00:00:00.050Z"}, lambda event: event.seq >= 50),
    "until": ({"until": "2026-03-01T00:00:00.050Z"}, lambda event: event.seq < 50),
    "start at a seq": ({"start": "31"}, lambda event: event.seq >= 31),
    "start by bus": ({"start": '{"plant": 77}'}, lambda event: event.seq >= 77),
    "start at an instant": ({"start": "2026-03-01T00:00:00.020Z"}, lambda event: event.seq >= 20),
}


@pytest.mark.parametrize("case", READS)
def test_options_choose_events(spark: SparkSession, hundred: Path, case: str) -> None:
    """The words of fetch rules and instants choose which events a batch has."""
    options, wanted = READS[case]
    frame = spark.read.format("jet").options(**options).load(str(hundred))
    assert values(frame) == [event.seq for event in numbers(100) if wanted(event)]


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of a hundred events."""
    directory = tmp_path_factory.mktemp("hundred")
    write_events(directory, numbers(100), bus="plant")
    return directory


def test_a_schema_chooses_columns(spark: SparkSession, hundred: Path) -> None:
    """A schema with some columns in any order gives just these."""
    frame = spark.read.format("jet").schema("value string, bus string, ts timestamp").load(str(hundred))
    assert frame.columns == ["value", "bus", "ts"]
    assert {row.bus for row in frame.collect()} == {"plant"}
    assert values(frame) == list(range(1, 101))


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "unknown option": ({"startWith": "a"}, "option 'startwith': there is none of that name"),
    "no instant": ({"since": "someday"}, "option 'since': 'someday' is not an instant"),
    "no number": ({"maxEventsPerBatch": "many"}, "option 'maxEventsPerBatch': 'many' is not a number of events"),
    "no rule": ({"rule": "a value>b"}, "option 'rule'"),
    "no list": ({"equalsOneOf": "a,b"}, "option 'equalsOneOf': 'a,b' is not understood; write it as JSON"),
    "no start": ({"start": "soon"}, "option 'start': 'soon' is not understood"),
    "journal and daemon": ({"url": "jet://localhost:1"}, "either a journal"),
    "tree and range": ({"asOf": "-1s", "since": "-2s"}, "option 'asOf': cannot be combined with since"),
    "neither true nor false": ({"failOnDataLoss": "maybe"}, "option 'failOnDataLoss': 'maybe' is not one of"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_option_is_named_at_once(spark: SparkSession, hundred: Path, case: str) -> None:
    """An option that cannot be meant is refused by load, with its name and what to write instead."""
    options, message = WRONG[case]
    with pytest.raises(Exception, match="option") as caught:
        spark.read.format("jet").options(**options).load(str(hundred))
    assert message in str(caught.value)


def test_what_is_no_journal_is_refused_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """A directory that holds something else, nothing, or does not exist is refused by load."""
    (tmp_path / "data.parquet").write_text("no")
    for path, message in (
        (tmp_path, "is not a journal"),
        (tmp_path / "nowhere", "is not a journal"),
        (tmp_path / "x*y", "no directory matches"),
        ("s3://bucket/x", "mount it"),
    ):
        with pytest.raises(Exception, match=message):
            spark.read.format("jet").load(str(path))


def test_wrong_columns_are_refused_before_the_job(spark: SparkSession, hundred: Path) -> None:
    """A schema with a column that a journal has not, or of another type, is refused with what there is."""
    for schema, message in (("speed double", "there is no column 'speed'"), ("seq string", "seq is a bigint")):
        with pytest.raises(Exception, match=message):
            spark.read.format("jet").schema(schema).load(str(hundred)).count()


def test_two_journals_of_one_bus_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Two journals whose buses have the same name cannot be told apart and are refused."""
    for name in ("a", "b"):
        write_events(tmp_path / name, numbers(1), bus="plant")
    with pytest.raises(Exception, match="are both of a bus named 'plant'"):
        spark.read.format("jet").load(str(tmp_path / "*"))


# -- streams


def test_a_stream_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """A stream that is run again reads what came since, in batches of the size asked for, each event once."""
    log = numbers(250)
    write_events(tmp_path / "journal", log[:150], bus="plant")
    stream = stream_of(spark, maxEventsPerBatch="60").load(str(tmp_path / "journal"))
    seen: list[int] = []
    assert drain(stream, tmp_path / "checkpoint", seen) == [60, 60, 30]
    assert drain(stream, tmp_path / "checkpoint", seen) == []
    write_events(tmp_path / "journal", log[150:], bus="plant")
    journal.compact(tmp_path / "journal")
    assert drain(stream, tmp_path / "checkpoint", seen) == [60, 40]
    assert seen == list(range(1, 251))


def test_a_stream_finds_new_journals(spark: SparkSession, tmp_path: Path) -> None:
    """A journal that a glob matches later is read from its first event; the buses share the limit of a batch."""
    write_events(tmp_path / "one", numbers(30, bus="one"), bus="one")
    stream = stream_of(spark, maxEventsPerBatch="20").load(str(tmp_path / "*e"))
    seen: list[int] = []
    drain(stream, tmp_path / "checkpoint", seen)
    write_events(tmp_path / "three", numbers(25, bus="three"), bus="three")
    write_events(
        tmp_path / "one", [Event("one", 31, 1_772_323_300_000_000, "change", "state", "n", "99", "x#1")], bus="one"
    )
    drain(stream, tmp_path / "checkpoint", seen)
    assert sorted(seen) == sorted([*range(1, 31), *range(1, 26), 99])


STARTS = {"latest": [], "96": [96, 97, 98, 99, 100], "2026-03-01T00:00:00.098Z": [98, 99, 100]}


@pytest.mark.parametrize("start", STARTS)
def test_a_stream_starts_where_it_is_told(spark: SparkSession, hundred: Path, tmp_path: Path, start: str) -> None:
    """A new stream starts after the last event, at a seq or at an instant."""
    seen: list[int] = []
    drain(stream_of(spark, start=start).load(str(hundred)), tmp_path / "checkpoint", seen)
    assert seen == STARTS[start]


def test_lost_events_stop_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Events dropped before they were read end a stream, with what to do; failOnDataLoss=false has a gap instead."""
    log = numbers(300)
    directory = tmp_path / "journal"
    write_events(directory, log[:100], bus="plant", segment_events=50)
    seen: list[int] = []
    drain(stream_of(spark).load(str(directory)), tmp_path / "checkpoint", seen)
    write_events(directory, log[100:], bus="plant", segment_events=50)
    for segment in sorted(directory.glob("*.arrows"))[:4]:
        segment.unlink()
        segment.with_suffix(".index").unlink()
    with pytest.raises(Exception, match=r"events 101 to 200 of bus 'plant' were dropped") as caught:
        drain(stream_of(spark).load(str(directory)), tmp_path / "checkpoint", seen)
    assert "failOnDataLoss" in str(caught.value)
    known = stream_of(spark, failOnDataLoss="false").load(str(directory))
    drain(known.selectExpr("if(event = 'gap', -seq, value) as value"), tmp_path / "checkpoint", seen)
    assert seen == [*range(1, 101), -200, *range(201, 301)]


def test_a_replaced_journal_stops_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint that is ahead of the journal means another journal, and says so."""
    write_events(tmp_path / "first", numbers(20), bus="plant")
    write_events(tmp_path / "second", numbers(10), bus="plant")
    drain(stream_of(spark).load(str(tmp_path / "first")), tmp_path / "checkpoint", [])
    with pytest.raises(Exception, match="ends with event 10, but event 20 was read before"):
        drain(stream_of(spark).load(str(tmp_path / "second")), tmp_path / "checkpoint", [])


def test_a_stream_follows_a_journal_that_grows(spark: SparkSession, tmp_path: Path) -> None:
    """A running stream reads what is committed while it runs."""
    directory = tmp_path / "journal"
    write_events(directory, numbers(10), bus="plant")
    seen: list[int] = []
    query = (
        stream_of(spark)
        .load(str(directory))
        .writeStream.foreachBatch(lambda batch, _number: seen.extend(values(batch)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        for upto in (10, 20, 30):
            write_events(directory, numbers(upto)[len(seen) :] if upto > 10 else [], bus="plant")
            deadline = time.monotonic() + WITHIN_S
            while len(seen) < upto:
                assert time.monotonic() < deadline
                assert query.isActive, query.exception()
                query.awaitTermination(1)
    finally:
        query.stop()
    assert seen == list(range(1, 31))


# -- trees


def test_the_tree_at_an_instant(spark: SparkSession, tmp_path: Path) -> None:
    """With asOf a journal is the tree as it was at that instant."""
    log = make_log(random.Random(8), 300)
    (directory,) = write_log(tmp_path, [event for event in log if event.bus == "plant"], segment_events=60)
    instant = next(event for event in log[200:] if event.bus == "plant").ts
    text = journal.instants.write_instant(instant)
    frame = spark.read.format("jet").option("asOf", text).load(str(directory))
    assert frame.schema == schema_of(TREE)
    wanted = journal.open(directory).as_of(instant).to_pylist()
    assert wanted
    assert sorted((row.path, row.value, row.seq) for row in frame.collect()) == sorted(
        (row["path"], row["value"], row["seq"]) for row in wanted
    )
