"""The tables of the pipeline: their columns and what each of them means, in one place.

Times are instants in UTC with microseconds. A row belongs to the day of its first time column; ``day`` is a
partition column of every table on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

__all__ = ["JOURNAL", "TABLES", "TREE", "Column", "Table", "schema_of"]


_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "variant": VariantType(),
}
"""Types by their names in SQL; read here, since a task has no Spark to ask."""


class Column(NamedTuple):
    """One column: name, type in SQL, meaning."""

    name: str
    type: str
    meaning: str


class Table(NamedTuple):
    """One table: the column whose day it is partitioned by, what it holds, its columns."""

    time: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> StructType:
        return schema_of(self.columns)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def schema_of(columns: tuple[Column, ...]) -> StructType:
    """The Spark schema of some columns."""
    return StructType([StructField(column.name, _TYPES[column.type]) for column in columns])


JOURNAL = (
    Column("bus", "string", "name of the bus"),
    Column("seq", "bigint", "number of the event on its bus, without gaps"),
    Column("ts", "timestamp", "when the daemon handled it"),
    Column("event", "string", "add, change, remove; set, call; peer, gone; start, stop; gap"),
    Column("kind", "string", "state or method"),
    Column("path", "string", "path of the state or method"),
    Column("value", "string", "its value as JSON text; for set and call what was asked"),
    Column("peer", "string", "who did it: name and connection number"),
    Column("detail", "string", "JSON: outcome, error and microseconds of a request; flags and access of an add"),
)
"""What format ``jet`` gives over a journal."""

TREE = (
    Column("bus", "string", "name of the bus; of a live daemon its address"),
    Column("path", "string", "path of the state or method"),
    Column("kind", "string", "state or method; unknown of a live daemon's tree"),
    Column("value", "string", "its value as JSON text"),
    Column("peer", "string", "its owner"),
    Column("ts", "timestamp", "when the value came"),
    Column("seq", "bigint", "number of the event that brought the value"),
)
"""What format ``jet`` gives with ``asOf``, or of a live daemon."""

VALUES = (
    Column("num", "double", "the value if it is a number"),
    Column("text", "string", "the value if it is a string"),
    Column("flag", "boolean", "the value if it is true or false"),
)

_EVENTS = Table(
    "ts",
    "Every event of the journal, with its value in columns of its type.",
    (*JOURNAL, *VALUES, Column("doc", "variant", "the value if it is an object or an array")),
)

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
    ),
)

_ROLLUPS = Table(
    "window_start",
    "Numbers per state and window; true and false count as 1 and 0. Only windows in which a value came have a row.",
    (
        Column("bus", "string", "name of the bus"),
        Column("path", "string", "path of the state"),
        Column("window_start", "timestamp", "begin of the window"),
        Column("window_end", "timestamp", "end of the window, not part of it"),
        Column("count", "bigint", "how many values came"),
        Column("min", "double", "least of them"),
        Column("max", "double", "greatest of them"),
        Column("mean", "double", "their mean, each counting once"),
        Column("time_mean", "double", "mean over the time in which the value was known; null if that is no time"),
        Column("known_s", "double", "seconds of the window in which the value was known"),
        Column("first", "double", "the first that came"),
        Column("last", "double", "the last that came"),
        Column("stddev", "double", "sample standard deviation of those that came; null for a single one"),
    ),
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
        Column("raised_at", "timestamp", "when it was raised, also in the row that clears it"),
    ),
)

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "events": _EVENTS,
        "history": _HISTORY,
        "rollups_1s": _ROLLUPS,
        "rollups_1m": _ROLLUPS,
        "rollups_1h": _ROLLUPS,
        "availability": _AVAILABILITY,
        "requests": _REQUESTS,
        "alarms": _ALARMS,
    }
)
"""The standard tables by the names they have on disk and in SQL."""
