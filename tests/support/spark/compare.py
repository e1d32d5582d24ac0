"""Rows of Spark and rows of the reference side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import Row as SparkRow

from jetbus.spark.clock import micros
from jetbus.spark.schemas import TABLES
from support.spark.reference import Row

KEYS = {
    "events": ("bus", "seq"),
    "history": ("bus", "seq"),
    "elements": ("bus", "seq"),
    "availability": ("bus", "seq"),
    "requests": ("bus", "window_start", "event", "path", "caller"),
    "alarms": ("alarm", "bus", "path", "seq", "what"),
    "rollups": ("bus", "path", "size", "window_start"),
}


def rows_of(frame: DataFrame | pa.Table | Iterable[SparkRow]) -> list[Row]:
    """Rows as dicts, with times in microseconds."""
    if isinstance(frame, pa.Table):
        return [{name: _plain(value) for name, value in row.items() if name != "day"} for row in frame.to_pylist()]
    found = frame.collect() if isinstance(frame, DataFrame) else frame
    return [{name: _plain(value) for name, value in row.asDict().items() if name != "day"} for row in found]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return micros(value if value.tzinfo else value.astimezone(UTC))
    return value.toPython() if hasattr(value, "toPython") else value


def assert_same(table: str, got: list[Row], wanted: list[Row]) -> None:
    """Assert the same rows of a view in any order; numbers may differ in their last digits."""
    names = [*TABLES[table].names, *(["doc"] if table == "events" else [])]
    assert_same_rows(table, got, wanted, names)


def assert_same_rows(table: str, got: list[Row], wanted: list[Row], columns: Sequence[str] = ()) -> None:
    """Assert the same rows of a table as it is on disk, or of these columns."""
    key, names = KEYS[table], columns or TABLES[table].names

    def ordered(rows: list[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: tuple(str(row[name]) for name in key))

    got, wanted = ordered(got), ordered(wanted)
    assert [tuple(row[name] for name in key) for row in got] == [tuple(row[name] for name in key) for row in wanted]
    for mine, theirs in zip(got, wanted, strict=True):
        assert set(mine) == set(theirs) == set(names)
        wrong = [name for name in names if not _same(mine[name], theirs[name])]
        assert not wrong, f"{wrong} differ:\n{mine}\n{theirs}"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)
    return type(a) is type(b) and bool(a == b)
