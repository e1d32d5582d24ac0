"""The pipeline as a process of its own: killed at any moment, and its daemon with it; stopped as it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from jetbus.spark import Tables
from spark import reference
from spark.compare import assert_same, rows_of
from spark.kills import EVENTS, read_log

if TYPE_CHECKING:
    from conftest import Killed

WITHIN_S = 2400


@pytest.mark.timeout(WITHIN_S)
def test_a_killed_pipeline_goes_on_without_loss_or_repeat(spark: SparkSession, killed: Killed) -> None:
    """Killed ten times in its batches, its daemon killed meanwhile, the pipeline has each event once in every table.

    After all of that SIGTERM ends it after its batch, with exit code 0.
    """
    told, _ = killed.process.communicate()
    assert killed.process.returncode == 0, (killed.folder / "complaints").read_text(errors="replace")[-4000:]
    found = Tables(spark, killed.folder / "tables")
    last = found.manifest.seqs["plant"]
    log = [event for event in read_log(killed.folder / "journal") if event.seq <= last]
    worked = sum(event.path == "plant/count" and event.event == "change" for event in log)
    assert worked == int(told) * EVENTS
    for name, wanted in (
        ("events", reference.events(log)),
        ("history", reference.history(log)),
        ("rollups_1s", reference.rollups(log, "rollups_1s")),
        ("availability", reference.availability(log)),
    ):
        assert_same(name, rows_of(found.frame(name)), wanted)
