"""Care for tables on disk, which changes nothing for those who read them."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jetbus.spark import BadOption, attach, maintenance
from jetbus.spark.location import read_location
from jetbus.spark.maintenance import merge_files, remove_old_files
from support.spark.compare import assert_same, rows_of
from support.spark.on_disk import assert_on_disk, wanted

if TYPE_CHECKING:
    from spark.conftest import RecordedBuses

HOURS_AGO = 3
KEEP_S = (HOURS_AGO - 1) * 3600


def files(table: Path) -> set[Path]:
    """Find the files of a table on disk, whether they count or not."""
    return set(table.rglob("*.parquet"))


def make_old(table: Path) -> None:
    """Let everything in a table be some hours older, the removal of its files included."""
    then_s = time.time() - HOURS_AGO * 3600
    for log in (table / "_delta_log").glob("*.json"):
        text = re.sub(r'("deletionTimestamp":)\d+', rf"\g<1>{round(then_s * 1000)}", log.read_text())
        log.write_text(text)
    for file in files(table):
        os.utime(file, (then_s, then_s))


def test_merged_files_hold_the_same(spark: SparkSession, again: RecordedBuses) -> None:
    """Merging leaves few files and the same rows for all readers; old files go when nobody can be reading them."""
    location, events = read_location(again.tables), again.tables / "events"
    early = attach(spark, again.tables).frame("history")
    before = len(DeltaTable(events).file_uris())
    done = merge_files(location)
    assert {"events", "history", "rollups", "batches"} <= set(done)
    assert "carried_paths" not in done  # the pipeline folds it
    assert len(DeltaTable(events).file_uris()) < before
    merge_files(location, ["history"], by_path=True)
    assert_same("history", rows_of(early), wanted(again.so_far)["history"])
    whole = next(file for file in files(events))
    stray = Path(shutil.copy(whole, whole.with_name("stray.parquet")))
    assert remove_old_files(location, ["events"]) == {"events": []}
    make_old(events)
    named = remove_old_files(location, ["events"], keep_s=KEEP_S, dry_run=True)["events"]
    assert any(name.endswith("stray.parquet") for name in named)
    assert stray.exists()
    assert len(remove_old_files(location, ["events"], keep_s=KEEP_S)["events"]) == len(named) > before / 2
    assert files(events) == {Path(uri) for uri in DeltaTable(events).file_uris()}
    assert_on_disk(again.tables, wanted(again.so_far))
    found = attach(spark, again.tables)
    for name in ("events", "history", "rollups"):
        assert_same(name, rows_of(found.frame(name)), wanted(again.so_far)[name])


def test_what_cannot_be_cared_for_is_named(past: RecordedBuses) -> None:
    """A table that is not there, and a time in which files may still be read, are refused."""
    location = read_location(past.tables)
    with pytest.raises(BadOption, match=r"there is no table 'pumps'; there are .*events"):
        merge_files(location, ["pumps"])
    with pytest.raises(BadOption, match="keep at least 1h"):
        remove_old_files(location, keep_s=3599)


def test_a_pipeline_cares_for_its_tables(
    spark: SparkSession, again: RecordedBuses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipeline folds what it carries and merges small files; a merge that fails never ends it."""
    monkeypatch.setattr(maintenance, "FOLD_FILES", 0)
    monkeypatch.setattr(maintenance, "MERGE_FILES", 2)
    merge, tried = maintenance.merge_files, list[str]()

    def merged(location: Any, names: list[str]) -> Any:
        tried.extend(names)
        if names == ["history"]:
            raise OSError("the disk is full")
        return merge(location, names)

    monkeypatch.setattr(maintenance, "merge_files", merged)
    again.happen(again.rest)
    with (
        caplog.at_level(logging.WARNING, "jetbus.spark"),
        again.pipeline(spark, merge_every=1, batch_events_max=60) as one,
    ):
        one.run_once()
    assert {"events", "history", "rollups"} <= set(tried)
    assert "files of 'history' could not be cared for, which is tried again later" in caplog.text
    assert_on_disk(again.tables, wanted(again.log))
    found = attach(spark, again.tables)
    for name, rows in wanted(again.log).items():
        assert_same(name, rows_of(found.frame(name)), rows)
    for name in ("paths", "windows", "alarms", "elements"):
        table = DeltaTable(again.tables / f"carried_{name}")
        newest = next(commit for commit in table.history() if "folded" in commit or "batch" in commit)
        assert newest.get("folded") == "true", name
    paths = DeltaTable(again.tables / "carried_paths").to_pyarrow_table()
    keys = [(row["bus"], row["path"]) for row in paths.select(["bus", "path"]).to_pylist()]
    assert len(keys) == len(set(keys))


def test_a_pipeline_removes_old_files(spark: SparkSession, again: RecordedBuses) -> None:
    """A pipeline removes files that only old versions need, or none; it keeps what is younger, by default a week."""
    location, events = read_location(again.tables), again.tables / "events"
    merge_files(location, ["events"])
    make_old(events)
    before = files(events)
    log = again.rest
    for keep, is_removed in ({"keep_s": None}, False), ({}, False), ({"keep_s": KEEP_S}, True):
        again.happen(log[:20])
        log = log[20:]
        with again.pipeline(spark, **keep) as one:
            one.run_once()
        assert (before <= files(events)) is not is_removed
    assert files(events) == {Path(uri) for uri in DeltaTable(events).file_uris()}
    assert_on_disk(again.tables, wanted(again.log[: len(again.log) - len(log)]))
    with pytest.raises(BadOption, match="keep at least 1h"):
        again.pipeline(spark, keep_s=60)
