"""The tables as Delta Lake: read by other people's tools, at any batch of the past, in folders and elsewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jetbus.spark import BadOption, NotTables, Pipeline, attach
from jetbus.spark.clock import Position
from jetbus.spark.footers import WrittenFile, find_files
from jetbus.spark.location import Location, read_location
from jetbus.spark.maintenance import merge_files
from jetbus.spark.schemas import TABLES
from jetbus.spark.store import Store, delta_schema, read_progress
from support.spark import reference
from support.spark.compare import assert_same, rows_of
from support.spark.journals import numbers, write_events
from support.spark.on_disk import assert_on_disk, wanted
from support.spark.reference import Event

if TYPE_CHECKING:
    from spark.conftest import RecordedBuses

VIEWS = ("events", "history", "rollups", "elements", "availability", "requests", "alarms")


def assert_as_of(spark: SparkSession, past: RecordedBuses, nth: int, **chosen: int | str | datetime) -> None:
    """Assert that all views are those of the events up to a batch."""
    found = attach(spark, past.tables, **chosen)  # type: ignore[arg-type]
    seqs = past.received[nth].seqs
    rows = wanted([event for event in past.log if event.seq <= seqs[event.bus]])
    for name in VIEWS:
        assert_same(name, rows_of(found.frame(name)), rows[name])


def test_tables_as_of_a_batch(spark: SparkSession, past: RecordedBuses) -> None:
    """All tables can be seen as they were after any batch, by its number or by an instant."""
    assert_as_of(spark, past, 1, batch=1)
    assert_as_of(spark, past, 0, as_of=past.received[0].at)
    assert attach(spark, past.tables, as_of="-0s").progress.batch == 2
    with pytest.raises(NotTables, match="has no batch 3; the newest is 2"):
        attach(spark, past.tables, batch=3)
    with pytest.raises(NotTables, match="has no batch until 2020-01-01T00:00:00Z; the newest is 2"):
        attach(spark, past.tables, as_of="2020-01-01T00:00:00Z")
    with pytest.raises(BadOption, match="give either a batch or an instant"):
        attach(spark, past.tables, batch=1, as_of="-1h")


def test_readers_see_whole_batches(spark: SparkSession, again: RecordedBuses) -> None:
    """A batch of which only some tables are committed is seen by nobody."""
    store = Store(read_location(again.tables))
    try:
        store.commit(3, {"plant": Position(1000, 0)}, [], replaced=["events"])
    finally:
        store.close()
    assert DeltaTable(again.tables / "events").to_pyarrow_table().num_rows == 0
    assert attach(spark, again.tables).frame("events").count() == len(again.so_far)


def asked(data: pa.dataset.Dataset, sql: str) -> Any:
    """Ask duckdb about a table for a single value."""
    with duckdb.connect() as connection:
        connection.register("data", data)
        ((found,),) = connection.execute(sql).fetchall()
        return found


def test_other_tools_read_the_tables(past: RecordedBuses) -> None:
    """Polars and duckdb read events, history and rollups by what Delta Lake says, without jetbus."""
    rows = wanted(past.so_far)
    for name in ("events", "history", "rollups"):
        count = sum(name != "history" or row["valid_to"] is not None for row in rows[name])
        table = DeltaTable(past.tables / name)
        data = table.to_pyarrow_dataset()
        assert asked(data, "select count(*) from data") == count
        found = polars.scan_pyarrow_dataset(data).select(polars.len()).collect()
        assert found.item() == count
    data = DeltaTable(past.tables / "rollups").to_pyarrow_dataset()
    assert asked(data, "select max(max) from data where size = '1m'") == max(
        row["max"] for row in rows["rollups"] if row["size"] == "1m"
    )


def test_commits_tell_their_batch_and_what_files_hold(past: RecordedBuses) -> None:
    """Each commit has the number of its batch as transaction, and of each file when it was written and what it holds.

    These are the least and greatest time, seq and path, and how many cells of each column are null.
    """
    for name in ("events", "history", "rollups", "alarms", "batches"):
        assert DeltaTable(past.tables / name).transaction_version("jetbus") == 2
    for name in ("events", "history"):
        time, table = str(TABLES[name].time), DeltaTable(past.tables / name)
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            rows = pq.read_table(past.tables / name / file["path"], partitioning=None)
            for column in ("seq", time, "path"):
                cells = [cell for cell in rows[column].to_pylist() if cell is not None]
                assert (file[f"min.{column}"], file[f"max.{column}"]) == (min(cells), max(cells))
            for column in ("seq", "path", "num", "quality"):
                assert file[f"null_count.{column}"] == rows[column].null_count
            assert file["num_records"] == rows.num_rows
            written_ns = (past.tables / name / file["path"]).stat().st_mtime_ns
            assert file["modification_time"] == written_ns // 1_000_000
            assert str(file["partition.day"]) == file["path"].split("day=")[1][:10]


DAYS, PATHS, DAY_EVENTS = 3, 700, 7000


@pytest.fixture(scope="module")
def wide(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of many paths over several days, in small row groups."""
    folder = tmp_path_factory.mktemp("wide")
    for day in range(DAYS):
        begin_us = 1_772_323_200_000_000 + day * 86_400_000_000
        log = [
            Event("plant", n, begin_us + n * 1000, "change", "state", f"n/{n * 7919 % PATHS:03}", str(n), "counter#1")
            for n in range(1, DAY_EVENTS + 1)
        ]
        write_events(folder / "journal", log, bus="plant")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jetbus.spark.batch.GROUP_ROWS", 100)
        with Pipeline(spark, folder / "journal", folder / "tables", batch_events_max=DAY_EVENTS // 2) as pipeline:
            pipeline.run_once()
    return folder / "tables"


@pytest.mark.parametrize("merged", [False, True], ids=["as written", "merged"])
@pytest.mark.parametrize("name", ["events", "history"])
def test_readers_of_one_path_skip_the_others(
    spark: SparkSession, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, merged: bool
) -> None:
    """A query for one path of many over some days reads a few row groups, in polars, duckdb and Spark.

    The bytes of all other row groups are destroyed, so that a reader that looks at them fails.
    """
    path = "n/123"
    shutil.copytree(wide, tmp_path / "tables")
    if merged:
        monkeypatch.setattr("jetbus.spark.maintenance.GROUP_ROWS", 100)
        merge_files(read_location(tmp_path / "tables"), [name])
    table = DeltaTable(tmp_path / "tables" / name)
    files = table.file_uris()
    assert len(files) == DAYS if merged else len(files) >= 2 * DAYS
    wanted = sum(pq.read_table(file, filters=[("path", "=", path)], partitioning=None).num_rows for file in files)
    assert wanted > DAYS
    lost, whole = map(sum, zip(*(destroy_others(Path(file), path) for file in files), strict=True))
    assert lost > 0.9 * whole
    with duckdb.connect() as connection:
        query = "select count(value) from read_parquet(?, hive_partitioning = false) where path = ?"
        assert connection.execute(query, [files, path]).fetchall() == [(wanted,)]
    assert polars.scan_parquet(files).filter(polars.col("path") == path).collect().height == wanted
    rows = spark.read.parquet(*files).where(f"path = '{path}'").collect()
    assert [row.path for row in rows] == [path] * wanted


def destroy_others(file: Path, path: str) -> tuple[int, int]:
    """Overwrite the row groups that cannot have a path; return how many bytes they have, and all row groups."""
    footer = pq.read_metadata(file)
    column = footer.schema.names.index("path")
    data, lost, whole = bytearray(file.read_bytes()), 0, 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(column).statistics
        for part in map(group.column, range(group.num_columns)):
            whole += part.total_compressed_size
            if not statistics.min <= path <= statistics.max:
                begin = part.dictionary_page_offset or part.data_page_offset
                data[begin : begin + part.total_compressed_size] = b"\xff" * part.total_compressed_size
                lost += part.total_compressed_size
    file.write_bytes(data)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    return lost, whole


def test_tables_at_a_uri(spark: SparkSession, tmp_path: Path) -> None:
    """Tables and the checkpoint may be given as URIs, with characters that these escape."""
    place, log = tmp_path / "my täbles", numbers(20)
    write_events(tmp_path / "journal", log, bus="plant")
    checkpoint = tmp_path / "elsewhere"
    with Pipeline(spark, tmp_path / "journal", place.as_uri(), checkpoint=checkpoint.as_uri()) as pipeline:
        pipeline.run_once()
        run = pipeline.store.id
    assert (checkpoint / run / "offsets" / "0").exists()
    assert not (place / "checkpoint").exists()
    assert_on_disk(place, {"events": reference.events(log), "history": reference.history(log)})
    assert attach(spark, place.as_uri()).frame("events").count() == 20
    with pytest.raises(BadOption, match=r"ftp://x/tables.* is at no file system that is known; take one of file, s3"):
        Pipeline(spark, tmp_path / "journal", "ftp://x/tables")


# -- an object store


def put(url: str, body: bytes) -> None:
    """Upload something, as plain HTTP has it."""
    request = Request(url, body, {"Content-Type": "application/octet-stream"}, method="PUT")  # noqa: S310 - our server
    urlopen(request).close()  # noqa: S310


SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""
"""A process of its own: delta-rs lets no other thread of Python run while it reads the history of a table."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[Location]:
    """A bucket of a local stand-in for S3, which ends with its input."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        host, port = one.stdout.readline().split()
        put(f"http://{host}:{port}/bucket", b"")
        options = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "aws_conditional_put": "etag",
        }
        yield read_location("s3://bucket/tables", options)


