"""The tables for readers: frames and views of all tables as of the same batch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from jetbus.spark.carried import newest_alarms, newest_elements, newest_paths, open_stays, open_values
from jetbus.spark.elements import valid_elements
from jetbus.spark.location import Location
from jetbus.spark.schemas import TABLES
from jetbus.spark.snapshot import OPEN_ALARMS, Snapshot
from jetbus.spark.spark_errors import NotTables
from jetbus.spark.store import day_of, spark_frame
from jetbus.spark.tables import with_documents

__all__ = ["Tables", "attach"]

_OPEN = {
    "history": ("carried_paths", newest_paths, open_values),
    "availability": ("carried_paths", newest_paths, open_stays),
    "elements": ("carried_elements", newest_elements, valid_elements),
}
"""Views that have open rows: the table that carries these, and how to make them of it."""


class Tables(Snapshot):
    """The tables of a place as of one batch, as frames of Spark."""

    def __init__(
        self,
        spark: SparkSession,
        place: str | Path | Location,
        *,
        batch: int | None = None,
        as_of: str | datetime | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(place, batch=batch, as_of=as_of, storage=storage)
        self.spark = spark
        self.location.configure(spark)

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

    def _table(self, name: str) -> DataFrame:
        about = self.about(name)
        found = spark_frame(self.spark, about, self.opened(name)) if self.has(name) else None
        return self.spark.createDataFrame([], about.stored) if found is None else found


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
