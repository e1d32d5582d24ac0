"""The tables as functions from DataFrame to DataFrame.

    log = spark.read.format("jet").load("/var/lib/jet/journal")
    tables.history(log).where("path = 'plant/pump/speed'").show()
    tables.rollups(log, "1m").show()

They are made of the same stages as the pipeline, which calls them batch by batch with the rows it carries from one to
the next; a whole log is one batch that carries nothing. Nothing runs until the result is asked for.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.utils import is_remote

from jetbus.journal.instants import US_PER_S, read_duration
from jetbus.journal.journal_errors import BadInstant
from jetbus.journal.parquet import read_manifest
from jetbus.spark import rollups as windows
from jetbus.spark import timeline as lines
from jetbus.spark.alarms import Alarm, alarm_signals, check_alarms, new_signals, read_alarms
from jetbus.spark.clock import TIME, read_clock
from jetbus.spark.elements import closed_elements, element_rows
from jetbus.spark.journals import open_place
from jetbus.spark.requests import complete_requests, request_rows
from jetbus.spark.schemas import JOURNAL, schema_of
from jetbus.spark.spark_errors import BadOption
from jetbus.spark.sql_text import run

__all__ = [
    "alarms",
    "availability",
    "elements",
    "events",
    "gaps",
    "history",
    "read_journals",
    "requests",
    "rollups",
    "stale",
    "uptime",
]


def read_journals(spark: SparkSession, *folders: str | Path) -> DataFrame:
    """Read the events of journals in folders of this machine, as ``spark.read.format("jet")`` gives them.

    Compacted parts are Parquet, which Spark scans itself, several times as fast as a source written in Python; format
    ``jet`` reads the rest. The two are split at a seq, so each event comes from one of them only.
    """
    parts = [part for folder in folders for part in _parts(spark, Path(folder))]
    return reduce(DataFrame.unionByName, parts)


def _parts(spark: SparkSession, folder: Path) -> list[DataFrame]:
    bus, compacted = open_place(folder), read_manifest(folder)
    rest = spark.read.format("jet").option("start", str(compacted.upto + 1)).load(str(folder))
    if not compacted.spans:
        return [rest]
    # The files do not have the name of the bus.
    stored = schema_of(tuple(column for column in JOURNAL if column.name != "bus"))
    files = [str(folder / span.file) for span in compacted.spans]
    # With a schema, so that Spark need not look into the files before the query runs.
    native = spark.read.schema(stored).parquet(*files).withColumn("bus", F.lit(bus.name))
    return [native.select(*rest.columns), rest]


def events(journal: DataFrame) -> DataFrame:
    """Return every event, with its value in a column of its type: ``num``, ``text``, ``flag`` or ``doc``."""
    return with_values(journal).where(F.col("event") != TIME)


def with_values(journal: DataFrame) -> DataFrame:
    """Add the columns of values to rows of a journal, those of event ``time`` included."""
    if not is_remote():  # a declared pipeline, for one, must not ask for columns while it is being built
        missing = [column.name for column in JOURNAL if column.name not in journal.columns]
        if missing:
            raise BadOption("columns", f"a journal has {', '.join(missing)} as well; read it without .schema()")
    return with_documents(run("events", journal=journal))


def with_documents(events: DataFrame) -> DataFrame:
    """Add the column ``doc`` to events as they are on disk."""
    return run("documents", events=events)


def _typed(log: DataFrame) -> DataFrame:
    """Give a log with its values by type, which it may have already; ``BadOption`` for a stream."""
    # A declared pipeline must not ask anything of a frame while it is being built.
    if not is_remote() and log.isStreaming:
        raise BadOption(
            "log",
            "a table needs the rows before and after each event, which no batch of a stream has; run a Pipeline, which "
            "carries them from batch to batch, or read the log with spark.read instead of readStream",
        )
    return log if not is_remote() and "num" in log.columns else with_values(log)


def history(log: DataFrame) -> DataFrame:
    """Return one row per value of a state and the time it was in force; ``valid_to`` is null if it still is."""
    rows = _typed(log)
    return lines.history(lines.timeline(rows, read_clock(rows)))


def rollups(log: DataFrame, window: str = "1m", *, until: datetime | None = None) -> DataFrame:
    """Return numbers per state and window, of ``1m`` or any other length, such as ``90s`` or ``1d``.

    Windows start at multiples of their length since 1970. Those that were not over when the log ended are left out,
    unless nothing more came ``until`` an instant.
    """
    size_us = _read_length(window)
    rows = _typed(log)
    clock = read_clock(rows, until)
    values = lines.history(lines.timeline(rows, clock))
    if window not in windows.WINDOWS_US:
        return windows.windows_of_length(values, clock, window, size_us)
    parts = windows.window_parts(values, clock)
    return windows.complete_windows(parts).where(F.col("size") == window)


def elements(log: DataFrame) -> DataFrame:
    """Return one row per time that a description of a state or method was valid; ``valid_to`` is null if it still is.

    Elements that were never described have none.
    """
    rows = _typed(log)
    return closed_elements(element_rows(rows, read_clock(rows)), and_open=True)


def _read_length(window: str) -> int:
    """Return the length of windows in microseconds."""
    try:
        length_us = round(read_duration(window) * US_PER_S)
    except BadInstant as problem:
        raise BadOption("window", str(problem)) from None
    if length_us < 1:
        raise BadOption("window", f"windows of {window!r} have no length; give one such as 90s")
    return length_us


def availability(log: DataFrame) -> DataFrame:
    """Return one row per time that a state or method was on the bus; ``until`` is null if it still is."""
    rows = _typed(log)
    return lines.availability(lines.timeline(rows, read_clock(rows)))


def requests(log: DataFrame, *, until: datetime | None = None) -> DataFrame:
    """Count set and call requests per minute, path and caller; minutes that were not over are left out."""
    rows = _typed(log)
    return complete_requests(request_rows(rows, read_clock(rows, until)))


def alarms(log: DataFrame, wanted: str | Path | tuple[Alarm, ...], *, until: datetime | None = None) -> DataFrame:
    """Return the rows that the alarms of a file would have raised and cleared over a log."""
    chosen = wanted if isinstance(wanted, tuple) else read_alarms(wanted)
    check_alarms(chosen, log.sparkSession)
    rows = _typed(log)
    return new_signals(alarm_signals(chosen, rows, read_clock(rows, until)))


# -- questions to the table of availability


def uptime(spans: DataFrame, since: datetime, until: datetime) -> DataFrame:
    """Return how long each path was there in a period, by owner: columns bus, path, owner, up_s, share."""
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
    """Return the times a path was not there: columns bus, path, gone_at, back_at, gone_s, ended_by."""
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
    """Return the states that have not changed for so long: columns bus, path, owner, last_ts, quiet_s."""
    quiet_s = (F.unix_micros(F.lit(now).cast("timestamp")) - F.unix_micros("last_ts")) / F.lit(1e6)
    return (
        spans.where(F.col("until").isNull() & (F.col("kind") == "state"))
        .select("bus", "path", "owner", "last_ts", quiet_s.alias("quiet_s"))
        .where(F.col("quiet_s") > after_s)
    )
