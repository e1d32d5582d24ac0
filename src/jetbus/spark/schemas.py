"""The tables of the pipeline: their columns and the meaning of each, in one place.

Times are instants in UTC with microseconds. A row belongs to the day of its time column; ``day`` is a partition column
of every table that grows. Tables with a name like ``carried_...`` hold the rows that the next batch goes on from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

__all__ = ["CARRIED", "JOURNAL", "TABLES", "TREE", "VALUES", "Column", "Table", "arrow_of", "schema_of"]


_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "date": DateType(),
    "variant": VariantType(),
    "stay": StructType(
        [
            StructField("seq", LongType()),
            StructField("since", TimestampType()),
            StructField("owner", StringType()),
            StructField("changes", LongType()),
            StructField("quiet_us", LongType()),
        ]
    ),
}
"""Types by their names in SQL, looked up without Spark, since a task has none to ask."""


class Column(NamedTuple):
    """One column: name, type in SQL, meaning."""

    name: str
    type: str
    meaning: str


class Table(NamedTuple):
    """One table: the column with the day of its partitions, its meaning, its columns, and further partitions."""

    time: str | None
    """None for tables without days: they are rewritten now and then, and stay small."""
    meaning: str
    columns: tuple[Column, ...]
    parts: tuple[str, ...] = ()
    """Columns that files are partitioned by before the day."""

    @property
    def schema(self) -> StructType:
        return schema_of(self.columns)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def partitions(self) -> list[str]:
        """The columns that files are partitioned by."""
        return [*self.parts, *(["day"] if self.time else [])]

    @property
    def stored(self) -> StructType:
        """The schema on disk: all columns, and the day."""
        return schema_of((*self.columns, *((Column("day", "date", "the day of its time"),) if self.time else ())))


def schema_of(columns: tuple[Column, ...]) -> StructType:
    """Return the Spark schema of some columns."""
    return StructType([StructField(column.name, _TYPES[column.type]) for column in columns])


JOURNAL = (
    Column("bus", "string", "name of the bus"),
    Column("seq", "bigint", "number of the event on its bus, without gaps"),
    Column("ts", "timestamp", "when the daemon handled it"),
    Column("event", "string", "add, change, remove; describe, past; set, call; peer, gone; start, stop; gap"),
    Column("kind", "string", "state or method"),
    Column("path", "string", "path of the state or method"),
    Column("value", "string", "its value as JSON text; for set and call what was asked"),
    Column("peer", "string", "who did it: name and connection number"),
    Column(
        "detail", "string", "JSON: outcome, error and microseconds of a request; flags, access and schema of an add"
    ),
    Column("source_ts", "timestamp", "the time that the owner gave the value; null if it gave none"),
    Column("quality", "string", "good, uncertain or bad; null if the owner said nothing, which means good"),
)
"""Columns of format ``jet`` over a journal."""

TREE = (
    Column("bus", "string", "name of the bus; of a live daemon its address"),
    Column("path", "string", "path of the state or method"),
    Column("kind", "string", "state or method; unknown of a live daemon's tree"),
    Column("value", "string", "its value as JSON text"),
    Column("peer", "string", "its owner"),
    Column("ts", "timestamp", "when the value came"),
    Column("seq", "bigint", "number of the event that brought the value"),
)

_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some columns of a journal or a tree."""
    types = {column.name: _ARROW[column.type] for column in (*TREE, *JOURNAL)}
    return pa.schema([(name, types[name]) for name in columns])


"""Columns of format ``jet`` with ``asOf``, or of a live daemon."""

VALUES = (
    Column("num", "double", "the value if it is a number"),
    Column("text", "string", "the value if it is a string"),
    Column("flag", "boolean", "the value if it is true or false"),
)

DOC = Column("doc", "variant", "the value if it is an object or an array")
"""Derived from ``value`` whenever events are read: not every tool that reads tables knows variants."""

_EVENTS = Table("ts", "Every event of the journal, with its value in columns of its type.", (*JOURNAL, *VALUES))

_HISTORY = Table(
    "valid_from",
    "One row per value of a state: the time it was in force.",
    (
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state"),
        Column("seq", "bigint", "number of the event that brought the value"),
        Column("valid_from", "timestamp", "when the value came"),
        Column("valid_to", "timestamp", "when it ended; null while it is in force"),
        Column("event", "string", "add or change"),
        Column("ended_by", "string", "change, remove, add; stop, start or gap where the daemon or the record ended"),
        Column("value", "string", "the value as JSON text"),
        *VALUES,
        Column("peer", "string", "who brought it"),
        Column("source_ts", "timestamp", "the time that the owner gave the value; null if it gave none"),
        Column("quality", "string", "good, uncertain or bad; null means good"),
        Column("unit", "string", "unit of the value, as its owner described it then; null if it did not"),
        Column("misfit", "string", "what of that description the value does not fit: type, enum, minimum, maximum"),
    ),
)

