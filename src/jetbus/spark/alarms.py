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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.journal.instants import read_duration
from jetbus.rules import Rule
from jetbus.spark.clock import Clock
from jetbus.spark.conditions import matches, path_rule
from jetbus.spark.entries import read_entries
from jetbus.spark.errors import BadAlarm
from jetbus.spark.lines import places_of
from jetbus.spark.parts import SIGNS, parts_of
from jetbus.spark.schemas import JOURNAL, TABLES, schema_of
from jetbus.spark.signals import Watch, give_signals, with_places
from jetbus.spark.source import arrow_of
from jetbus.spark.stages import Stage, with_values
from jetbus.spark.typed import coded

__all__ = ["Alarm", "Watching", "alarms", "check_alarms", "read_alarms"]

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
# What each alarm sees of a row, only Spark can tell: conditions are SQL. What follows from it is told in `signals`.


def alarms(wanted: tuple[Alarm, ...], events: DataFrame, carried: DataFrame | None, clock: Clock) -> DataFrame:
    """Raised and cleared rows; alarms that are raised or wait for their hold time are open."""
    rows = (
        events.where(F.col("event").isin(*SIGNS) & (F.coalesce("kind", F.lit("state")) == "state"))
        .select("bus", "path", "seq", "ts", F.when(_alive(), F.col("value")).alias("value"), F.inline(_seen(wanted)))
        .withColumn("told", F.lit(False))
    )
    if carried is not None:
        rows = rows.unionByName(_carried(wanted, carried).select(*rows.columns))
    count = parts_of(sum(clock.counts.values()))
    together = rows.repartition(count, "bus", "path") if count > 1 else rows.coalesce(1)
    schema = TABLES["alarms"].schema.add("into", "string")
    return together.mapInArrow(partial(give_signals, watched=_watched(wanted), clock=clock), schema)


def _alive() -> Column:
    return F.col("event").isin("add", "change")


def _seen(wanted: tuple[Alarm, ...]) -> Column:
    """What all alarms see of a row: a list of place, on and off, for those whose rule is about its path."""
    return F.array_compact(F.array(*[_seen_by(place, alarm) for place, alarm in enumerate(wanted)]))


def _seen_by(place: int, alarm: Alarm) -> Column:
    on = _alive() & F.coalesce(F.expr(alarm.when), F.lit(False))
    off = ~on if alarm.clear is None else ~on & (~_alive() | F.coalesce(F.expr(alarm.clear), F.lit(False)))
    found = F.struct(F.lit(place).alias("place"), on.alias("on"), off.alias("off"))
    return F.when(matches(alarm.rule, F.col("path")), found)


def _watched(wanted: tuple[Alarm, ...]) -> list[Watch]:
    return [Watch(alarm.name, alarm.severity, alarm.hold_us) for alarm in wanted]


def _carried(wanted: tuple[Alarm, ...], carried: DataFrame) -> DataFrame:
    """Open alarms as rows to go on from; those that are no longer in the file are forgotten."""
    places = F.create_map(*[F.lit(part) for place, alarm in enumerate(wanted) for part in (alarm.name, place)])
    return (
        carried.withColumn("place", F.try_element_at(places, F.col("alarm")))
        .where(F.col("place").isNotNull())
        .withColumns({"on": F.lit(True), "off": F.lit(False), "told": F.col("what") == "raised"})
    )


# -- over a few events


class Watching:
    """The alarms of a pipeline. Over a few events, Spark is asked for what conditions say without starting a job."""

    def __init__(self, wanted: tuple[Alarm, ...]) -> None:
        self._wanted = wanted
        self._watched = _watched(wanted)
        self._seen = _seen(wanted).alias("seen")  # made once: each part of it is a call to Java

    @property
    def stage(self) -> Stage:
        """The stage for any number of events."""
        return partial(alarms, self._wanted)

    def made(self, spark: SparkSession, events: pa.Table, carried: Iterable[Path], clock: Clock) -> pa.Table | None:
        """What ``alarms`` gives, as a table; None if there is nothing to look at."""
        found = [*self._carried(carried), *self._found(spark, events)]
        if not any(len(rows) for rows in found):
            return None
        return with_places(pa.concat_tables(found).combine_chunks(), self._watched, clock)

    def _found(self, spark: SparkSession, events: pa.Table) -> Iterator[pa.Table]:
        """What is seen of events."""
        is_sign = places_of(events["event"], SIGNS) >= 0
        is_state = places_of(events["kind"], ("state", "method")) != 1
        rows = events.filter(pa.array(is_sign & is_state & self._is_about(events["path"])))
        if not len(rows):
            return
        plain = rows.select([column.name for column in JOURNAL]).cast(arrow_of([column.name for column in JOURNAL]))
        # Conditions over rows that are part of the plan are decided while it is made.
        frame = spark.createDataFrame(plain, schema_of(JOURNAL))
        told = [row.seen for row in with_values(frame).select(self._seen).collect()]
        of_row = pa.array(np.repeat(np.arange(len(told)), [len(seen) for seen in told]))
        is_alive = pa.array(places_of(rows["event"], ("add", "change")) >= 0)
        columns = {name: plain[name].take(of_row) for name in ("bus", "path", "seq", "ts")}
        value = pc.if_else(is_alive, plain["value"].combine_chunks(), pa.scalar(None, pa.string()))
        flat = [one for seen in told for one in seen]
        yield pa.table(
            {
                **columns,
                "value": value.take(of_row),
                "place": pa.array([one.place for one in flat], pa.int64()),
                "on": pa.array([one.on for one in flat], pa.bool_()),
                "off": pa.array([one.off for one in flat], pa.bool_()),
                "told": pa.repeat(False, len(flat)),
            }
        )

    def _is_about(self, paths: pa.ChunkedArray) -> NDArray[np.bool_]:
        """Whether any rule is about the path of each row."""
        encoded = coded(paths)
        once = [self._is_about_path(path) for path in encoded.dictionary.to_pylist()]
        found: NDArray[np.bool_] = np.array([*once, False], np.bool_)[encoded.indices.fill_null(-1).to_numpy()]
        return found

    def _is_about_path(self, path: str) -> bool:
        return any(
            alarm.rule.matches_path(path) and (alarm.rule.sees_daemon or not path.startswith("$jet/"))
            for alarm in self._wanted
        )

    def _carried(self, files: Iterable[Path]) -> Iterator[pa.Table]:
        """Open alarms as rows to go on from."""
        names = pa.array([alarm.name for alarm in self._wanted])
        for file in files:
            rows = pq.ParquetFile(file).read()
            place = pc.index_in(rows["alarm"], value_set=names).cast(pa.int64())
            size = len(rows)
            line = rows.select(["bus", "path", "seq", "ts", "value"])
            for name, column in (
                ("place", place),
                ("on", pa.repeat(True, size)),
                ("off", pa.repeat(False, size)),
                ("told", pc.equal(rows["what"], "raised")),
            ):
                line = line.append_column(name, column)
            yield line.filter(place.is_valid())
