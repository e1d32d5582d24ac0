"""Tables as a pipeline leaves them behind, committed by its own store; that takes no Spark."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow as pa

from jetbus.journal.instants import US_PER_S
from jetbus.spark.clock import Position, instant
from jetbus.spark.location import read_location
from jetbus.spark.store import Store, delta_schema

BATCHES = 3
BEGIN_US = 1_772_323_200_000_000
"""2026-03-01T00:00:00Z, when the first event was."""


def make_tables(folder: Path, batches: int = BATCHES, *, bus: str = "plant") -> None:
    """Write batches of one event each, to the tables events and history; each of their files has one row.

    Paths come neither in rising nor in falling order, so that one can tell whether somebody has sorted them.
    """
    store = Store(read_location(folder))
    try:
        for number in range(store.progress.batch + 1, store.progress.batch + 1 + batches):
            us = BEGIN_US + number * US_PER_S
            at = instant(us)
            event = {"bus": bus, "seq": number + 1, "path": f"plant/{number * 2 % 3}", "event": "change", "value": "1"}
            versions = {
                name: store.append(name, _rows(store, name, {**event, time: at}), number)
                for name, time in (("events", "ts"), ("history", "valid_from"))
            }
            row: dict[str, int | float | datetime] = {"ts": at, "events": 1, "seconds": 0.25}
            store.finish(number, {bus: Position(number + 1, us, -1)}, versions, row)
    finally:
        store.close()


def _rows(store: Store, name: str, row: dict[str, object]) -> pa.Table:
    schema = pa.schema([one for one in delta_schema(store.tables[name]) if one.name != "day"])
    return pa.Table.from_pylist([row], schema=schema)
