"""Tables in DuckDB: the views of Spark, with the rows of the reference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import duckdb
import pytest

from jetbus.spark import BadOption
from jetbus.spark.duck import attach_duckdb
from support.spark import reference
from support.spark.compare import assert_same, rows_of
from support.spark.on_disk import wanted
from support.spark.reference import Row

if TYPE_CHECKING:
    from spark.conftest import RecordedBuses


def rows(connection: duckdb.DuckDBPyConnection, view: str) -> list[Row]:
    """The rows of a view; documents are JSON texts in DuckDB."""
    found = rows_of(connection.view(view).to_arrow_table())
    return [{**row, "doc": row["doc"] and json.loads(row["doc"])} if "doc" in row else row for row in found]


def test_views_are_those_of_spark(past: RecordedBuses) -> None:
    """Each table has its rows, with those of values in force, of states on the bus and of valid descriptions."""
    with duckdb.connect() as connection:
        attach_duckdb(connection, past.tables)
        for name, expected in wanted(past.so_far).items():
            assert_same(name, rows(connection, name), expected)
        minutes = [row for row in reference.rollups(past.so_far) if row["size"] == "1m"]
        assert_same("rollups", rows(connection, "rollups_1m"), minutes)
        assert rows(connection, "quarantine") == []
        raised = {(row["alarm"], row["path"]) for row in rows(connection, "alarms_open") if row["what"] == "raised"}
    newest = {(row["alarm"], row["bus"], row["path"]): row["what"] for row in wanted(past.so_far)["alarms"]}
    assert raised == {(alarm, path) for (alarm, _, path), what in newest.items() if what == "raised"}


def test_tables_as_of_a_batch_in_duckdb(past: RecordedBuses) -> None:
    """All views go back to the same batch."""
    with duckdb.connect() as connection:
        attach_duckdb(connection, past.tables, batch=0)
        done = [event for event in past.log if event.seq <= past.received[0].seqs[event.bus]]
        assert_same("history", rows(connection, "history"), reference.history(done))
        assert_same("availability", rows(connection, "availability"), reference.availability(done))


def test_a_store_is_left_to_spark(past: RecordedBuses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are not on this machine are refused by name."""
    monkeypatch.setattr("jetbus.spark.location.Location.local", None)
    with (
        duckdb.connect() as connection,
        pytest.raises(BadOption, match=r"option 'engine': duckdb reads .*; take spark"),
    ):
        attach_duckdb(connection, past.tables)