_ROLLUPS = Table(
    "window_start",
    "Numbers per state and window; true and false count as 1 and 0, and bad values not at all. Only windows in which a "
    "value came have a row.",
    (
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state"),
        Column("size", "string", "1s, 1m or 1h"),
        Column("window_start", "timestamp", "begin of the window"),
        Column("window_end", "timestamp", "end of the window, not part of it"),
        Column("count", "bigint", "how many values came"),
        Column("min", "double", "least of them"),
        Column("max", "double", "greatest of them"),
        Column("mean", "double", "their mean, each counting once"),
        Column("time_mean", "double", "mean over the time in which the value was known; null if that is no time"),
        Column("known_s", "double", "seconds of the window in which the value was known and not bad"),
        Column("good_s", "double", "seconds of them in which its quality was good, and not uncertain"),
        Column("first", "double", "the first that came"),
        Column("last", "double", "the last that came"),
        Column("stddev", "double", "sample standard deviation of those that came; null for a single one"),
        Column("unit", "string", "unit of the last that came"),
    ),
    ("size",),
)

_AVAILABILITY = Table(
    "since",
    "One row per time that a state or method was on the bus.",
    (
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state or method"),
        Column("kind", "string", "state or method"),
        Column("owner", "string", "who had added it"),
        Column("seq", "bigint", "number of the event it came with"),
        Column("since", "timestamp", "when it came"),
        Column("until", "timestamp", "when it went; null while it is there"),
        Column("up_s", "double", "seconds from since to until"),
        Column("changes", "bigint", "how often its value changed"),
        Column("last_ts", "timestamp", "its last sign of life: when it came or changed last"),
        Column("quiet_s", "double", "longest time without a change; for stale states"),
        Column("ended_by", "string", "remove, add; stop, start or gap where the daemon or the record ended"),
    ),
)

_REQUESTS = Table(
    "window_start",
    "Set and call requests per minute, path and caller.",
    (
        Column("bus", "string", "name of the bus"),
        Column("window_start", "timestamp", "begin of the minute"),
        Column("event", "string", "set or call"),
        Column("path", "string", "what was asked for"),
        Column("caller", "string", "name of the peer that asked, or its connection number"),
        Column("count", "bigint", "how many requests"),
        Column("errors", "bigint", "how many of them failed"),
        Column("error_rate", "double", "errors / count"),
        Column("us_min", "bigint", "shortest time to the answer, microseconds"),
        Column("us_mean", "double", "mean of it"),
        Column("us_p50", "double", "median of it"),
        Column("us_p90", "double", "90th percentile"),
        Column("us_p99", "double", "99th percentile"),
        Column("us_max", "bigint", "longest time to the answer"),
    ),
)

_ALARMS = Table(
    "ts",
    "Alarms raised and cleared.",
    (
        Column("alarm", "string", "name of the alarm in its file"),
        Column("severity", "string", "as its file says"),
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state"),
        Column("what", "string", "raised or cleared"),
        Column("ts", "timestamp", "when; a hold time is part of it"),
        Column("seq", "bigint", "number of the event that began or ended it"),
        Column("value", "string", "the value that began or ended it; null if the state went away"),
        Column("unit", "string", "unit of that value, as its owner described it then"),
        Column("raised_at", "timestamp", "when it was raised, also in the row that clears it"),
    ),
)

_QUARANTINE = Table(
    "ts",
    "Rows that an expectation kept out of their table.",
    (
        Column("table", "string", "the table they were meant for"),
        Column("expectation", "string", "the first expectation that they did not meet"),
        Column("condition", "string", "its condition in SQL"),
        Column("batch", "bigint", "the batch they came in"),
        Column("ts", "timestamp", "when that batch was made"),
        Column("row", "string", "the row as JSON"),
    ),
)

_EXPECTATIONS = Table(
    "ts",
    "Rows per batch that met an expectation, and that did not.",
    (
        Column("table", "string", "the table whose rows were looked at"),
        Column("expectation", "string", "name of the expectation in its file"),
        Column("action", "string", "warn, drop or fail"),
        Column("batch", "bigint", "the batch"),
        Column("ts", "timestamp", "when it was made"),
        Column("rows", "bigint", "rows that were looked at"),
        Column("failed", "bigint", "rows that did not meet it"),
    ),
)

_BATCHES = Table(
    "ts",
    "One row per batch, written last: a batch counts from then on.",
    (
        Column("batch", "bigint", "number of the batch"),
        Column("ts", "timestamp", "when it began"),
        Column("events", "bigint", "how many events it had"),
        Column("seconds", "double", "how long it took"),
        Column("seqs", "string", "JSON: the last event of each bus that is in the tables"),
        Column("clock", "string", "JSON: how far time has come on each bus, in microseconds"),
        Column("cuts", "string", "JSON: the last event of each bus that ended all its values"),
        Column("versions", "string", "JSON: the version of each table that has this batch"),
    ),
)

