"""Batches of which some tables were committed and others not, as a kill between two commits leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jetbus.spark import Pipeline
from jetbus.spark.store import Store
from support.spark import reference
from support.spark.journals import numbers, write_events
from support.spark.on_disk import assert_on_disk, read_delta, wanted

if TYPE_CHECKING:
    from spark.conftest import RecordedBuses

FIRST = 60
"""Events of the batch that is not finished."""


class PowerCut(Exception):
    """The end of a pipeline just before its batch counts."""


def _cut(*_given: Any) -> None:
    raise PowerCut


def run(pipeline: Pipeline) -> None:
    """Run a pipeline to its end."""
    with pipeline:
        pipeline.run_once()


def run_unfinished(pipeline: Pipeline) -> None:
    """Run a pipeline that commits all tables of its batch but that of batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "finish", _cut)
        with pytest.raises(PowerCut):
            run(pipeline)


def versions(tables: Path) -> dict[str, int]:
    """Give the version of each table on disk."""
    return {log.parent.name: DeltaTable(log.parent).version() for log in tables.glob("*/_delta_log")}


def test_an_unfinished_batch(spark: SparkSession, again: RecordedBuses, tmp_path: Path) -> None:
    """A batch that is made again is committed once; one with other events is set back first."""
    again.happen(again.rest[:FIRST])
    run_unfinished(again.pipeline(spark))
    ahead = versions(again.tables)
    assert read_delta(again.tables, "events").num_rows == len(again.so_far) + FIRST
    other = type(again)(Path(shutil.copytree(again.folder, tmp_path / "other")), again.log, [])
    run(again.pipeline(spark))
    assert {**versions(again.tables), "batches": 0} == {**ahead, "batches": 0}
    assert_on_disk(again.tables, wanted(again.log[: len(again.so_far) + FIRST]))
    # Without its checkpoint Spark makes another batch of the same events and of later ones.
    shutil.rmtree(other.tables / "checkpoint")
    other.happen(other.rest[FIRST:])
    run(other.pipeline(spark))
    assert_on_disk(other.tables, wanted(other.log))


EXPECTATIONS = """
[expect.small]
table = "events"
condition = "num < 10"
"""


def test_an_unfinished_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Tables that were made by a batch that never counted begin anew."""
    log = numbers(1200)
    write_events(tmp_path / "journal", log[:20], bus="plant")
    (tmp_path / "expectations.toml").write_text(EXPECTATIONS)

    def pipeline() -> Pipeline:
        return Pipeline(
            spark, tmp_path / "journal", tmp_path / "tables", expectation_file=tmp_path / "expectations.toml"
        )

    run_unfinished(pipeline())
    shutil.rmtree(tmp_path / "tables" / "checkpoint")
    write_events(tmp_path / "journal", log[20:], bus="plant")
    run(pipeline())
    rows = {"events": reference.events(log), "history": reference.history(log), "rollups": reference.rollups(log)}
    assert_on_disk(tmp_path / "tables", rows)
    (counted,) = read_delta(tmp_path / "tables", "expectations").to_pylist()
    assert (counted["rows"], counted["failed"]) == (1200, 1191)
