"""`jet tables` and `jet pipeline status`: what they say of tables and do with them, without Spark and without Java."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow.parquet import ParquetFile

import jetbus.journal
from jetbus.spark.location import read_location
from jetbus.spark.store import Store
from support.delta import BATCHES, make_tables
from support.jet import Done, Jet
from support.plant import record

Ask = Callable[..., list[dict[str, Any]]]
STRAY = "b00000009-3f9a21/day=2026-03-01/part.parquet"


@pytest.fixture
def jet(tmp_path: Path) -> Jet:
    """The command, in a folder with the tables of three batches."""
    make_tables(tmp_path / "tables")
    return Jet("", tmp_path)


@pytest.fixture
def ask(jet: Jet) -> Ask:
    """Run a command and give the records that it prints."""

    def asked(*words: str) -> list[dict[str, Any]]:
        return records(jet(*words))

    return asked


def records(done: Done) -> list[dict[str, Any]]:
    assert (done.code, done.err) == (0, ""), done
    return [json.loads(line) for line in done.out.splitlines()]


def files(table: Path) -> list[Path]:
    return sorted(table.rglob("*.parquet"))


def leave_stray(tmp_path: Path, age_s: float) -> Path:
    """Leave a file that no commit names, as a batch does that was killed."""
    stray = tmp_path / "tables" / "events" / STRAY
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"half a file")
    written = stray.stat().st_mtime - age_s
    os.utime(stray, (written, written))
    return stray


def test_history_of_batches(ask: Ask) -> None:
    """The history lists batches from old to new: number, instant, events, seconds."""
    found = ask("tables", "history", "tables")
    assert [row["batch"] for row in found] == list(range(BATCHES))
    assert found[1] == {"batch": 1, "ts": "2026-03-01T00:00:01.000000Z", "events": 1, "seconds": 0.25}


def test_last_batches(ask: Ask) -> None:
    """With --last only the newest are listed, still from old to new."""
    assert [row["batch"] for row in ask("tables", "history", "tables", "--last", "2")] == [1, 2]


def test_versions_of_a_table(ask: Ask) -> None:
    """With --table the history lists the versions of its Delta log, and the batch that made each."""
    ask("tables", "optimize", "tables", "--table", "events")
    found = ask("tables", "history", "tables", "--table", "events")
    assert [row["version"] for row in found] == list(range(BATCHES + 2))
    assert [row["operation"] for row in found] == ["CREATE TABLE", *["WRITE"] * BATCHES, "OPTIMIZE"]
    assert [row.get("batch") for row in found] == [None, 0, 1, 2, None]


def test_optimize(ask: Ask, tmp_path: Path) -> None:
    """Small files are merged into one, nothing is lost, and a second time there is nothing to do."""
    found = {row["table"]: row for row in ask("tables", "optimize", "tables")}
    assert set(found) == {"events", "history", "batches"}
    assert (found["events"]["files_before"], found["events"]["files_after"]) == (BATCHES, 1)
    assert found["events"]["bytes_before"] > found["events"]["bytes_after"] > 0
    events = DeltaTable(tmp_path / "tables" / "events")
    assert len(events.file_uris()) == 1
    assert events.count() == BATCHES
    again = ask("tables", "optimize", "tables")
    assert {(row["files_before"], row["files_after"]) for row in again} == {(0, 0)}


def test_optimize_by_path(ask: Ask, tmp_path: Path) -> None:
    """With --by-path rows are ordered by path; a table without paths is merged only."""
    found = ask("tables", "optimize", "tables", "--by-path", "--table", "events", "--table", "batches")
    assert [(row["table"], row["files_after"]) for row in found] == [("events", 1), ("batches", 1)]
    paths = paths_of(tmp_path / "tables" / "events")
    assert paths == sorted(paths)
    ask("tables", "optimize", "tables", "--table", "history")
    assert paths_of(tmp_path / "tables" / "history") != paths


def paths_of(table: Path) -> list[str]:
    """Read the column path of a table of one file."""
    (file,) = DeltaTable(table).file_uris()
    paths: list[str] = ParquetFile(file).read(columns=["path"])["path"].to_pylist()
    return paths


def test_a_pipeline_goes_on_after_a_merge(ask: Ask, tmp_path: Path) -> None:
    """Whoever writes tables finds their last batch after a merge, and goes on."""
    ask("tables", "optimize", "tables")
    make_tables(tmp_path / "tables", 1)
    assert [row["batch"] for row in ask("tables", "history", "tables", "--last", "1")] == [BATCHES]
    assert [row["seq"] for row in ask("pipeline", "status", "tables")] == [BATCHES + 1]


def test_carried_tables_are_not_merged(jet: Jet, tmp_path: Path) -> None:
    """The tables that a pipeline carries are its own to fold: they are neither merged nor named as such."""
    store = Store(read_location(tmp_path / "tables"))
    version = store.table("carried_paths").version()
    store.finish(BATCHES, {}, {"carried_paths": version}, {"ts": None, "events": 0, "seconds": 0.0})
    store.close()
    assert "carried_paths" not in [row["table"] for row in records(jet("tables", "optimize", "tables"))]
    assert jet("tables", "optimize", "tables", "--table", "carried_paths").code == 2
    assert [row["table"] for row in records(jet("tables", "vacuum", "tables", "--table", "carried_paths"))]


def test_vacuum(ask: Ask, tmp_path: Path) -> None:
    """Files that nobody needs any more are named by a dry run and removed without; the others stay."""
    stray = leave_stray(tmp_path, 7200)
    before = files(tmp_path / "tables" / "events")
    dry = {row["table"]: row for row in ask("tables", "vacuum", "tables", "--keep", "1h", "--dry-run")}
    assert dry["events"] == {"table": "events", "files": 1, "removed": False, "names": [STRAY]}
    assert dry["history"]["files"] == 0
    assert files(tmp_path / "tables" / "events") == before
    wet = {row["table"]: row for row in ask("tables", "vacuum", "tables", "--keep", "1h")}
    assert wet["events"] == {"table": "events", "files": 1, "removed": True}
    assert files(tmp_path / "tables" / "events") == [file for file in before if file != stray]


def test_vacuum_keeps_parts_of_an_hour(ask: Ask, tmp_path: Path) -> None:
    """Hours are what files are kept for: 90 minutes are two of them."""
    leave_stray(tmp_path, 6000)
    assert ask("tables", "vacuum", "tables", "--keep", "90m", "--table", "events", "--dry-run")[0]["files"] == 0
    assert ask("tables", "vacuum", "tables", "--keep", "1h", "--table", "events", "--dry-run")[0]["files"] == 1


def test_vacuum_keeps_a_week(ask: Ask, tmp_path: Path) -> None:
    """Without --keep the files of seven days stay."""
    stray = leave_stray(tmp_path, 6 * 86400)
    ask("tables", "vacuum", "tables", "--table", "events")
    assert stray.exists()
    older = stray.stat().st_mtime - 2 * 86400
    os.utime(stray, (older, older))
    ask("tables", "vacuum", "tables", "--table", "events")
    assert not stray.exists()


def test_status(ask: Ask, tmp_path: Path) -> None:
    """The status has the last event of each bus, its instant, the bytes of all tables, and that nobody writes."""
    (found,) = ask("pipeline", "status", "tables")
    size = sum(file.stat().st_size for file in files(tmp_path / "tables"))
    at = "2026-03-01T00:00:02.000000Z"
    assert found == {"bus": "plant", "batch": 2, "seq": 3, "ts": at, "bytes": size, "running": False}


def test_status_counts_files_that_count(ask: Ask) -> None:
    """Bytes are those of the newest versions: a merge makes them fewer, although the old files are there."""
    (before,) = ask("pipeline", "status", "tables")
    ask("tables", "optimize", "tables")
    (after,) = ask("pipeline", "status", "tables")
    assert after["bytes"] < before["bytes"]


def test_status_of_tables_that_are_written(ask: Ask, tmp_path: Path) -> None:
    """The status of tables on this machine tells whether a pipeline writes to them."""
    store = Store(read_location(tmp_path / "tables"))
    try:
        assert [row["running"] for row in ask("pipeline", "status", "tables")] == [True]
    finally:
        store.close()


def test_status_behind_a_journal(ask: Ask, tmp_path: Path) -> None:
    """Compared with a journal, it tells how many events the tables are behind."""
    record(tmp_path / "log", 20)
    ((bus, offsets),) = jetbus.journal.open(tmp_path / "log").offsets().items()
    make_tables(tmp_path / "behind", bus=bus)
    (found,) = ask("pipeline", "status", "behind", "--journal", "log")
    assert found["behind"] == offsets["last"] - BATCHES > 0


@pytest.mark.parametrize("command", [("pipeline", "status"), ("tables", "history"), ("tables", "vacuum")])
def test_uris(ask: Ask, tmp_path: Path, command: tuple[str, ...]) -> None:
    """A URI of a folder means the folder."""
    assert ask(*command, (tmp_path / "tables").as_uri()) == ask(*command, "tables") != []


@pytest.mark.parametrize("verb", ["history", "optimize", "vacuum"])
def test_no_java(jet: Jet, verb: str) -> None:
    """The commands need no Java: there is none on this PATH, and Spark is not asked for a session."""
    program = (
        "import sys; from pyspark.sql import SparkSession; from jetbus.cli.main import run; code = run(sys.argv[1:]);"
        "assert SparkSession.getActiveSession() is None; sys.exit(code)"
    )
    done = jet.run_command(
        [sys.executable, "-c", program, "tables", verb, "tables"], b"", {"PATH": "", "JAVA_HOME": ""}
    )
    assert (done.code, done.err) == (0, "")