_ELEMENTS = Table(
    "valid_from",
    "One row per time that a description of a state or method was valid.",
    (
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state or method"),
        Column("kind", "string", "state or method"),
        Column("seq", "bigint", "number of the event that described it so"),
        Column("schema", "string", "its schema: JSON text, or a text of the owner's own"),
        Column("unit", "string", "unit of its values"),
        Column("minimum", "double", "least value"),
        Column("maximum", "double", "greatest value"),
        Column("normal_low", "double", "low end of the range in which nothing is wrong"),
        Column("normal_high", "double", "high end of it"),
        Column("stale_s", "double", "seconds without a change after which a value is stale"),
        Column("valid_from", "timestamp", "when it was added or described so"),
        Column("valid_to", "timestamp", "when that ended; null while it is valid"),
    ),
)

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "events": _EVENTS,
        "history": _HISTORY,
        "rollups": _ROLLUPS,
        "elements": _ELEMENTS,
        "availability": _AVAILABILITY,
        "requests": _REQUESTS,
        "alarms": _ALARMS,
        "quarantine": _QUARANTINE,
        "expectations": _EXPECTATIONS,
        "batches": _BATCHES,
    }
)
"""The standard tables by their names on disk."""

# -- tables that are carried from batch to batch

_PATHS = Table(
    None,
    "The newest row of each path that is there, and of each that has gone since the table was folded.",
    (
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state or method"),
        Column("seq", "bigint", "number of its last event"),
        Column("ts", "timestamp", "when that was"),
        Column("event", "string", "add or change; remove where the path has gone"),
        Column("kind", "string", "state or method"),
        Column("value", "string", "its value as JSON text"),
        *VALUES,
        Column("peer", "string", "who brought it"),
        Column("stay", "stay", "its stay on the bus so far: seq, since, owner, changes, quiet_us"),
        Column("source_ts", "timestamp", "the time that the owner gave the value"),
        Column("quality", "string", "quality of the value"),
        Column("unit", "string", "unit of the value"),
        Column("misfit", "string", "member of its description that the value does not fit"),
    ),
)

_WINDOWS = Table(
    None,
    "Parts of windows that are not complete; a window is the sum of its parts.",
    (
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state"),
        Column("size", "string", "1s, 1m or 1h"),
        Column("start_us", "bigint", "begin of the window, in microseconds"),
        Column("count", "bigint", "how many values came"),
        Column("min", "double", "least of them"),
        Column("max", "double", "greatest of them"),
        Column("mean", "double", "their mean"),
        Column("squares", "double", "sum of their squared distances from the mean"),
        Column("known_us", "bigint", "microseconds in which the value was known; negative to take some back"),
        Column("good_us", "bigint", "microseconds of them in which its quality was good"),
        Column("area", "double", "sum of values by seconds"),
        Column("first", "double", "the first that came"),
        Column("last", "double", "the last that came"),
        Column("first_seq", "bigint", "number of the event of the first"),
        Column("last_seq", "bigint", "number of the event of the last"),
        Column("unit", "string", "unit of the last"),
    ),
    ("size",),
)

_OPEN_REQUESTS = Table(
    None,
    "Requests of minutes that are not over, one by one.",
    (
        Column("bus", "string", "name of the bus"),
        Column("window_start", "timestamp", "begin of the minute"),
        Column("event", "string", "set or call"),
        Column("path", "string", "what was asked for"),
        Column("caller", "string", "name of the peer that asked, or its connection number"),
        Column("failed", "boolean", "whether it failed"),
        Column("us", "bigint", "time to the answer, microseconds"),
    ),
)

_OPEN_ALARMS = Table(
    None,
    "The newest row of each alarm and path: raised, pending for its hold time, or cleared.",
    (
        *_ALARMS.columns,
        Column("stale_us", "bigint", "of a pending alarm: microseconds to wait besides its hold time, until stale"),
    ),
)

_KNOWN_ELEMENTS = Table(
    None,
    "The newest description of each element that has one, and of each that had one since the table was folded.",
    (
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state or method"),
        Column("seq", "bigint", "number of the event that described it"),
        Column("ts", "timestamp", "when that was"),
        Column("event", "string", "add or describe; remove where the element has gone"),
        Column("kind", "string", "state or method"),
        Column("schema", "string", "its schema; null if it has none any more"),
    ),
)

CARRIED: Mapping[str, Table] = MappingProxyType(
    {
        "paths": _PATHS,
        "windows": _WINDOWS,
        "requests": _OPEN_REQUESTS,
        "alarms": _OPEN_ALARMS,
        "elements": _KNOWN_ELEMENTS,
    }
)
"""Tables that are carried from batch to batch, on disk ``carried_paths`` and so on."""
