"""All stages over one batch: the rows brought into order once, each table written from that.

The timeline of a batch is kept in memory while history, rollups and availability are made from it, so that there is
one shuffle and one sort for the three of them. Stages run at the same time, since planning one takes as long as
running it over few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from jetbus.spark import stages
from jetbus.spark.alarms import Alarm, alarms
from jetbus.spark.clock import Clock
from jetbus.spark.stages import Stage
from jetbus.spark.store import Store

__all__ = ["run_stages"]

PART_EVENTS = 250_000
"""Events that one task brings into order."""
THREADS = 4
"""Stages that run at once."""

Made = tuple[str, str, Callable[[], DataFrame]]
"""Name of a stage, the table whose columns it has, how to make its rows."""


def run_stages(
    store: Store,
    events: DataFrame,
    clock: Clock,
    wanted: tuple[Alarm, ...] = (),
    own: Mapping[str, Stage] | None = None,
) -> list[str]:
    """Write what every stage makes of a batch to the store; gives the names of those that had something to do.

    ``wanted`` are the alarms to watch for, ``own`` further stages over events by the name of their table.
    """
    spark = events.sparkSession

    def carried(name: str, table: str) -> DataFrame | None:
        return store.carried(spark, name, table)

    spans = carried("availability", "availability")
    told = stages.told_before(carried("history", "history"), spans)
    line = stages.timeline(events, told, clock, parts=_parts(clock)).persist(StorageLevel.MEMORY_AND_DISK)
    made: list[Made] = [
        ("history", "history", lambda: stages.history_of(line)),
        (
            "rollups",
            "rollups_1s",
            lambda: stages.rollups(stages.history_of(line), carried("rollups", "rollups_1s"), clock),
        ),
        ("availability", "availability", lambda: stages.availability_of(line, spans)),
    ]
    if clock.requests or store.manifest.open.get("requests"):
        made.append(("requests", "requests", lambda: stages.requests(events, carried("requests", "requests"), clock)))
    if wanted:
        made.append(("alarms", "alarms", lambda: alarms(wanted, events, carried("alarms", "alarms"), clock)))

    made += [
        (name, name, partial(_made_by, stage, events, carried, name, clock)) for name, stage in (own or {}).items()
    ]

    def run(stage: Made) -> str:
        name, table, rows = stage
        store.stage(rows(), name, table)
        return name

    try:
        with ThreadPoolExecutor(THREADS) as threads:
            return list(threads.map(run, made))
    finally:
        line.unpersist()


def _made_by(
    stage: Stage, events: DataFrame, carried: Callable[[str, str], DataFrame | None], name: str, clock: Clock
) -> DataFrame:
    return stage(events, carried(name, name), clock)


def _parts(clock: Clock) -> int:
    return -(-sum(clock.counts.values()) // PART_EVENTS)
