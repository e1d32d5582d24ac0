"""The tables as functions from DataFrame to DataFrame.

    log = spark.read.format("jet").load("/var/lib/jet/journal")
    tables.history(log).where("path = 'plant/pump/speed'").show()
    tables.rollups(log, "1m").show()

``events`` looks at one row at a time and takes a stream, too. The others look back: over a whole log they are called
as here, and a stream calls their stages batch by batch with what it carries over (``pipeline`` does that). Both give
the same rows. They first run one small job to read the clock of each bus.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark import alarms as alarming
from jetbus.spark import stages
from jetbus.spark.alarms import Alarm, check_alarms, read_alarms
from jetbus.spark.clock import Clock, read_clock
from jetbus.spark.errors import BadOption
from jetbus.spark.schemas import JOURNAL

__all__ = ["alarms", "availability", "events", "gaps", "history", "requests", "rollups", "stale", "uptime"]


def events(journal: DataFrame) -> DataFrame:
    """Every event, with its value in a column of its type: ``num``, ``text``, ``flag`` or ``doc``."""
    missing = [column.name for column in JOURNAL if column.name not in journal.columns]
    if missing:
        raise BadOption("columns", f"a journal has {', '.join(missing)} as well; read it without .schema()")
    return stages.with_values(journal)


def _read(log: DataFrame, until: datetime | None = None) -> tuple[DataFrame, Clock]:
    rows = log if "num" in log.columns else events(log)
    clock = read_clock(rows)
    return rows, clock if until is None else clock.known_until(until)


def history(log: DataFrame) -> DataFrame:
    """One row per value of a state, with the time it was in force; ``valid_to`` is null if it still is."""
    rows, clock = _read(log)
    return stages.of_paths("history", rows, None, clock).drop("into")


def rollups(log: DataFrame, window: str = "1m", *, until: datetime | None = None) -> DataFrame:
    """Numbers per state and window of ``1s``, ``1m`` or ``1h``.

    Windows that were not over when the log ended are left out, unless nothing more came ``until`` an instant.
    """
    table = f"rollups_{window}"
    if table not in stages.SIZES:
        sizes = ", ".join(name.removeprefix("rollups_") for name in stages.SIZES)
        raise BadOption("window", f"there are no windows of {window!r}; there are {sizes}")
    rows, clock = _read(log, until)
    return stages.of_paths("rollups", rows, None, clock).where(F.col("into") == table).drop("into")


def availability(log: DataFrame) -> DataFrame:
    """One row per time that a state or method was on the bus; ``until`` is null if it still is."""
    rows, clock = _read(log)
    return stages.of_paths("availability", rows, None, clock).drop("into")


def requests(log: DataFrame, *, until: datetime | None = None) -> DataFrame:
    """Set and call requests per minute, path and caller; a minute that was not over is left out as in ``rollups``."""
    rows, clock = _read(log, until)
    return stages.requests(rows, None, clock).where(F.col("into") == "requests").drop("into")


def alarms(log: DataFrame, wanted: str | Path | tuple[Alarm, ...]) -> DataFrame:
    """What the alarms of a file would have raised and cleared over a log."""
    chosen = wanted if isinstance(wanted, tuple) else read_alarms(wanted)
    check_alarms(chosen, log.sparkSession)
    rows, clock = _read(log)
    return alarming.alarms(chosen, rows, None, clock).where(F.col("into") == "alarms").drop("into")


# -- questions to the table of availability


def uptime(spans: DataFrame, since: datetime, until: datetime) -> DataFrame:
    """Per path and owner, how much of a period it was there: columns bus, path, owner, up_s, share."""
    begin, end = F.lit(since).cast("timestamp"), F.lit(until).cast("timestamp")
    from_us = F.unix_micros(F.greatest(F.col("since"), begin))
    to_us = F.unix_micros(F.least(F.coalesce("until", end), end))
    up_s = F.sum(F.greatest(to_us - from_us, F.lit(0))) / F.lit(1e6)
    period_s = (F.unix_micros(end) - F.unix_micros(begin)) / F.lit(1e6)
    return (
        spans.where((F.col("since") < end) & (F.coalesce("until", end) > begin))
        .groupBy("bus", "path", "owner")
        .agg(up_s.alias("up_s"), (up_s / period_s).alias("share"))
    )


def gaps(spans: DataFrame) -> DataFrame:
    """The times between that a path was not there: columns bus, path, gone_at, back_at, gone_s, ended_by."""
    follows = Window.partitionBy("bus", "path").orderBy("seq")
    return (
        spans.withColumn("back_at", F.lead("since").over(follows))
        .where(F.col("back_at") > F.col("until"))
        .select(
            *("bus", "path", F.col("until").alias("gone_at"), "back_at"),
            ((F.unix_micros("back_at") - F.unix_micros("until")) / F.lit(1e6)).alias("gone_s"),
            "ended_by",
        )
    )


def stale(spans: DataFrame, now: datetime, after_s: float) -> DataFrame:
    """The states that are there and have not changed for so long: columns bus, path, owner, last_ts, quiet_s."""
    quiet_s = (F.unix_micros(F.lit(now).cast("timestamp")) - F.unix_micros("last_ts")) / F.lit(1e6)
    return (
        spans.where(F.col("until").isNull() & (F.col("kind") == "state"))
        .select("bus", "path", "owner", "last_ts", quiet_s.alias("quiet_s"))
        .where(F.col("quiet_s") > after_s)
    )
