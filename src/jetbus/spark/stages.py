"""The stages of the pipeline that need to know what came before: history, rollups, availability and requests.

A stage is a function of three things: the rows of a batch, the rows it carried over from the batch before, and the
clock. It gives the rows of its table with a column ``into``: the name of the table a row goes into, or ``open`` for
those that are carried to the next batch because their end is not known yet. Both have the same columns, so that one
job writes both and the open rows can be looked at like the others. A whole log is one batch that carries nothing;
cut into batches anywhere it gives the same rows.

History, rollups and availability ask what comes after an event of the same path. Spark brings the rows of a path
together, by ``together``; what is made of them then is told in ``parts``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.clock import Clock
from jetbus.spark.files import OPEN
from jetbus.spark.parts import LINE, SIGNS, STAGES, give, parts_of
from jetbus.spark.requests import ASKED, CARRIED, COLUMNS, give_requests
from jetbus.spark.schemas import JOURNAL, TABLES
from jetbus.spark.windows import SIZES

__all__ = ["OPEN", "SIZES", "Carried", "Stage", "of_paths", "requests", "together", "with_values"]

Stage = Callable[[DataFrame, DataFrame | None, Clock], DataFrame]

Carried = Callable[[str, str], DataFrame | None]
"""Gives the rows that a stage has left open, by its name and that of the table whose columns they have."""


# -- events


def with_values(journal: DataFrame) -> DataFrame:
    """Every event, with its value in a column of its type; ``typed`` does the same in Arrow."""
    value = F.col("value")
    first = F.substring(value, 1, 1)
    number = F.expr("try_cast(value as double)")
    plain = F.substring(value, F.lit(2), F.length(value) - 2)
    escaped = F.get_json_object(F.concat(F.lit("["), value, F.lit("]")), "$[0]")
    return journal.select(
        *TABLES["events"].names[: len(JOURNAL)],
        F.when(F.abs(number) < float("inf"), number).alias("num"),
        F.when(first == '"', F.when(value.contains("\\"), escaped).otherwise(plain)).alias("text"),
        _flag(value).alias("flag"),
        F.when(first.isin("{", "["), F.try_parse_json(value)).alias("doc"),
    )


def _flag(value: Column) -> Column:
    return F.when(value == "true", F.lit(True)).when(value == "false", F.lit(False))


# -- the rows of a path together


def together(events: DataFrame, carried: Carried | None, clock: Clock) -> DataFrame:
    """What came of each path and what was carried of it, in parts: all rows of a path are in one of them.

    A row is an event, told now or (``told``) before; or it has a ``window`` or a ``span`` that is not over.
    """
    is_sign = F.col("event").isin(*SIGNS) & F.col("path").isNotNull()
    kind = F.coalesce("kind", F.lit("state")).alias("kind")
    rows = events.where(is_sign).select(*(kind if name == "kind" else name for name in LINE))
    rows = rows.withColumn("told", F.lit(False))
    for more in _carried(carried) if carried is not None else ():
        rows = rows.unionByName(more, allowMissingColumns=True)
    count = parts_of(sum(clock.counts.values()))
    return rows.repartition(count, "bus", "path") if count > 1 else rows.coalesce(1)


def _carried(carried: Carried) -> list[DataFrame]:
    """The open rows of all stages as rows to go on from."""
    values, windows, spans = (carried(stage, table) for stage, table in STAGES.items())
    found = []
    if values is not None:
        own = {"ts": F.col("valid_from"), "kind": F.lit("state")}
        line = values.select(*(own.get(name, F.col(name)).alias(name) for name in LINE))
        found.append(line.withColumn("told", F.lit(True)))
    if windows is not None:
        found.append(windows.select("bus", "path", _packed("rollups_1s", "window")))
    if spans is not None:
        # Values tell that a state is there. A method has none, so its span does.
        event = F.when(F.col("kind") != "state", F.lit("add")).alias("event")
        sign = ("seq", F.col("last_ts").alias("ts"), event, "kind", F.lit(True).alias("told"))
        found.append(spans.select("bus", "path", *sign, _packed("availability", "span")))
    return found


def _packed(table: str, name: str) -> Column:
    """All columns of a row as one."""
    return F.struct(*(F.col(column) for column in TABLES[table].names if column not in ("bus", "path"))).alias(name)


# -- history, rollups and availability


def of_paths(stage: str, events: DataFrame, carried: Carried | None, clock: Clock) -> DataFrame:
    """The rows of one of the stages ``history``, ``rollups`` and ``availability``.

    History has one row per value of a state; the end of the newest one of each path is open. Rollups have numbers
    per state and window. Availability has one row per time that a state or method was on the bus.
    """
    schema = TABLES[STAGES[stage]].schema.add("into", "string")
    return together(events, carried, clock).mapInArrow(partial(give, stage=stage, clock=clock), schema)


# -- requests


def requests(events: DataFrame, carried: DataFrame | None, clock: Clock) -> DataFrame:
    """Requests per minute, path and caller. The requests of a minute that is not over are carried one by one."""
    rows = events.where(F.col("event").isin(*ASKED)).select(*COLUMNS)
    known = carried if carried is not None else events.sparkSession.createDataFrame([], TABLES["requests"].schema)
    rows = rows.unionByName(known.select(*CARRIED), allowMissingColumns=True)
    count = parts_of(clock.requests)
    together = rows.repartition(count, "bus", "path") if count > 1 else rows.coalesce(1)
    schema = TABLES["requests"].schema.add("into", "string")
    return together.mapInArrow(partial(give_requests, clock=clock), schema)
