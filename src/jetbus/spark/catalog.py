"""The tables for readers: frames and views of all tables as of the same batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from jetbus.journal.instants import read_instant
from jetbus.spark.carried import newest_alarms, newest_elements, newest_paths, open_stays, open_values
from jetbus.spark.clock import Position, instant, micros
from jetbus.spark.elements import valid_elements
from jetbus.spark.location import Location, read_location
from jetbus.spark.rollups import WINDOWS_US
from jetbus.spark.schemas import TABLES, Table
from jetbus.spark.spark_errors import BadOption, NotTables
from jetbus.spark.store import (
    TableProgress,
    all_tables,
    day_of,
    file_paths,
    open_table,
    own_tables,
    read_progress,
    spark_frame,
)
from jetbus.spark.tables import with_documents

__all__ = ["Tables", "attach"]

OPEN_ALARMS = "alarms_open"
"""The view of alarms that are raised, or pending for their hold time."""
_OPEN = {
    "history": ("carried_paths", newest_paths, open_values),
    "availability": ("carried_paths", newest_paths, open_stays),
    "elements": ("carried_elements", newest_elements, valid_elements),
}
"""Views that have open rows: the table that carries these, and how to make them of it."""


class Tables:
    """The tables of a place as of one batch."""

    def __init__(
        self,
        spark: SparkSession,
        place: str | Path | Location,
        *,
        batch: int | None = None,
        as_of: str | datetime | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self.spark = spark
        self.location = read_location(place, storage)
        self.location.configure(spark)
        self._is_newest = batch is None and as_of is None
        self.progress = read_progress(self.location)
        self.own = own_tables(self.location, self.progress.versions)
        if not self._is_newest:
            self.progress = self._earlier(self.progress, batch, as_of)

    def _earlier(self, newest: TableProgress, batch: int | None, as_of: str | datetime | None) -> TableProgress:
        """Find the last batch up to a number or an instant."""
        if batch is not None and as_of is not None:
            raise BadOption("as_of", "give either a batch or an instant")
        rows = self._table("batches")
        if batch is not None:
            rows = rows.where(F.col("batch") <= batch)
        if as_of is not None:
            until = as_of if isinstance(as_of, datetime) else instant(read_instant(as_of))
            rows = rows.where(F.col("ts") <= F.timestamp_micros(F.lit(micros(until))))
        found = rows.orderBy(F.col("batch").desc()).first()
        if found is None or (batch is not None and batch > newest.batch):
            which = f"batch {batch}" if batch is not None else f"batch until {as_of}"
            raise NotTables(f"{self.location.uri} has no {which}; the newest is {newest.batch}")
        clock, cuts = json.loads(found.clock), json.loads(found.cuts)
        positions = {bus: Position(seq, clock[bus], cuts.get(bus, -1)) for bus, seq in json.loads(found.seqs).items()}
        return TableProgress(found.batch, positions, json.loads(found.versions))

    @property
    def known(self) -> dict[str, Table]:
        """Every table by its name, those of stages of the user included."""
        return {**TABLES, **self.own}

    @property
    def views(self) -> dict[str, Table]:
        """Every view that ``attach`` makes, and the table it is of."""
        sizes = {f"rollups_{size}": TABLES["rollups"] for size in WINDOWS_US}
        return {**self.known, **sizes, OPEN_ALARMS: TABLES["alarms"]}

    def frame(self, name: str) -> DataFrame:
        """Read a view; those of values in force and states on the bus have their open rows, too."""
        if name.startswith("rollups_"):
            return self.frame("rollups").where(F.col("size") == name.removeprefix("rollups_"))
        if name == OPEN_ALARMS:
            return newest_alarms(self._table("carried_alarms")).select(*TABLES["alarms"].names)
        if name not in self.views:
            raise NotTables(f"there is no table {name!r}; there are {', '.join(self.views)}")
        rows = self._table(name)
        if name == "events":
            return with_documents(rows)
        if name in _OPEN:
            # On disk are only rows that have ended. Those that go on are in the carried ones.
            carried, newest, as_rows = _OPEN[name]
            there = as_rows(newest(self._table(carried), self.progress.positions))
            return rows.unionByName(there.selectExpr("*", f"{day_of(str(TABLES[name].time))} as day"))
        return rows

    def files(self, name: str) -> list[str]:
        """List the files of a table on disk."""
        return file_paths(self._opened(name)) if name in self.progress.versions else []

    def actions(self, name: str) -> list[dict[str, Any]]:
        """List the files of a table as its Delta log has them: path, partitions and statistics."""
        if name not in self.progress.versions:
            return []
        found: list[dict[str, Any]] = pa.table(self._opened(name).get_add_actions(flatten=True)).to_pylist()
        return found

    def _table(self, name: str) -> DataFrame:
        # A table that no batch has had rows for was never created.
        found = None
        if name in self.progress.versions or name == "batches":
            found = spark_frame(self.spark, self._about(name), self._opened(name))
        return self.spark.createDataFrame([], self._about(name).stored) if found is None else found

    def _about(self, name: str) -> Table:
        return {**all_tables(), **self.own}[name]

    def _opened(self, name: str) -> DeltaTable:
        """Open a table as of the batch: as it is now, if only files were merged since."""
        if name == "batches":
            return open_table(self.location, name)
        if self._is_newest:
            # The version of the batch may name files that a merge has replaced and ``vacuum`` has removed since.
            newest = open_table(self.location, name)
            newest_batch = next((int(one["batch"]) for one in newest.history() if "batch" in one), -1)
            if newest_batch <= self.progress.batch:
                return newest
        return open_table(self.location, name, self.progress.versions[name])


def attach(
    spark: SparkSession,
    place: str | Path | Location,
    *,
    batch: int | None = None,
    as_of: str | datetime | None = None,
    storage: Mapping[str, str] | None = None,
) -> Tables:
    """Make a view of each table, as of the newest batch, so that ``spark.sql("select ... from rollups_1m")`` works.

    All views are of the same batch. ``batch`` or ``as_of``, an instant such as ``2026-03-01T12:00:00Z`` or ``-2h``,
    goes back in time. Besides the tables there is ``alarms_open``: alarms that are raised or wait for their hold time.
    Call it again to see later batches.
    """
    tables = Tables(spark, place, batch=batch, as_of=as_of, storage=storage)
    for name in tables.views:
        tables.frame(name).createOrReplaceTempView(name)
    return tables