def written(location: Location, folder: str, count: int) -> WrittenFile:
    """Write a file as an executor would, if Spark had the jars for S3."""
    schema = pa.schema([one for one in delta_schema(TABLES["events"]) if one.name != "day"])
    rows = [dict.fromkeys(schema.names) | {"bus": "plant", "seq": n} for n in range(count)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    body = sink.getvalue().to_pybytes()
    uri = f"{folder}/day=2026-03-01/part-0.parquet"
    put(f"{location.options['AWS_ENDPOINT_URL']}/{uri.removeprefix('s3://')}", body)
    (found,) = find_files(location, {folder: "events"}, {})
    assert (found.rows, found.size_bytes, found.greatest["seq"]) == (count, len(body), count - 1)
    return found


def test_commits_to_an_object_store(bucket: Location) -> None:
    """Tables in S3 are made, committed, read and set back by delta-rs; a second writer is found out.

    Spark's part is not tried: its jars for S3 are not here.
    """
    with pytest.raises(NotTables, match="s3://bucket/tables holds no tables"):
        read_progress(bucket)
    positions = {"plant": Position(9, 1_772_323_200_000_000)}
    row = {"ts": datetime.now(UTC), "events": 10, "seconds": 1.0}
    store = Store(bucket)
    versions = store.commit(0, positions, [written(bucket, store.folder("events", 0), 10)])
    store.finish(0, positions, versions, row)
    store.commit(1, {"plant": Position(12, 0)}, [written(bucket, store.folder("events", 1), 3)])
    store.close()
    assert read_progress(bucket).seqs == {"plant": 9}
    store = Store(bucket)
    further = {"plant": Position(11, 1_772_323_201_000_000)}
    versions = store.commit(1, further, [written(bucket, store.folder("events", 1), 2)])
    store.finish(1, further, versions, row)
    store.close()
    assert json.loads(json.dumps(read_progress(bucket).seqs)) == {"plant": 11}
    table = DeltaTable(bucket.at("events"), storage_options=dict(bucket.options))
    assert table.to_pyarrow_table().num_rows == 12
    first, second = Store(bucket), Store(bucket)
    first.commit(2, further, [written(bucket, first.folder("events", 2), 1)])
    with pytest.raises(NotTables, match="another pipeline writes to s3://bucket/tables; stop it"):
        second.commit(2, further, [written(bucket, second.folder("events", 2), 1)])
    first.close()
    second.close()
