"""Plans of Spark: rows that are kept are not computed again, and generated code is short enough to be compiled."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from jetbus.rules import rule
from jetbus.spark.alarms import Alarm, alarm_signals
from jetbus.spark.clock import BatchClock, Position, batch_clock
from jetbus.spark.elements import element_rows
from jetbus.spark.requests import request_rows
from jetbus.spark.rollups import window_parts
from jetbus.spark.schemas import CARRIED
from jetbus.spark.sql_text import persist, run, select
from jetbus.spark.tables import with_values
from jetbus.spark.timeline import history, timeline
from support.spark.logs import frame, make_log

COMPILED_BYTES_MAX = 8000
"""Java interprets longer methods for ever, which takes several times as long."""
CLOCK_US = 1_772_323_200_000_000


def _explained(rows: DataFrame, mode: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    rows.explain(mode)
    return capsys.readouterr().out


def test_persisted_rows_are_computed_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Queries that name a persisted frame read what is kept, however many there are."""
    rows = spark.range(100).selectExpr("id % 7 as path", "id as seq").groupBy("path").sum("seq")
    kept = persist(rows)
    queries = [run(select("{rows}", "path", where=f"path > {number}"), rows=kept) for number in range(3)]
    plans = [_explained(query, "formatted", capsys) for query in queries]
    rows.unpersist()
    assert all("InMemoryTableScan" in plan for plan in plans)
    assert "InMemoryTableScan" not in _explained(queries[0].where("true"), "formatted", capsys)


# The session of the tests generates no code. Nothing is adapted later, so that the plan has the code of all its parts.
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "CODEGEN_ONLY",
    "spark.sql.adaptive.enabled": "false",
}


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, known in before.items():
        spark.conf.set(name, str(known))


STAGES = ["events", "timeline", "described timeline", "rollups", "alarms", "described alarms", "elements", "requests"]


@pytest.mark.parametrize("stage", STAGES)
def test_generated_code_is_compiled(
    spark: SparkSession, stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No method that Spark generates for a stage is too long for Java to compile."""
    # From files, because Spark computes what it can of rows that it has in memory while it plans.
    frame(spark, make_log(random.Random(7), 200)).write.parquet(str(tmp_path / "log"))
    events = with_values(spark.read.parquet(str(tmp_path / "log")))
    clock = batch_clock(spark, {"bus": Position(3, CLOCK_US)}, {"bus": CLOCK_US + 60_000_000}, events)
    with _settings(spark, COMPILED):
        code = _explained(_rows(spark, stage, events, clock), "codegen", capsys)
    sizes = [int(size) for size in re.findall(r"maxMethodCodeSize:(\d+)", code)]
    assert sizes
    assert max(sizes) < COMPILED_BYTES_MAX


def _rows(spark: SparkSession, stage: str, events: DataFrame, clock: BatchClock) -> DataFrame:
    carried = {name: spark.createDataFrame([], table.schema) for name, table in CARRIED.items()}
    alarms = tuple(Alarm(f"alarm {n}", rule("plant/**"), "num > 95", "num < 90", 1_000_000) for n in range(3))
    is_described = stage.startswith("described")
    known = carried["elements"] if is_described else None
    match stage.removeprefix("described "):
        case "events":
            return events
        case "timeline":
            return timeline(events, clock, carried["paths"], known, has_schemas=is_described)
        case "rollups":
            values = history(timeline(events, clock, None, None, has_schemas=False))
            return window_parts(values, clock, carried["windows"])
        case "alarms":
            return alarm_signals(alarms, events, clock, carried["alarms"], known, has_schemas=is_described)
        case "elements":
            return element_rows(events, clock, carried["elements"])
        case _:
            return request_rows(events, clock, carried["requests"])
