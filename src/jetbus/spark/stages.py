"""The stages of the pipeline that need to know what came before: history, rollups, availability and requests.

A stage is a function of three things: the rows of a batch, the rows it carried over from the batch before, and the
clock. It gives the rows of its table with a column ``into``: the name of the table a row goes into, or ``open`` for
those that are carried to the next batch because their end is not known yet. Both have the same columns, so that one
job writes both and the open rows can be looked at like the others. A whole log is one batch that carries nothing;
cut into batches anywhere it gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.clock import CUTS, Clock
from jetbus.spark.schemas import TABLES

__all__ = [
    "OPEN",
    "SIZES",
    "Stage",
    "availability",
    "availability_of",
    "history",
    "history_of",
    "requests",
    "rollups",
    "timeline",
    "told_before",
]

OPEN = "open"
"""Where a row goes that is not complete yet."""

Stage = Callable[[DataFrame, DataFrame | None, Clock], DataFrame]

SIZES: dict[str, int] = {"rollups_1s": 1_000_000, "rollups_1m": 60_000_000, "rollups_1h": 3_600_000_000}
"""The windows of each table of rollups, in microseconds."""

REQUESTS_US = 60_000_000
"""The windows of the table of requests."""

_ENDS = ("remove", *CUTS)


def _us(column: str) -> Column:
    return F.unix_micros(F.col(column))


def _seconds(us: Column) -> Column:
    return us / F.lit(1e6)


# -- the timeline
#
# History, rollups and availability all ask what comes after an event of the same path. So the rows of a batch are
# brought into that order once, and each of the three takes what it needs from it.

_LINE = ("bus", "path", "seq", "ts", "event", "kind", "value", "num", "text", "flag", "peer")


def timeline(events: DataFrame, told: DataFrame | None, clock: Clock, *, parts: int | None = None) -> DataFrame:
    """What came of each path and what followed it, after what was ``told``, with an end wherever the bus was cut.

    Besides the columns of events: ``after`` and ``after_ts``, the event that follows; ``begins``, whether it was not
    there before; ``span``, a number for each time that it was there, 0 if that was told before. In so many ``parts``,
    if said.
    """
    signs = events.where(F.col("event").isin("add", "change", "remove")).select(
        *(F.coalesce("kind", F.lit("state")).alias("kind") if name == "kind" else F.col(name) for name in _LINE),
        F.lit(False).alias("told"),
    )
    if told is not None:
        signs = told.withColumn("told", F.lit(True)).unionByName(signs, allowMissingColumns=True)
    if clock.cuts:
        signs = signs.unionByName(clock.cuts_of(signs).withColumn("told", F.lit(False)), allowMissingColumns=True)
    if parts is not None:
        signs = signs.repartition(parts, "bus", "path")
    follows = Window.partitionBy("bus", "path").orderBy("seq")
    so_far = follows.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = F.col("before")
    # None of these needs another one, so that Spark goes through the rows once.
    return (
        signs.withColumns(
            {
                "before": F.lag("event").over(follows),
                "after": F.lead("event").over(follows),
                "after_ts": F.lead("ts").over(follows),
                "span": F.count_if(F.col("event").isin("add", *_ENDS) & ~F.col("told")).over(so_far),
            }
        )
        .where(~F.col("event").isin(*_ENDS))
        .withColumn("begins", (F.col("event") == "add") | before.isNull() | before.isin(*_ENDS))
        .drop("before")
    )


def told_before(values: DataFrame | None, spans: DataFrame | None) -> DataFrame | None:
    """What a timeline goes on from: the open rows of history, and the methods among those of availability."""
    methods = _told_spans(None if spans is None else spans.where(F.col("kind") != "state"))
    states = _told_values(values)
    if states is None or methods is None:
        return methods if states is None else states
    return states.unionByName(methods, allowMissingColumns=True)


def _told_values(carried: DataFrame | None) -> DataFrame | None:
    if carried is None:
        return None
    own = {"ts": F.col("valid_from"), "kind": F.lit("state")}
    return carried.select(*(own.get(name, F.col(name)).alias(name) for name in _LINE))


def _told_spans(carried: DataFrame | None) -> DataFrame | None:
    if carried is None:
        return None
    return carried.select(
        *("bus", "path", "seq", "kind", F.col("last_ts").alias("ts"), F.lit("add").alias("event")),
        F.col("owner").alias("peer"),
    )


# -- history


def history(events: DataFrame, carried: DataFrame | None, clock: Clock) -> DataFrame:
    """One row per value of a state; the end of the newest one of each path is open."""
    return history_of(timeline(events, _told_values(carried), clock))


def history_of(line: DataFrame) -> DataFrame:
    """The rows of history of a timeline."""
    ended = F.col("after").isNotNull()
    own = {
        "valid_from": F.col("ts"),
        "valid_to": F.when(ended, F.greatest("ts", "after_ts")),
        "ended_by": F.col("after"),
    }
    return line.where(F.col("kind") == "state").select(
        *(own.get(name, F.col(name)).alias(name) for name in TABLES["history"].names), _into("history", ended)
    )


def _into(table: str, complete: Column) -> Column:
    return F.when(complete, F.lit(table)).otherwise(F.lit(OPEN)).alias("into")


# -- rollups
#
# A value counts in the window in which it came, and weighs in every window it was in force for. Windows in which no
# value came have no row, so that a value matters to two windows at most: the one it came in (its head) and the one it
# ended in (its tail). A head is added when the value has ended or its window is complete, whichever is first; until
# then it waits among the open rows of history. So a carried row of rollups never has to be corrected.


def rollups(values: DataFrame, carried: DataFrame | None, clock: Clock) -> DataFrame:
    """Numbers per state and window, from the rows of history that this batch brought or still has open."""
    groups = _groups(values, clock)
    if carried is not None:
        groups = _merged(groups, carried)
    complete = _us("window_end") <= F.col("now_us")
    table = F.element_at(
        F.create_map(*[F.lit(part) for name, size_us in SIZES.items() for part in (size_us, name)]),
        _us("window_end") - _us("window_start"),
    )
    return (
        groups.join(clock.times(values.sparkSession), "bus")
        .where(~complete | (F.col("count") > 0))
        .select(*TABLES["rollups_1s"].names, F.when(complete, table).otherwise(F.lit(OPEN)).alias("into"))
    )


def _groups(values: DataFrame, clock: Clock) -> DataFrame:
    """The heads and tails of a batch, by window."""
    numbers = (
        values.withColumn("x", F.coalesce("num", F.col("flag").cast("int").cast("double")))
        .where(F.col("x").isNotNull())
        .join(clock.times(values.sparkSession), "bus")
        .select(
            "bus", "path", "seq", "x", "before_us", "now_us", _us("valid_from").alias("a"), _us("valid_to").alias("b")
        )
    )
    parts = [part for size_us in SIZES.values() for part in (_head(size_us), _tail(size_us))]
    every = numbers.select("bus", "path", "x", F.inline(F.array(*parts))).where(F.col("start_us").isNotNull())
    came = F.when(F.col("seq").isNotNull(), F.col("x"))
    grouped = every.groupBy("bus", "path", "start_us", "size_us").agg(
        F.count(came).alias("count"),
        F.min(came).alias("min"),
        F.max(came).alias("max"),
        F.avg(came).alias("mean"),
        F.sum(F.col("x") * _seconds(F.col("weight_us"))).alias("area"),
        _seconds(F.sum("weight_us")).alias("known_s"),
        F.min_by(came, "seq").alias("first"),
        F.max_by(came, "seq").alias("last"),
        F.stddev_samp(came).alias("stddev"),
    )
    return grouped.select(
        "*",
        F.timestamp_micros("start_us").alias("window_start"),
        F.timestamp_micros(F.col("start_us") + F.col("size_us")).alias("window_end"),
        F.try_divide("area", "known_s").alias("time_mean"),
    ).drop("start_us", "size_us", "area")


def _head(size_us: int) -> Column:
    """The window a value came in, unless it has been told before or is not complete yet."""
    a, b = F.col("a"), F.col("b")
    start = a - F.pmod(a, F.lit(size_us))
    end = start + size_us
    due = (F.col("before_us").isNull() | (end > F.col("before_us"))) & (b.isNotNull() | (end <= F.col("now_us")))
    return _part(due, start, size_us, F.least(F.coalesce(b, end), end) - a, F.col("seq"))


def _tail(size_us: int) -> Column:
    """The window a value ended in, where that is a later one."""
    a, b = F.col("a"), F.col("b")
    start = b - F.pmod(b, F.lit(size_us))
    return _part(start > a, start, size_us, b - start, F.lit(None).cast("bigint"))


def _part(due: Column, start: Column, size_us: int, weight: Column, seq: Column) -> Column:
    return F.struct(
        F.when(due, start).alias("start_us"),
        F.lit(size_us).cast("bigint").alias("size_us"),
        weight.alias("weight_us"),
        seq.alias("seq"),
    )


_WINDOW = ["bus", "path", "window_start", "window_end"]


def _merged(fresh: DataFrame, carried: DataFrame) -> DataFrame:
    """Two parts of the same windows as one: the carried part came first."""
    a, b = carried.alias("a"), fresh.alias("b")
    m, n = F.coalesce("a.count", F.lit(0)), F.coalesce("b.count", F.lit(0))
    mean = (_zero("a.mean") * m + _zero("b.mean") * n) / F.nullif(m + n, F.lit(0))
    apart = F.coalesce(F.col("b.mean") - F.col("a.mean"), F.lit(0.0))
    squares = _squares("a", m) + _squares("b", n) + apart * apart * m * n / F.nullif(m + n, F.lit(0))
    known = _zero("a.known_s") + _zero("b.known_s")
    area = _zero("a.time_mean") * _zero("a.known_s") + _zero("b.time_mean") * _zero("b.known_s")
    return a.join(b, _WINDOW, "full_outer").select(
        *_WINDOW,
        (m + n).alias("count"),
        F.least("a.min", "b.min").alias("min"),
        F.greatest("a.max", "b.max").alias("max"),
        mean.alias("mean"),
        F.try_divide(area, known).alias("time_mean"),
        known.alias("known_s"),
        F.coalesce("a.first", "b.first").alias("first"),
        F.coalesce("b.last", "a.last").alias("last"),
        F.when(m + n > 1, F.sqrt(squares / (m + n - 1))).alias("stddev"),
    )


def _zero(column: str) -> Column:
    return F.coalesce(column, F.lit(0.0))


def _squares(part: str, count: Column) -> Column:
    """The sum of squared distances from the mean, as the standard deviation has it."""
    deviation = _zero(f"{part}.stddev")
    return deviation * deviation * F.greatest(count - 1, F.lit(0))


# -- availability

_ENDED_BY = ("add", *_ENDS)


def availability(events: DataFrame, carried: DataFrame | None, clock: Clock) -> DataFrame:
    """One row per time that a state or method was on the bus; those that are there now are open."""
    return availability_of(timeline(events, _told_spans(carried), clock), carried)


def availability_of(line: DataFrame, carried: DataFrame | None) -> DataFrame:
    """The rows of availability of a timeline."""
    # Numbers only: these are summed up by hash, while a single text would have Spark sort all rows again.
    names = F.array(*[F.lit(name) for name in _ENDED_BY])
    # Spark takes an element at an unknown place for a known one, hence the condition.
    ended_by = F.when(F.col("end").isNotNull(), F.element_at(names, F.col("end").cast("int")))
    ends = F.col("after").isin(*_ENDED_BY)
    changes = (F.col("event") == "change") & ~F.col("told")
    numbers = line.groupBy("bus", "path", "span").agg(
        F.min("seq").alias("seq"),
        F.min("ts").alias("since"),
        F.max(F.when(ends, F.col("after_ts"))).alias("until"),
        F.count_if(changes).alias("changes"),
        F.max("ts").alias("last_ts"),
        _seconds(F.max(_us("after_ts") - _us("ts"))).alias("quiet_s"),
        F.max(F.when(ends, F.array_position(names, F.col("after")))).alias("end"),
    )
    texts = line.where(F.col("begins") & ~F.col("told")).select(
        "bus", "path", "span", "kind", F.col("peer").alias("owner")
    )
    parts = numbers.unionByName(texts, allowMissingColumns=True)
    if carried is not None:
        before = carried.drop("until", "up_s", "ended_by").withColumn("span", F.lit(0).cast("bigint"))
        parts = parts.unionByName(before, allowMissingColumns=True)
    return (
        parts.groupBy("bus", "path", "span")
        .agg(
            *(F.min(name).alias(name) for name in ("seq", "since")),
            *(F.max(name).alias(name) for name in ("kind", "owner", "until", "last_ts", "quiet_s", "end")),
            F.sum("changes").alias("changes"),
        )
        .withColumns({"up_s": _seconds(_us("until") - _us("since")), "ended_by": ended_by})
        .select(*TABLES["availability"].names, _into("availability", F.col("until").isNotNull()))
    )


# -- requests


def requests(events: DataFrame, carried: DataFrame | None, clock: Clock) -> DataFrame:
    """Requests per minute, path and caller. The requests of a minute that is not over are carried one by one."""
    start = _us("ts") - F.pmod(_us("ts"), F.lit(REQUESTS_US))
    caller = F.regexp_replace("peer", "#[0-9]+$", "")
    one = events.where(F.col("event").isin("set", "call")).select(
        "bus",
        F.timestamp_micros(start).alias("window_start"),
        "event",
        "path",
        F.when(caller == "", F.col("peer")).otherwise(caller).alias("caller"),
        F.lit(1).cast("bigint").alias("count"),
        (F.get_json_object("detail", "$.outcome") == "error").cast("bigint").alias("errors"),
        F.get_json_object("detail", "$.us").cast("bigint").alias("us_min"),
    )
    if carried is not None:
        one = one.unionByName(carried.select(*one.columns))
    one = one.join(clock.times(events.sparkSession), "bus")
    complete = _us("window_start") + REQUESTS_US <= F.col("now_us")
    waiting = one.where(~complete).drop("before_us", "now_us").withColumn("into", F.lit(OPEN))
    counted = (
        one.where(complete)
        .groupBy("bus", "window_start", "event", "path", "caller")
        .agg(
            F.sum("count").alias("count"),
            F.sum(F.coalesce("errors", F.lit(0))).alias("errors"),
            F.min("us_min").alias("us_min"),
            F.avg("us_min").alias("us_mean"),
            F.percentile("us_min", [0.5, 0.9, 0.99]).alias("us"),
            F.max("us_min").alias("us_max"),
        )
        .withColumns(
            {
                "error_rate": F.col("errors") / F.col("count"),
                "us_p50": F.col("us")[0],
                "us_p90": F.col("us")[1],
                "us_p99": F.col("us")[2],
                "into": F.lit("requests"),
            }
        )
    )
    return counted.unionByName(waiting, allowMissingColumns=True).select(*TABLES["requests"].names, "into")
