"""Tables that many tests begin with: made once, copied by those who go on from them."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.spark.journals import write_log
from support.spark.logs import make_log
from support.spark.on_disk import ALARM_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetbus.spark import Batch, Pipeline
    from support.spark.reference import Event

EVENTS = 800
RUNS = ((0, 500, 250), (500, 700, 1000))
"""First event, end, and events of a batch: two runs, three batches; some events are left for those who go on."""


@dataclass(frozen=True)
class RecordedBuses:
    """Two buses, and tables of what happened there up to some event."""

    folder: Path
    log: list[Event]
    """All events, those included that have not happened yet."""
    received: list[Batch]
    """The batches, as the pipelines told of them."""

    @property
    def tables(self) -> Path:
        return self.folder / "tables"

    @property
    def so_far(self) -> list[Event]:
        """The events that are in the tables."""
        return self.log[: RUNS[-1][1]]

    @property
    def rest(self) -> list[Event]:
        return self.log[RUNS[-1][1] :]

    def pipeline(self, spark: SparkSession, **options: Any) -> Pipeline:
        """Give a pipeline that goes on."""
        from jetbus.spark import Pipeline

        alarms = self.folder / "alarms.toml"
        return Pipeline(spark, self.folder / "journals" / "*", self.tables, alarm_file=alarms, **options)

    def happen(self, events: list[Event]) -> None:
        """Write further events to the journals."""
        write_log(self.folder / "journals", events)


@pytest.fixture(scope="session")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RecordedBuses:
    """Tables of three batches, made in two runs; the checkpoint was lost between them. Nobody may change them."""
    made = RecordedBuses(tmp_path_factory.mktemp("past"), make_log(random.Random(3), EVENTS), [])
    (made.folder / "alarms.toml").write_text(ALARM_FILE)
    for first, end, batch in RUNS:
        shutil.rmtree(made.tables / "checkpoint", ignore_errors=True)
        made.happen(made.log[first:end])
        with pytest.MonkeyPatch.context() as patch:
            if first == 0:  # stages of the first run have several tasks, and their buses are counted by a query
                patch.setattr("jetbus.spark.batch.TASK_ROWS", 100)
                patch.setattr("jetbus.spark.pipeline.count_tasks", lambda _: 3)
                patch.setattr("jetbus.spark.contents.OBSERVED_BUSES_MAX", 1)
            with made.pipeline(spark, batch_events_max=batch, on_batch=made.received.append) as pipeline:
                pipeline.run_once()
    return made


@pytest.fixture
def again(past: RecordedBuses, tmp_path: Path) -> RecordedBuses:
    """A copy of these tables and journals, to go on from."""
    shutil.copytree(past.folder, tmp_path / "again")
    return RecordedBuses(tmp_path / "again", past.log, [*past.received])
