"""Journals in other tools: pandas, polars, duckdb and plain Arrow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import jetbus.journal
from jetbus.journal import Journal
from jetbus.journal.segment import PLAIN, list_segments
from support.journal_model import cut, plant, record, rows

EVENTS = plant(500)
ROWS = rows(EVENTS)
CHANGES = Counter(event.path for event in EVENTS if event.event == "change")


@pytest.fixture(scope="module", params=["segments", "both", "two buses"])
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """A journal in segments, one that is mostly in Parquet, and two of which one is."""
    places = [tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")]
    for place, bus in zip(places, ("north", "south"), strict=True):
        record(place, [cut(segment, 50) for segment in cut(EVENTS, 100)], bus=bus)
    if request.param != "segments":
        jetbus.journal.compact(places[0])
    return jetbus.journal.open(*places[: 2 if request.param == "two buses" else 1])


def buses(journal: Journal) -> int:
    return len(journal.buses)


def test_pandas(journal: Journal) -> None:
    """pandas takes a table, with instants as UTC."""
    frame = journal.table(events=["change"]).to_pandas()
    assert str(frame["ts"].dtype) == "datetime64[ns, UTC]"
    assert frame.groupby("path").size().to_dict() == {path: count * buses(journal) for path, count in CHANGES.items()}


def test_polars(journal: Journal) -> None:
    """polars takes a table and a dataset, and pushes its filters into it."""
    frame: Any = pl.from_arrow(journal.table())
    assert frame.filter(pl.col("event") == "change").height == sum(CHANGES.values()) * buses(journal)
    lazy = pl.scan_pyarrow_dataset(journal.dataset()).filter(pl.col("path") == "plant/line1/s1").select("seq", "value")
    wanted = [(row["seq"], row["value"]) for row in ROWS if row["path"] == "plant/line1/s1"] * buses(journal)
    assert sorted(lazy.collect().rows()) == sorted(wanted)


def test_duckdb(journal: Journal) -> None:
    """duckdb takes a dataset, a table and a stream by name."""
    with duckdb.connect() as connection:
        for source in (journal.dataset(), journal.table(), journal.reader()):
            connection.register("events", source)
            counted = connection.sql(
                "select path, count(*) from events where event = 'change' group by path"
            ).fetchall()
            assert dict(counted) == {path: count * buses(journal) for path, count in CHANGES.items()}
            connection.unregister("events")


def test_dataset(journal: Journal) -> None:
    """A dataset has every event once, with the columns of the journal, and can be asked again."""
    dataset = journal.dataset()
    assert dataset.schema == journal.schema
    for _ in range(2):
        assert dataset.count_rows() == 500 * buses(journal)
    table = dataset.to_table(filter=ds.field("seq") <= 450).sort_by("seq")
    if buses(journal) == 1:
        assert table.to_pylist() == ROWS[:450]
    else:
        assert Counter(table["bus"].to_pylist()) == {"north": 450, "south": 450}
        north = dataset.to_table(filter=ds.field("bus") == "north").drop(["bus"]).sort_by("seq")
        assert north.to_pylist() == ROWS


def test_plain_arrow(tmp_path: Path) -> None:
    """Segments are Arrow streams and compacted days are Parquet, readable without us."""
    record(tmp_path, [cut(segment, 50) for segment in cut(EVENTS, 100)])
    jetbus.journal.compact(tmp_path)
    segments = [pa.ipc.open_stream(segment.path).read_all() for segment in list_segments(tmp_path)]
    days = [pq.read_table(file, partitioning=None) for file in (tmp_path / "parquet").glob("day=2026-01-01/*.parquet")]
    assert all(table.schema.equals(PLAIN.schema) for table in [*segments, *days])
    narrow = [{name: row[name] for name in PLAIN.schema.names} for row in ROWS]
    assert pa.concat_tables([*segments, *days]).sort_by("seq").to_pylist() == narrow
    hive = ds.dataset(tmp_path / "parquet", partitioning="hive").to_table()
    assert set(map(str, hive["day"].to_pylist())) == {"2026-01-01"}
    with duckdb.connect() as connection:
        assert len(connection.read_parquet(f"{tmp_path}/parquet/**/*.parquet")) == 400
