"""Every table against the reference, over whole logs and over the same logs cut into batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from pyspark.sql import DataFrame, SparkSession

from jetbus.rules import rule
from jetbus.spark import stages, tables
from jetbus.spark.alarms import Alarm
from jetbus.spark.alarms import alarms as alarm_stage
from jetbus.spark.clock import Clock, read_clock
from jetbus.spark.schemas import TABLES
from spark import reference
from spark.compare import assert_same, rows_of
from spark.logs import cut_logs, frame
from spark.reference import AlarmRule, Event, Row

few = settings(
    max_examples=3,
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
    values = stages.history(rows, carried.get("history"), clock).localCheckpoint()
    return {
        "history": values,
        "rollups": stages.rollups(values.drop("into"), carried.get("rollups"), clock),
        "availability": stages.availability(rows, carried.get("availability"), clock),
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
    before: dict[str, int] = {}
    for batch in batches:
        rows = tables.events(frame(spark, batch)).localCheckpoint()
        clock = read_clock(rows, before)
        before = dict(clock.now)
        given_rows = {name: out.localCheckpoint() for name, out in run_stages(rows, carried, clock).items()}
        for out in given_rows.values():
            for row in rows_of(out.where("into != 'open'")):
                found[row.pop("into")].append(row)
        carried = {name: out.where("into = 'open'").drop("into") for name, out in given_rows.items()}
    for name in SHOWS_OPEN:
        found[name] += rows_of(carried[name])
    return found


@few
@given(data=cut_logs())
def test_tables_are_those_of_the_reference(spark: SparkSession, data: tuple[list[Event], list[list[Event]]]) -> None:
    """A log gives the rows that plain Python gives, as one batch and cut into batches anywhere."""
    log, cut = data
    wanted = {name: make(log) for name, make in WANTED.items()}
    assert all(wanted.values()), "a log that leaves a table empty shows nothing"
    for batches in ([log], cut):
        found = collected(spark, batches)
        for name, rows in wanted.items():
            assert_same(name, found[name], rows)


@few
@given(data=cut_logs())
def test_events_have_their_values_in_columns(spark: SparkSession, data: tuple[list[Event], Any]) -> None:
    """Every event is kept as it was, with its value as number, text, flag or document."""
    log, _ = data
    got = tables.events(frame(spark, log))
    assert got.schema.simpleString() == TABLES["events"].schema.simpleString()
    assert_same("events", rows_of(got), reference.events(log))
