"""The tables in DuckDB: the same views as in Spark, within a second and without Java.

    with duckdb.connect() as connection:
        attach_duckdb(connection, "/var/lib/jet/tables")
        connection.sql("select * from rollups_1m").show()

DuckDB reads the files of the batch itself, so they have to be on this machine. Its SQL is its own; the views and their
columns are those of ``attach``, but ``doc`` is JSON, not a variant.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jetbus.spark.location import Location
from jetbus.spark.rollups import WINDOWS_US
from jetbus.spark.schemas import Table
from jetbus.spark.snapshot import Snapshot
from jetbus.spark.spark_errors import BadOption
from jetbus.spark.store import all_tables, file_paths

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["attach_duckdb"]

_VIEWS = Path(__file__).with_name("duckdb_views.sql")
_TYPES = {
    "string": "varchar",
    "timestamp": "timestamptz",
    "stay": "struct(seq bigint, since timestamptz, owner varchar, changes bigint, quiet_us bigint)",
}
"""Types of columns, where DuckDB has another name for them."""


def attach_duckdb(
    connection: DuckDBPyConnection,
    place: str | Path | Location,
    *,
    batch: int | None = None,
    as_of: str | datetime | None = None,
) -> Snapshot:
    """Make a view of each table in DuckDB, as of the newest batch; ``batch`` or ``as_of`` goes back in time."""
    tables = Snapshot(place, batch=batch, as_of=as_of)
    if tables.location.local is None:
        raise BadOption("engine", f"duckdb reads tables on this machine, not {tables.location.uri}; take spark")
    connection.execute("set TimeZone = 'UTC'")
    connection.execute("create schema disk")
    for name, table in {**all_tables(), **tables.own}.items():
        connection.execute(f'create view disk."{name}" as {_select(tables, name, table)}')
    cuts = ", ".join(f"({_quote(bus)}, {at.cut_seq})" for bus, at in tables.progress.positions.items())
    connection.execute(
        f"create view disk.cut_seqs as select * from (values {cuts or '(null, null)'}) as cuts(bus, cut_seq)"
    )
    connection.execute(_VIEWS.read_text(encoding="utf-8"))
    for name in tables.known:
        connection.execute(f'create view if not exists "{name}" as select * from disk."{name}"')
    for size in WINDOWS_US:
        connection.execute(f"create view rollups_{size} as select * from rollups where size = '{size}'")
    return tables


def _select(tables: Snapshot, name: str, table: Table) -> str:
    """Return the query of a table as it is on disk."""
    columns = {column.name: _TYPES.get(column.type, column.type) for column in table.columns}
    day = [] if table.time is None else [f'cast("{table.time}" as date) as day']
    nothing = [f'cast(null as {kind}) as "{column}"' for column, kind in columns.items()]
    parts = [f"select *{''.join(f', {one}' for one in day)} from (select {', '.join(nothing)} where false)"]
    if tables.has(name):
        opened = tables.opened(name)
        (part,) = table.parts or ("",)
        for value in sorted({one[part] for one in opened.partitions()} if part else {""}):
            # Values of partitions are those of the Delta log, as for Spark: folders do not say them reliably.
            files = file_paths(opened, [(part, "=", value)] if part else [])
            stored = [f'{_quote(value)} as "{one}"' if one == part else f'"{one}"' for one in columns]
            read = f"read_parquet([{', '.join(map(_quote, files))}], union_by_name = true, hive_partitioning = false)"
            parts += [f"select {', '.join([*stored, *day])} from {read}"] if files else []
    return " union all by name ".join(parts)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
