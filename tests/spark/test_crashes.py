"""The pipeline as a process of its own: killed at any moment, stopped as it should be."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetbus.spark import Tables
from spark import reference
from spark.compare import assert_same, rows_of
from spark.journals import write_log
from spark.logs import make_log

KILLS = 2
READY_WITHIN_S = 240
FOR_FEW_ROWS = """
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
spark.sql.adaptive.enabled false
"""
"""With some dozen rows, compiling costs more than it gives."""


def start(journals: Path, tables: Path, *options: str) -> subprocess.Popen[str]:
    """Start a pipeline over these journals, in a process group of its own."""
    settings = tables.with_name("settings")
    settings.mkdir(exist_ok=True)
    (settings / "spark-defaults.conf").write_text(FOR_FEW_ROWS)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "jetbus.spark.run", "--journal", f"{journals}/*", "--tables", str(tables)),
            *("--master", "local[1]", "--batch-events", "50", *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "SPARK_CONF_DIR": str(settings), "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
    )


def kill(process: subprocess.Popen[str]) -> None:
    """End the driver and its Java machine at once, as a power cut would."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.timeout(600)
def test_a_killed_pipeline_goes_on_without_loss_or_repeat(spark: SparkSession, tmp_path: Path) -> None:
    """Killed in the middle of its batches again and again, the pipeline ends up with each event once in every table."""
    chance = random.Random(11)
    log = make_log(chance, 200)
    write_log(tmp_path / "journals", log)
    tables = tmp_path / "tables"
    for _ in range(KILLS):
        process = start(tmp_path / "journals", tables, "--once")
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["events"] == 50
            # Somewhere within the batch after it.
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 3))
        finally:
            kill(process)
    process = start(tmp_path / "journals", tables, "--once")
    try:
        assert process.wait(READY_WITHIN_S) == 0
    finally:
        kill(process)
    found = Tables(spark, tables)
    assert_same("events", rows_of(found.frame("events")), reference.events(log))
    assert_same("history", rows_of(found.frame("history")), reference.history(log))
    assert_same("rollups_1m", rows_of(found.frame("rollups_1m")), reference.rollups(log, "rollups_1m"))
    assert_same("availability", rows_of(found.frame("availability")), reference.availability(log))


def test_a_pipeline_stops_when_told(tmp_path: Path) -> None:
    """A running pipeline that gets SIGTERM finishes its batch and ends with exit code 0."""
    write_log(tmp_path / "journals", make_log(random.Random(12), 60))
    process = start(tmp_path / "journals", tmp_path / "tables", "--every", "100ms")
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["events"] == 50
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_WITHIN_S) == 0
    finally:
        kill(process)
