"""Tables on disk as other programs see them: read by deltalake, compared with the reference."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from support.spark import reference
from support.spark.compare import assert_same_rows, rows_of
from support.spark.reference import AlarmRule, Event, Row

ALARM_FILE = """
[alarm.high]
rule = "pump/**"
when = "num > 60"
clear = "num < 20"
hold = "250ms"

[alarm.strange]
when = "outside normal"

[alarm.silent]
rule = "pump/**"
when = "stale"
"""
ALARMS = [
    AlarmRule(
        "high",
        lambda path: path.startswith("pump/"),
        lambda v: (v["num"] or 0) > 60,
        lambda v: v["num"] is not None and v["num"] < 20,
        250_000,
    ),
    AlarmRule("strange", lambda _: True, reference.is_strange, None, 0),
    AlarmRule("silent", lambda path: path.startswith("pump/"), lambda v: bool(v["stale_s"]), None, 0, True),
]
"""The same for the reference."""


def wanted(log: list[Event]) -> dict[str, list[Row]]:
    """All rows of all tables by the reference, those of values in force and states on the bus included."""
    return {
        "events": reference.events(log),
        "history": reference.history(log),
        "rollups": reference.rollups(log),
        "elements": reference.elements(log),
        "availability": reference.availability(log),
        "requests": reference.requests(log),
        "alarms": reference.alarms(log, ALARMS),
    }


def read_delta(tables: Path, name: str) -> pa.Table:
    """Read a table by deltalake."""
    return DeltaTable(str(tables / name)).to_pyarrow_table()


def assert_on_disk(tables: Path, rows: dict[str, list[Row]]) -> None:
    """Assert that deltalake finds just these rows; what is still in force is not in a table, but carried."""
    for name, theirs in rows.items():
        ends = {"history": "valid_to", "availability": "until", "elements": "valid_to"}.get(name)
        closed = [row for row in theirs if ends is None or row[ends] is not None]
        assert closed, f"a log that leaves {name} empty shows nothing"
        plain = [{column: cell for column, cell in row.items() if column != "doc"} for row in closed]
        assert_same_rows(name, rows_of(read_delta(tables, name)), plain)


def last_seqs(tables: Path) -> dict[str, int]:
    """Read how far tables have come, from the last row of the table of batches."""
    rows = read_delta(tables, "batches").to_pylist()
    found: dict[str, int] = json.loads(max(rows, key=lambda row: int(row["batch"]))["seqs"])
    return found
