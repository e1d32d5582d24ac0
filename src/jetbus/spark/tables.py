"""The tables as functions from DataFrame to DataFrame.

    log = spark.read.format("jet").load("/var/lib/jet/journal")
    tables.history(log).where("path = 'plant/pump/speed'").show()
    tables.rollups(log, "1m").show()

They are made of the same stages as the pipeline, which calls them batch by batch with the rows it carries from one to
the next; a whole log is one batch that carries nothing. Nothing runs until the result is asked for.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.utils import is_remote

from jetbus.spark import rollups as windows
from jetbus.spark import timeline as lines
from jetbus.spark.alarms import Alarm, alarm_signals, check_alarms, new_signals, read_alarms
from jetbus.spark.clock import TIME, read_clock
from jetbus.spark.errors import BadOption
from jetbus.spark.requests import complete_requests, request_rows
from jetbus.spark.schemas import DOC, JOURNAL, TABLES

__all__ = ["alarms", "availability", "events", "gaps", "history", "requests", "rollups", "stale", "uptime"]


def events(journal: DataFrame) -> DataFrame:
    """Every event, with its value in a column of its type: ``num``, ``text``, ``flag`` or ``doc``."""
    return with_values(journal).where(F.col("event") != TIME)


def with_values(journal: DataFrame) -> DataFrame:
    """Add the columns of values to rows of a journal, those of event ``time`` included."""
    if not is_remote():  # a declared pipeline, for one, must not ask for columns while it is being built
        missing = [column.name for column in JOURNAL if column.name not in journal.columns]
        if missing:
            raise BadOption("columns", f"a journal has {', '.join(missing)} as well; read it without .schema()")
    value = F.col("value")
    first = F.substring(value, 1, 1)
    number = F.expr("try_cast(value as double)")
    plain = F.substring(value, F.lit(2), F.length(value) - 2)
    escaped = F.get_json_object(F.concat(F.lit("["), value, F.lit("]")), "$[0]")
    is_true = F.when(value == "true", F.lit(True)).when(value == "false", F.lit(False))
    typed = journal.select(
        *TABLES["events"].names[: len(JOURNAL)],
        F.when(F.abs(number) < float("inf"), number).alias("num"),
        F.when(first == '"', F.when(value.contains("\\"), escaped).otherwise(plain)).alias("text"),
        is_true.alias("flag"),
    )
    return with_documents(typed)


def with_documents(rows: DataFrame) -> DataFrame:
    """Add the column ``doc`` to events as they are on disk."""
    is_document = F.substring("value", 1, 1).isin("{", "[")
    return rows.withColumn(DOC.name, F.when(is_document, F.try_parse_json(F.col("value"))))


def _typed(log: DataFrame) -> DataFrame:
    """Give a log with its values by type, which it may have already."""
    return log if not is_remote() and "num" in log.columns else with_values(log)


def history(log: DataFrame) -> DataFrame:
    """One row per value of a state, with the time it was in force; ``valid_to`` is null if it still is."""
    rows = _typed(log)
    return lines.history(lines.timeline(rows, read_clock(rows)))


def rollups(log: DataFrame, window: str = "1m", *, until: datetime | None = None) -> DataFrame:
    """Numbers per state and window of ``1s``, ``1m`` or ``1h``.

    Windows that were not over when the log ended are left out, unless nothing more came ``until`` an instant.
    """
    if window not in windows.WINDOWS_US:
        raise BadOption("window", f"there are no windows of {window!r}; there are {', '.join(windows.WINDOWS_US)}")
    rows = _typed(log)
    clock = read_clock(rows, until)
    parts = windows.window_parts(lines.history(lines.timeline(rows, clock)), clock)
    return windows.complete_windows(parts).where(F.col("size") == window)


def availability(log: DataFrame) -> DataFrame:
    """One row per time that a state or method was on the bus; ``until`` is null if it still is."""
    rows = _typed(log)
    return lines.availability(lines.timeline(rows, read_clock(rows)))


def requests(log: DataFrame, *, until: datetime | None = None) -> DataFrame:
    """Set and call requests per minute, path and caller; minutes that were not over are left out."""
    rows = _typed(log)
    return complete_requests(request_rows(rows, read_clock(rows, until)))


def alarms(log: DataFrame, wanted: str | Path | tuple[Alarm, ...], *, until: datetime | None = None) -> DataFrame:
    """What the alarms of a file would have raised and cleared over a log."""
    chosen = wanted if isinstance(wanted, tuple) else read_alarms(wanted)
    check_alarms(chosen, log.sparkSession)
    rows = _typed(log)
    return new_signals(alarm_signals(chosen, rows, read_clock(rows, until)))


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
