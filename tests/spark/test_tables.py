"""Every table against the reference, over whole logs and over the same logs cut into batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import DataFrame, SparkSession

from jetbus.rules import rule
from jetbus.spark import stages, tables
from jetbus.spark.alarms import Alarm
from jetbus.spark.alarms import alarms as alarm_stage
from jetbus.spark.clock import Clock, read_clock
from jetbus.spark.schemas import TABLES
from jetbus.spark.typed import with_types
from spark import reference
from spark.compare import assert_same, rows_of
from spark.logs import cut_logs, frame, make_log
from spark.reference import AlarmRule, Event, Row

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
)
PLAIN_ALARMS = [
    AlarmRule("hot", lambda path: path.startswith("pump/"), lambda v: (v["num"] or 0) > 80, None, 0),
    AlarmRule("held", lambda path: path.startswith("pump/"), lambda v: (v["num"] or 0) > 0, None, 2_000_000),
    AlarmRule("slack", lambda _: True, lambda v: (v["num"] or 0) > 10, lambda v: (v["num"] or 0) < -1, 500_000),
    AlarmRule("on", lambda path: path == "a", lambda v: bool(v["flag"]), lambda v: v["text"] == "text", 0),
    AlarmRule("deep", lambda _: True, lambda v: v["doc"] == {"unit": "C", "x": 1}, lambda v: v["num"] is not None, 0),
]


def run_stages(rows: DataFrame, carried: dict[str, DataFrame], clock: Clock) -> dict[str, DataFrame]:
    """All stages over one batch, by the name of what each carries."""

    def carry(stage: str, _table: str) -> DataFrame | None:
        return carried.get(stage)

    return {
        **{stage: stages.of_paths(stage, rows, carry, clock) for stage in ("history", "rollups", "availability")},
        "requests": stages.requests(rows, carried.get("requests"), clock),
        "alarms": alarm_stage(ALARMS, rows, carried.get("alarms"), clock),
    }


WANTED: dict[str, Callable[[list[Event]], list[Row]]] = {
    "history": reference.history,
    **{name: partial(reference.rollups, table=name) for name in stages.SIZES},
    "availability": reference.availability,
    "requests": reference.requests,
    "alarms": partial(reference.alarms, wanted=PLAIN_ALARMS),
}
SHOWS_OPEN = ("history", "availability")
"""The tables whose open rows are part of what there is to know."""


def collected(spark: SparkSession, batches: list[list[Event]]) -> dict[str, list[Row]]:
    """All rows that the stages gave over some batches, by table, and at last those that are open."""
    found: dict[str, list[Row]] = {name: [] for name in WANTED}
    carried: dict[str, DataFrame] = {}
    still_open: dict[str, pa.Table] = {}
    before: dict[str, int] = {}
    for batch in batches:
        rows = tables.events(frame(spark, batch)).localCheckpoint()
        clock = read_clock(rows, before)
        before = dict(clock.now)
        # Asked for once each, and told to the next batch as plain rows: half of all jobs less.
        given_rows = {name: out.toArrow() for name, out in run_stages(rows, carried, clock).items()}
        for name, out in given_rows.items():
            is_open = pc.equal(out["into"], "open")
            for row in rows_of(out.filter(pc.invert(is_open))):
                found[row.pop("into")].append(row)
            still_open[name] = out.filter(is_open).drop(["into"])
        carried = {name: spark.createDataFrame(out) for name, out in still_open.items() if out.num_rows}
    for name in SHOWS_OPEN:
        found[name] += rows_of(still_open[name])
    return found


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
    "rollups_1s": partial(tables.rollups, window="1s"),
    "rollups_1m": partial(tables.rollups, window="1m"),
    "rollups_1h": partial(tables.rollups, window="1h"),
    "availability": tables.availability,
    "requests": tables.requests,
    "alarms": partial(tables.alarms, wanted=ALARMS),
}


def test_a_whole_log_gives_the_same(spark: SparkSession) -> None:
    """The functions that take a whole log at once give the rows that plain Python gives."""
    log = make_log(random.Random(5), 600)
    rows = tables.events(frame(spark, log)).localCheckpoint()
    for name, make in WHOLE.items():
        wanted = WANTED[name](log)
        assert wanted, f"a log that leaves {name} empty shows nothing"
        assert_same(name, rows_of(make(rows)), wanted)


@few
@given(data=cut_logs())
def test_events_have_their_values_in_columns(spark: SparkSession, data: tuple[list[Event], Any]) -> None:
    """Every event is kept as it was, with its value as number, text, flag or document."""
    log, _ = data
    got = tables.events(frame(spark, log))
    assert got.schema.simpleString() == TABLES["events"].schema.simpleString()
    assert_same("events", rows_of(got), reference.events(log))


def test_tasks_make_the_same_columns(spark: SparkSession) -> None:
    """What tasks of a pipeline make of values is what Spark makes of them."""
    values = [
        "1",
        "-2.5",
        "1e400",
        "3 ",
        '"a"',
        '"a\\n\\u00e4"',
        "true",
        "false",
        "null",
        None,
        '""',
        "[1",
        '{"a":1,"a":2}',
    ]
    values += ['{"b":[1.50,1e3,-7],"a":{"x":null,"y":"' + "z" * 99 + '"}}', "[]", "{}", "[12345678901234567890]"]
    log = [Event("plant", n, 0, "change", "state", "a", value) for n, value in enumerate(values, 1)]
    rows = frame(spark, log)
    mine = with_types(rows.toArrow())
    wanted = tables.events(rows).orderBy("seq").select("num", "text", "flag", "doc").collect()
    for row, one in zip(mine.to_pylist(), wanted, strict=True):
        doc = row["doc"] and (row["doc"]["metadata"], row["doc"]["value"])
        assert (row["num"], row["text"], row["flag"]) == (one.num, one.text, one.flag), row["value"]
        assert doc == (one.doc and (one.doc.metadata, one.doc.value)), row["value"]
