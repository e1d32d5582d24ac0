"""Every table against the reference, over whole logs and over the same logs cut into batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import DataFrame, SparkSession

from jetbus.journal import read_duration
from jetbus.journal.events import CUTS
from jetbus.rules import rule
from jetbus.spark import tables
from jetbus.spark.alarms import Alarm, alarm_signals, new_signals, open_signals
from jetbus.spark.carried import after_cuts, newest_alarms, newest_elements, newest_paths, open_stays, open_values
from jetbus.spark.clock import Position, batch_clock
from jetbus.spark.elements import closed_elements, element_rows, open_elements, valid_elements
from jetbus.spark.requests import complete_requests, open_requests, request_rows
from jetbus.spark.rollups import WINDOWS_US, complete_windows, open_windows, window_parts
from jetbus.spark.schemas import DOC, TABLES, schema_of
from jetbus.spark.spark_errors import BadOption
from jetbus.spark.timeline import availability, history, open_paths, timeline
from support.spark import reference
from support.spark.compare import assert_same, rows_of
from support.spark.logs import cut_logs, frame, make_log
from support.spark.reference import AlarmRule, Event, Row

few = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)

ALARMS = (
    Alarm("hot", rule("pump/**"), "num > 80"),
    Alarm("held", rule("pump/*/speed"), "num > 0", None, 2_000_000),
    Alarm("slack", rule("**"), "num > 10", "num < -1", 500_000),
    Alarm("on", rule("a"), "flag", "text = 'text'"),
    Alarm("deep", rule("**"), "variant_get(doc, '$.x', 'int') = 1", "num is not null"),
    Alarm("strange", rule("**"), "num < normal_low or num > normal_high", None, 1_000),
    Alarm("silent", rule("pump/**"), "stale_s is not null", None, 250_000, is_stale=True),
    Alarm("turning", rule("**"), "unit = 'rpm' and num > 0", "unit = '°C'"),
)
PLAIN_ALARMS = [
    AlarmRule("hot", lambda path: path.startswith("pump/"), lambda v: (v["num"] or 0) > 80, None, 0),
    AlarmRule("held", lambda path: path.startswith("pump/"), lambda v: (v["num"] or 0) > 0, None, 2_000_000),
    AlarmRule("slack", lambda _: True, lambda v: (v["num"] or 0) > 10, lambda v: (v["num"] or 0) < -1, 500_000),
    AlarmRule("on", lambda path: path == "a", lambda v: bool(v["flag"]), lambda v: v["text"] == "text", 0),
    AlarmRule("deep", lambda _: True, lambda v: v["doc"] == {"unit": "C", "x": 1}, lambda v: v["num"] is not None, 0),
    AlarmRule("strange", lambda _: True, reference.is_strange, None, 1_000),
    AlarmRule("silent", lambda path: path.startswith("pump/"), lambda v: bool(v["stale_s"]), None, 250_000, True),
    AlarmRule(
        "turning",
        lambda _: True,
        lambda v: v["unit"] == "rpm" and (v["num"] or 0) > 0,
        lambda v: v["unit"] == "°C",
        0,
    ),
]


WANTED: dict[str, Callable[[list[Event]], list[Row]]] = {
    "history": reference.history,
    "rollups": reference.rollups,
    "elements": reference.elements,
    "availability": reference.availability,
    "requests": reference.requests,
    "alarms": partial(reference.alarms, wanted=PLAIN_ALARMS),
}


class Batches:
    """The stages over one batch after the other, as the pipeline calls them, with all that is carried in memory."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.found: dict[str, list[Row]] = {name: [] for name in WANTED}
        self._positions: dict[str, Position] = {}
        self._carried: dict[str, pa.Table] = {}

    def take(self, batch: list[Event]) -> None:
        """Make the rows of a batch, and what is carried to the next."""
        rows = tables.events(frame(self.spark, batch)).localCheckpoint()
        now = {bus: self._positions[bus].us for bus in self._positions} | reference.last_ts(batch)
        has_cuts = any(event.event in CUTS for event in batch)
        clock = batch_clock(self.spark, self._positions, now, rows if has_cuts else None)
        known, described = (
            None if (carried := self._frame(name)) is None else after_cuts(carried, self._positions)
            for name in ("paths", "elements")
        )
        line = timeline(rows, clock, known, described).localCheckpoint()
        elements = element_rows(rows, clock, described).localCheckpoint()
        self._keep("elements", closed_elements(elements))
        self._keep("history", history(line), "valid_to is not null")
        self._keep("availability", availability(line), "until is not null")
        parts = window_parts(history(line), clock, self._frame("windows")).localCheckpoint()
        self._keep("rollups", complete_windows(parts))
        asked = request_rows(rows, clock, self._frame("requests")).localCheckpoint()
        self._keep("requests", complete_requests(asked))
        watched = self._frame("alarms")
        raised = None if watched is None else newest_alarms(watched)
        signals = alarm_signals(ALARMS, rows, clock, raised, described).localCheckpoint()
        self._keep("alarms", new_signals(signals))
        for event in batch:
            before = self._positions.get(event.bus, Position(0, 0))
            cut_seq = event.seq if event.event in CUTS else before.cut_seq
            self._positions[event.bus] = Position(event.seq, event.ts, cut_seq)
        self._carry("paths", open_paths(line))
        self._carry("windows", open_windows(parts))
        self._carry("requests", open_requests(asked))
        self._carry("alarms", open_signals(signals))
        self._carry("elements", open_elements(elements))

    def finish(self) -> dict[str, list[Row]]:
        """Give all rows, with those that are still open."""
        known, described = self._frame("paths"), self._frame("elements")
        assert known is not None
        assert described is not None
        self.found["elements"] += rows_of(valid_elements(newest_elements(described, self._positions)))
        there = newest_paths(known, self._positions)
        self.found["history"] += rows_of(open_values(there))
        self.found["availability"] += rows_of(open_stays(there))
        return self.found

    def _frame(self, name: str) -> DataFrame | None:
        return self.spark.createDataFrame(self._carried[name].combine_chunks()) if name in self._carried else None

    def _keep(self, name: str, rows: DataFrame, which: str = "true") -> None:
        self.found[name] += rows_of(rows.where(which).toArrow())

    def _carry(self, name: str, rows: DataFrame) -> None:
        """Append rows to those carried: a log in which the newest row of a key counts."""
        fresh = rows.toArrow()
        # Whether a column may have nulls depends on what else was carried.
        known = [self._carried[name]] if name in self._carried else []
        self._carried[name] = pa.concat_tables([*known, fresh], promote_options="default")


