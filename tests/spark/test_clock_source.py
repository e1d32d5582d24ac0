"""Rows of format ``jet`` that tell how far time has come on a bus where nothing happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import jetbus
from jetbus.journal.directory import Heartbeat, write_heartbeat
from jetbus.journal.instants import write_instant
from jetbus.spark.journals import Reach
from jetbus.spark.options import Options, read_options
from jetbus.spark.schemas import JOURNAL
from jetbus.spark.source import EventReader, EventStreamReader, JetSource
from jetbus.spark.time_rows import Offset, TickedRange, TickSchedule
from support.daemon import Daemon
from support.spark.journals import numbers, write_events
from support.spark.waits import run_batches, until

BEGIN_US = 1_772_323_200_000_000
LAST_US = BEGIN_US + 5 * 1000
"""The instant of the last of five ``numbers``."""
S = 1_000_000
COLUMNS = tuple(column.name for column in JOURNAL)
EVERYTHING = ReadAllAvailable()


@pytest.fixture
def quiet(tmp_path: Path) -> Path:
    """A journal of five events in which nothing has happened for ten seconds since."""
    directory = tmp_path / "quiet"
    write_events(directory, numbers(5), bus="plant")
    write_heartbeat(directory, Heartbeat(5, LAST_US + 10 * S))
    return directory


def rows(frame: DataFrame) -> list[tuple[str, int, int]]:
    """Event, seq and instant of each row; a time row has nothing else but its bus."""
    found = []
    for row in frame.selectExpr("*", "unix_micros(ts) AS us").collect():
        assert row.bus == "plant"
        if row.event == "time":
            assert (row.kind, row.path, row.value, row.peer, row.detail) == (None,) * 5
        found.append((row.event, row.seq, row.us))
    return found


def changes(first: int, last: int) -> list[tuple[str, int, int]]:
    return [("change", seq, BEGIN_US + seq * 1000) for seq in range(first, last + 1)]


# -- a batch


def test_a_batch_ends_with_the_time(spark: SparkSession, quiet: Path) -> None:
    """With the option clock a batch ends with a row that tells how far time has come; without it there is none."""
    read = spark.read.format("jet")
    assert rows(read.load(str(quiet))) == changes(1, 5)
    assert rows(read.option("clock", "true").load(str(quiet))) == [*changes(1, 5), ("time", 5, LAST_US + 10 * S)]


READS: dict[str, tuple[dict[str, str], int | None]] = {
    "a rule drops no time": ({"equals": "nothing"}, LAST_US + 10 * S),
    "until before the last event": ({"until": write_instant(BEGIN_US + 3500)}, BEGIN_US + 3500),
    "until in the silence": ({"until": write_instant(LAST_US + S)}, LAST_US + S),
    "until in the future": ({"until": write_instant(LAST_US + 20 * S)}, LAST_US + 10 * S),
    "since after now": ({"since": write_instant(LAST_US + 20 * S)}, None),
    "since in the silence": ({"since": write_instant(LAST_US + S)}, LAST_US + 10 * S),
    "start after the last event": ({"start": "latest"}, LAST_US + 10 * S),
}


@pytest.mark.parametrize("case", READS)
def test_time_goes_as_far_as_the_read(quiet: Path, case: str) -> None:
    """Time is told up to now or until, whatever else is chosen."""
    options, us = READS[case]
    reader = EventReader(read_options({"path": str(quiet), "clock": "true", **options}), COLUMNS)
    ticks = [tick for one in reader.partitions() if isinstance(one, TickedRange) for tick in one.ticks]
    assert ticks == ([] if us is None else [("plant", 5, us)])


def test_the_last_event_tells_the_time_itself(tmp_path: Path) -> None:
    """There is no time row at the instant of the last event, unless a rule may have left that event out."""
    write_events(tmp_path, numbers(5), bus="plant")
    for rule, wanted in (({}, []), ({"equals": "n/1"}, [("plant", 5, LAST_US)])):
        reader = EventReader(read_options({"path": str(tmp_path), "clock": "true", **rule}), COLUMNS)
        assert [t for one in reader.partitions() if isinstance(one, TickedRange) for t in one.ticks] == wanted


def test_a_tree_has_no_clock(quiet: Path) -> None:
    """A tree at an instant is what it is; with a clock it is refused."""
    with pytest.raises(Exception, match="option 'asOf': cannot be combined with clock"):
        JetSource({"path": str(quiet), "asOf": "-1s", "clock": "true"}).schema()


# -- steps

STEPS: dict[str, tuple[float, float, bool]] = {
    # seconds since the last event at the last time row and now, and whether there is another one
    "less than a second after an event": (0, 0.9, False),
    "a second after an event": (0, 1, True),
    "a second after a time row": (1, 2, True),
    "less than a second after a time row": (5, 5.9, False),
    "the silence once more": (100, 200, True),
    "less than the silence": (100, 199, False),
    "a night": (36_000, 71_999, False),
    "the end of the minute": (30, 60, True),
    "the end of a later minute": (100, 120, False),
    "the end of the hour": (2_000, 3_600, True),
    "before the end of the hour": (2_000, 3_599, False),
    "time that stands still": (5, 5, False),
}


@pytest.mark.parametrize("case", STEPS)
def test_time_goes_in_steps_that_grow(case: str) -> None:
    """A stream is told the time after a second and then when the silence has doubled, and at the end of its windows."""
    before_s, now_s, comes = STEPS[case]
    before_us, now_us = BEGIN_US + int(before_s * S) if before_s else 0, BEGIN_US + int(now_s * S)
    told_us = TickSchedule(Options()).step_us(Reach(1, 7, BEGIN_US, now_us), before_us)
    assert told_us == (now_us if comes else before_us)


def test_a_rule_needs_the_time_of_a_busy_bus() -> None:
    """A stream whose rule may leave out events gets the time also while others happen."""
    busy = Reach(1, 7, BEGIN_US + S, BEGIN_US + S)
    with_rule = read_options({"path": "/", "rule": "plant/**"})
    assert TickSchedule(Options()).step_us(busy, BEGIN_US) == BEGIN_US
    assert TickSchedule(with_rule).step_us(busy, BEGIN_US) == BEGIN_US + S


def test_a_quiet_night_is_a_few_batches() -> None:
    """A bus that sleeps for ten hours gets some twenty time rows, however often the stream looks."""
    told_us, rows = 0, 0
    for second in range(10 * 3600):
        now_us = BEGIN_US + second * S
        after_us = TickSchedule(Options()).step_us(Reach(1, 7, BEGIN_US, now_us), told_us)
        rows, told_us = rows + (after_us != told_us), after_us
    assert 10 < rows < 20


def test_until_ends_the_time_at_once() -> None:
    """The last time row of a stream with an end comes when that end is reached, not a step later."""
    options = Options(until_us=BEGIN_US + 100)
    assert TickSchedule(options).step_us(Reach(1, 7, BEGIN_US, BEGIN_US + 200), 0) == BEGIN_US + 100


# -- offsets


def test_offsets_hold_the_instant(quiet: Path) -> None:
    """The offset of a stream moves with events and with time, and time is told only after the last event."""
    reader = EventStreamReader(read_options({"path": str(quiet), "clock": "true"}), COLUMNS)
    start = reader.initialOffset()
    assert start == {"plant": {"seq": 0, "us": 0}}
    part = reader.latestOffset(start, ReadMaxRows(3))
    assert part == {"plant": {"seq": 3, "us": 0}}
    end = reader.latestOffset(part, ReadMaxRows(3))
    assert end == {"plant": {"seq": 5, "us": LAST_US + 10 * S}}
    assert reader.latestOffset(end, EVERYTHING) == end
    write_heartbeat(quiet, Heartbeat(5, LAST_US + 20 * S))
    assert reader.latestOffset(end, EVERYTHING) == {"plant": {"seq": 5, "us": LAST_US + 20 * S}}
    (only,) = reader.partitions(end, reader.latestOffset(end, EVERYTHING))
    assert isinstance(only, TickedRange)
    assert (only.range, only.ticks) == (None, (("plant", 5, LAST_US + 20 * S),))


def test_either_form_of_an_offset_is_understood(quiet: Path) -> None:
    """A checkpoint made with the option is continued without it, and the other way round; nothing new is no batch."""
    plain = EventStreamReader(read_options({"path": str(quiet)}), COLUMNS)
    clocked = EventStreamReader(read_options({"path": str(quiet), "clock": "true"}), COLUMNS)
    assert clocked.latestOffset({"plant": 3}, EVERYTHING) == {"plant": {"seq": 5, "us": LAST_US + 10 * S}}
    assert clocked.latestOffset({"plant": 3}, ReadMaxRows(1)) == {"plant": {"seq": 4, "us": 0}}
    received: Offset = {"plant": {"seq": 5, "us": LAST_US + 10 * S}}
    assert plain.latestOffset(received, EVERYTHING) == received
    assert plain.partitions({"plant": 5}, received) == []
    assert plain.latestOffset({"plant": {"seq": 3, "us": 1}}, EVERYTHING) == {"plant": 5}
    write_heartbeat(quiet, Heartbeat(5, LAST_US))
    assert clocked.latestOffset({"plant": 5}, EVERYTHING) == {"plant": 5}


# -- a stream


def test_a_stream_to_its_end_is_told_the_time(spark: SparkSession, quiet: Path, tmp_path: Path) -> None:
    """A stream with availableNow ends with the time as of its beginning, from a checkpoint without clocks as well."""
    batches: list[Any] = []

    def run(**options: str) -> list[Any]:
        batches.clear()
        stream = spark.readStream.format("jet").options(maxEventsPerBatch="3", **options).load(str(quiet))
        run_batches(stream, tmp_path / "checkpoint", lambda batch: batches.append(rows(batch)))
        return [*batches]

    assert run() == [changes(1, 3), changes(4, 5)]
    assert run(clock="true") == [[("time", 5, LAST_US + 10 * S)]]
    assert run(clock="true") == []
    write_events(quiet, numbers(12)[5:], bus="plant")
    # These were written by a clock that was behind: their times go on slowly from the heartbeat.
    before_us, now_us = LAST_US + 10 * S, LAST_US + 3600 * S
    write_heartbeat(quiet, Heartbeat(12, now_us))
    *first, last = run(clock="true")
    assert [[seq for _, seq, _ in batch] for batch in first] == [[6, 7, 8], [9, 10, 11]]
    assert [row[:2] for row in last] == [("change", 12), ("time", 12)]
    assert before_us < last[0][2] < last[1][2] == now_us


@pytest.mark.parametrize("source", ["url", "path"])
def test_a_stream_of_a_quiet_bus_is_told_the_time(
    spark: SparkSession, start_daemon: Callable[..., Daemon], tmp_path: Path, source: str
) -> None:
    """A stream with a clock goes on while nothing happens on a live bus, read from the daemon or from its files."""
    daemon = start_daemon("--journal", str(tmp_path / "journal"), "--journal-bus", "plant")
    url = f"jet://{daemon.listens['tcp']}"
    where = {"url": url, "path": str(tmp_path / "journal")}[source]
    seen: list[Row] = []

    def take(batch: DataFrame, _number: int) -> None:
        seen.extend(batch.collect())

    with jetbus.Peer(url, name="owner") as owner:
        owner.add_state("quiet", 1)
        stream = spark.readStream.format("jet").options(clock="true", equals="quiet", **{source: where}).load()
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )

        def has_gone_on() -> bool:
            assert query.isActive, query.exception()
            return len([row for row in seen if row.event == "time"]) > 1

        try:
            until(has_gone_on, "time has not gone on")
        finally:
            query.stop()
    (added,) = (row for row in seen if row.event == "add")
    times = [row for row in seen if row.event == "time"]
    assert len({row.ts for row in times}) == len(times)
    assert [row.ts for row in times] == sorted(row.ts for row in times)
    assert times[-1].ts > added.ts
    assert times[-1].seq >= added.seq
