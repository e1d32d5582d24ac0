"""Alarms: a rule, a condition in SQL, a hold time and hysteresis, read from a TOML file.

    [alarm.hot]
    rule = "plant/**/temperature"
    when = "num > 80"
    clear = "num < 75"
    hold = "10s"
    severity = "warning"

``rule`` says which states it is about. An alarm is raised once ``when`` has held without a break for ``hold`` (nothing
said: at once), and cleared by the first value for which ``clear`` holds (nothing said: for which ``when`` does not) or
when the state goes away. Conditions see the columns of the table *events*: ``num``, ``text``, ``flag``, ``doc``,
``value``, ``path``, ``bus``, ``peer``.

What is carried from batch to batch is one row for each alarm that is raised or waits for its hold time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.journal.instants import read_duration
from jetbus.rules import Rule
from jetbus.spark.clock import Clock
from jetbus.spark.conditions import matches, path_rule
from jetbus.spark.entries import read_entries
from jetbus.spark.errors import BadAlarm
from jetbus.spark.schemas import TABLES
from jetbus.spark.stages import OPEN

__all__ = ["Alarm", "alarms", "check_alarms", "read_alarms"]

_WORDS = ("rule", "when", "clear", "hold", "severity")
ALARMS_MAX = 1000
"""Alarms in one file."""


@dataclass(frozen=True)
class Alarm:
    """One alarm of a file."""

    name: str
    rule: Rule
    when: str
    clear: str | None = None
    hold_us: int = 0
    severity: str = "alarm"


def read_alarms(file: str | Path) -> tuple[Alarm, ...]:
    """The alarms of a TOML file."""
    entries = read_entries(file, "alarm", ALARMS_MAX, "merge some by wider rules")
    return tuple(_read_alarm(name, entry) for name, entry in entries.items())


def _read_alarm(name: str, entry: dict[str, Any]) -> Alarm:
    for word, value in entry.items():
        if word not in _WORDS:
            raise BadAlarm(name, f"there is no {word!r}; there are {', '.join(_WORDS)}")
        if not isinstance(value, str):
            raise BadAlarm(name, f"{word} takes text in quotes, not {value!r}")
    if "when" not in entry:
        raise BadAlarm(name, 'it needs a condition; add when = "num > 80" or the like')
    try:
        rule = path_rule(entry.get("rule", "**"))
        hold_us = round(read_duration(entry.get("hold", "0s")) * 1e6)
    except ValueError as problem:
        raise BadAlarm(name, getattr(problem, "problem", str(problem))) from problem
    return Alarm(name, rule, entry["when"], entry.get("clear"), hold_us, entry.get("severity", "alarm"))


def check_alarms(wanted: tuple[Alarm, ...], spark: SparkSession) -> None:
    """Refuse conditions that Spark does not understand, before anything runs."""
    nothing = spark.createDataFrame([], TABLES["events"].schema)
    for alarm in wanted:
        for word, condition in (("when", alarm.when), ("clear", alarm.clear)):
            if condition is not None:
                _check_condition(nothing, alarm.name, word, condition)


def _check_condition(events: DataFrame, name: str, word: str, condition: str) -> None:
    try:
        kind = events.select(F.expr(condition)).schema[0].dataType.simpleString()
    except Exception as problem:
        first = str(problem).strip().splitlines()[0]
        raise BadAlarm(name, f"{word} = {condition!r} is not understood: {first}") from problem
    if kind != "boolean":
        raise BadAlarm(name, f"{word} = {condition!r} is a {kind}, not a condition")


# -- the stage
#
# For each alarm and path, rows follow one another with `on` (the condition holds) and `off` (it clears). A run of
# rows that are on gives the signal "raised" at its first row, if the run lasted for the hold time; each row that is
# off gives "cleared". Of signals that repeat, the first counts. What is left alternates.


def alarms(wanted: tuple[Alarm, ...], events: DataFrame, carried: DataFrame | None, clock: Clock) -> DataFrame:
    """Raised and cleared rows; alarms that are raised or wait for their hold time are open."""
    follows = Window.partitionBy("alarm", "bus", "path").orderBy("seq")
    rest = follows.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    at_us = F.unix_micros("ts")
    holds = (
        _rows(wanted, events, carried, clock)
        .join(clock.times(events.sparkSession), "bus")
        .withColumns(
            {
                "starts": F.col("on") & ~F.coalesce(F.lag("on").over(follows), F.lit(False)),
                "ends_us": F.min(F.when(~F.col("on"), at_us)).over(rest),
            }
        )
        .withColumn("due_us", F.when(F.col("told"), at_us).otherwise(at_us + F.col("hold_us")))
        .withColumn("signal", _signal())
        .where(F.col("signal").isNotNull())
    )
    before = F.coalesce(F.lag("signal").over(follows), F.lit("cleared"))
    changes = (
        holds.withColumn("before", before)
        .where((F.col("signal") != F.col("before")) & ~((F.col("signal") == "pending") & (F.col("before") == "raised")))
        .withColumn("due", F.timestamp_micros("due_us"))
        .withColumn("raised_before", F.lag("due").over(follows))
        .withColumn("is_last", F.lead("signal").over(follows).isNull())
    )
    raised = F.col("signal") == "raised"
    places = F.array(
        F.when(F.col("signal").isin("raised", "cleared") & ~F.col("told"), F.lit("alarms")),
        F.when((F.col("signal") == "pending") | (raised & F.col("is_last")), F.lit(OPEN)),
    )
    return (
        changes.withColumn("into", F.explode(F.array_compact(places)))
        .withColumn("what", F.col("signal"))
        .withColumn("ts", F.when(raised, F.col("due")).otherwise(F.col("ts")))
        .withColumn(
            "raised_at", F.when(raised, F.col("due")).when(F.col("signal") == "cleared", F.col("raised_before"))
        )
        .select(*TABLES["alarms"].names, "into")
    )


def _signal() -> Column:
    lasted = F.coalesce("ends_us", "now_us") >= F.col("due_us")
    return (
        F.when(F.col("told") | (F.col("starts") & lasted), F.lit("raised"))
        .when(F.col("starts") & F.col("ends_us").isNull(), F.lit("pending"))
        .when(F.col("off"), F.lit("cleared"))
    )


def _rows(wanted: tuple[Alarm, ...], events: DataFrame, carried: DataFrame | None, clock: Clock) -> DataFrame:
    """What each alarm sees of each path: columns alarm, severity, hold_us, bus, path, seq, ts, value, on, off, told."""
    alive = F.col("event").isin("add", "change")
    concerned = F.array_compact(F.array(*[_seen_by(alarm, alive) for alarm in wanted]))
    is_value = F.col("event").isin("add", "change", "remove") & (F.coalesce("kind", F.lit("state")) == "state")
    rows = (
        events.where(is_value)
        .select("bus", "path", "seq", "ts", F.when(alive, F.col("value")).alias("value"), F.inline(concerned))
        .withColumn("told", F.lit(False))
    )
    if carried is not None:
        rows = rows.unionByName(_carried(wanted, carried).select(*rows.columns))
    if clock.cuts:
        keys = rows.select("alarm", "severity", "hold_us", "bus", "path").distinct()
        ends = keys.join(clock.cuts_of(keys), ["bus", "path"]).withColumns(
            {"value": F.lit(None).cast("string"), "on": F.lit(False), "off": F.lit(True), "told": F.lit(False)}
        )
        rows = rows.unionByName(ends.select(*rows.columns))
    return rows


def _seen_by(alarm: Alarm, alive: Column) -> Column:
    on = alive & F.coalesce(F.expr(alarm.when), F.lit(False))
    off = ~on if alarm.clear is None else ~on & (~alive | F.coalesce(F.expr(alarm.clear), F.lit(False)))
    return F.when(
        matches(alarm.rule, F.col("path")),
        F.struct(
            F.lit(alarm.name).alias("alarm"),
            F.lit(alarm.severity).alias("severity"),
            F.lit(alarm.hold_us).cast("bigint").alias("hold_us"),
            on.alias("on"),
            off.alias("off"),
        ),
    )


def _carried(wanted: tuple[Alarm, ...], carried: DataFrame) -> DataFrame:
    """Open alarms as rows to go on from; those that are no longer in the file are forgotten."""
    holds = F.create_map(*[F.lit(part) for alarm in wanted for part in (alarm.name, alarm.hold_us)])
    return (
        carried.withColumn("hold_us", F.try_element_at(holds, F.col("alarm")).cast("bigint"))
        .where(F.col("hold_us").isNotNull())
        .withColumns({"on": F.lit(True), "off": F.lit(False), "told": F.col("what") == "raised"})
    )