def collected(spark: SparkSession, batches: list[list[Event]]) -> dict[str, list[Row]]:
    """All rows that the stages gave over some batches, by table, and at last those that are open."""
    made = Batches(spark)
    for batch in batches:
        made.take(batch)
    return made.finish()


@few
@given(data=cut_logs())
def test_tables_are_those_of_the_reference(spark: SparkSession, data: tuple[list[Event], list[list[Event]]]) -> None:
    """A log that comes in batches, cut anywhere, gives the rows that plain Python gives for the whole of it."""
    log, cut = data
    found = collected(spark, cut)
    for name, make in WANTED.items():
        wanted = make(log)
        assert wanted, f"a log that leaves {name} empty shows nothing"
        assert_same(name, found[name], wanted)


WHOLE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "history": tables.history,
    **{f"rollups of {size}": partial(tables.rollups, window=size) for size in WINDOWS_US},
    "elements": tables.elements,
    "availability": tables.availability,
    "requests": tables.requests,
    "alarms": partial(tables.alarms, wanted=ALARMS),
}


def test_a_whole_log_gives_the_same(spark: SparkSession) -> None:
    """The functions that take a whole log at once give the rows that plain Python gives."""
    log = make_log(random.Random(5), 600)
    rows = tables.events(frame(spark, log)).localCheckpoint()
    for name, make in WHOLE.items():
        table, _, size = name.partition(" of ")
        wanted = [row for row in WANTED[table](log) if not size or row["size"] == size]
        assert wanted, f"a log that leaves {name} empty shows nothing"
        assert_same(table, rows_of(make(rows)), wanted)


@few
@given(data=cut_logs())
def test_events_have_their_values_in_columns(spark: SparkSession, data: tuple[list[Event], Any]) -> None:
    """Every event is kept as it was, with its value as number, text, flag or document."""
    log, _ = data
    got = tables.events(frame(spark, log))
    assert got.schema.simpleString() == schema_of((*TABLES["events"].columns, DOC)).simpleString()
    assert_same("events", rows_of(got), reference.events(log))


@pytest.mark.parametrize("size", ["90s", "250ms"])
def test_windows_of_any_length(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    """A look at a log takes windows of any length, with the figures that the reference has for them."""
    monkeypatch.setitem(reference.SIZES_US, size, round(read_duration(size) * 1_000_000))
    log = make_log(random.Random(23), 300)
    found = rows_of(tables.rollups(frame(spark, log), size).select(*TABLES["rollups"].names))
    assert found
    assert_same("rollups", found, reference.rollups_of(log, size))


@pytest.mark.parametrize("size", ["0s", "often", "-1m"])
def test_windows_of_no_length(spark: SparkSession, size: str) -> None:
    """A length that is none is refused by name."""
    with pytest.raises(BadOption, match="window"):
        tables.rollups(frame(spark, []), size)


STREAMED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "history": tables.history,
    "rollups": tables.rollups,
    "elements": tables.elements,
    "availability": tables.availability,
    "requests": tables.requests,
    "alarms": lambda log: tables.alarms(log, ALARMS[:1]),
}


@pytest.mark.parametrize("name", STREAMED)
def test_a_table_of_a_stream_is_refused(spark: SparkSession, name: str) -> None:
    """A function that needs more than one batch says what to do instead, before Spark talks of output modes."""
    stream = spark.readStream.format("rate").load()
    with pytest.raises(BadOption, match=r"no batch of a stream has; run a Pipeline, .* read the log with spark.read"):
        STREAMED[name](stream)
