"""Versions and files of all tables as of one batch, for readers with Spark and without: nothing here needs Java."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from jetbus.journal.instants import read_instant
from jetbus.spark.clock import Position, micros
from jetbus.spark.location import Location, read_location
from jetbus.spark.rollups import WINDOWS_US
from jetbus.spark.schemas import TABLES, Table
from jetbus.spark.spark_errors import BadOption, NotTables
from jetbus.spark.store import TableProgress, all_tables, file_paths, open_table, own_tables, read_progress

__all__ = ["OPEN_ALARMS", "Snapshot"]

OPEN_ALARMS = "alarms_open"
"""The view of alarms that are raised, or pending for their hold time."""


class Snapshot:
    """The tables of a place as of one batch: the newest one, or the last up to ``batch`` or ``as_of``."""

    def __init__(
        self,
        place: str | Path | Location,
        *,
        batch: int | None = None,
        as_of: str | datetime | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        self.location = read_location(place, storage)
        self._is_newest = batch is None and as_of is None
        self.progress = read_progress(self.location)
        self.own = own_tables(self.location, self.progress.versions)
        if not self._is_newest:
            self.progress = self._earlier(self.progress, batch, as_of)

    def _earlier(self, newest: TableProgress, batch: int | None, as_of: str | datetime | None) -> TableProgress:
        """Find the last batch up to a number or an instant."""
        if batch is not None and as_of is not None:
            raise BadOption("as_of", "give either a batch or an instant")
        if batch is not None:
            condition = f"batch <= {batch}"
        else:
            until_us = micros(as_of) if isinstance(as_of, datetime) else read_instant(str(as_of))
            condition = f"ts <= arrow_cast({until_us}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
        asked = QueryBuilder().register("batches", open_table(self.location, "batches"))
        columns = "batch, seqs, clock, cuts, versions"
        query = f"select {columns} from batches where {condition} order by batch desc limit 1"  # noqa: S608 - numbers
        found = pa.table(asked.execute(query)).to_pylist()
        if not found or (batch is not None and batch > newest.batch):
            which = f"batch {batch}" if batch is not None else f"batch until {as_of}"
            raise NotTables(f"{self.location.uri} has no {which}; the newest is {newest.batch}")
        (row,) = found
        clock, cuts = json.loads(row["clock"]), json.loads(row["cuts"])
        seqs = json.loads(row["seqs"])
        positions = {bus: Position(seq, clock[bus], cuts.get(bus, -1)) for bus, seq in seqs.items()}
        return TableProgress(row["batch"], positions, json.loads(row["versions"]))

    @property
    def known(self) -> dict[str, Table]:
        """Every table by its name, those of stages of the user included."""
        return {**TABLES, **self.own}

    @property
    def views(self) -> dict[str, Table]:
        """Every view that readers have, and the table it is of."""
        sizes = {f"rollups_{size}": TABLES["rollups"] for size in WINDOWS_US}
        return {**self.known, **sizes, OPEN_ALARMS: TABLES["alarms"]}

    def about(self, name: str) -> Table:
        """Return the columns of a table on disk, those that are carried included."""
        return {**all_tables(), **self.own}[name]

    def has(self, name: str) -> bool:
        """Return True if any batch had rows for a table: only then was it created."""
        return name in self.progress.versions or name == "batches"

    def files(self, name: str) -> list[str]:
        """List the files of a table on disk."""
        return file_paths(self.opened(name)) if self.has(name) else []

    def actions(self, name: str) -> list[dict[str, Any]]:
        """List the files of a table as its Delta log has them: path, partitions and statistics."""
        if not self.has(name):
            return []
        found: list[dict[str, Any]] = pa.table(self.opened(name).get_add_actions(flatten=True)).to_pylist()
        return found

    def opened(self, name: str) -> DeltaTable:
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
